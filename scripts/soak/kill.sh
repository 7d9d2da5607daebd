#!/usr/bin/env bash
<<<<<<< HEAD
# 60 kills; ten at a time, so that it can be gone on with.
mkdir -p "$SOAK_STATE"
end=$((SECONDS + SOAK_SECONDS))
for part in 1 2 3 4 5 6; do
    [ -e "$SOAK_STATE/$part" ] && continue
    [ "$SECONDS" -lt "$end" ] || exit 75
    ROUNDS=10 SEED=$part SIZE=1G "$(dirname "$0")/../tests/kill.sh" || exit 1
    touch "$SOAK_STATE/$part"
done
=======
# Sixty times SIGKILL.
exec "$(dirname "$0")/../work/kill.sh" 60
>>>>>>> w/work
