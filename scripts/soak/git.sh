#!/usr/bin/env bash
# git, cargo build of this workspace, SQLite, in full size.
exec "$(dirname "$0")/../work/git.sh" full
