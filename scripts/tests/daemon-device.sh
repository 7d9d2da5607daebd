#!/usr/bin/env bash
# A device that vanishes, and one that is slow.
exec "$(dirname "$0")/../work/daemon.sh" device
