#!/usr/bin/env bash
# Three snapshots of databases at work, restored.
exec "$(dirname "$0")/../work/backup.sh" 3
