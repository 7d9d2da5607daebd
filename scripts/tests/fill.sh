#!/usr/bin/env bash
# Fill and delete, a short round.
exec "$(dirname "$0")/../work/fill.sh" 1 1500 256M
