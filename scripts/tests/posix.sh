#!/usr/bin/env bash
# Sparse files, mappings, shared, unlinked and locked files.
exec "$(dirname "$0")/../work/posix.sh"
