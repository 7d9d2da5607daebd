#!/usr/bin/env bash
# Three times SIGKILL under SQLite, git and files replaced by rename.
exec "$(dirname "$0")/../work/kill.sh" 3
