#!/usr/bin/env bash
# A tree with everything in it, through rsync and a remount.
exec "$(dirname "$0")/../work/tree.sh" small
