#!/usr/bin/env bash
# git, cargo, SQLite.
exec "$(dirname "$0")/../work/git.sh" small
