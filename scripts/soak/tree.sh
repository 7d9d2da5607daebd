#!/usr/bin/env bash
# The kernel's source tree and one of each odd thing.
exec "$(dirname "$0")/../work/tree.sh" full
