#!/usr/bin/env bash
# Fill and delete: random creates, overwrites, truncates, deletes, copies that share, snapshots and expiry
# between 90 and 100 % full; each round ends with every file right, check --data clean, and after rm all of
# the volume usable again. One round in twenty has a short rule for keeping checkpoints and lasts until that has acted,
# twelve minutes, also where the share is shorter. Goes on where it was stopped.
exec "$(dirname "$0")/../work/fill.sh" "${FILL_ROUNDS:-200}" "${FILL_STEPS:-4000}" "${FILL_SIZE:-2G}" "${FILL_RULED:-20}"
