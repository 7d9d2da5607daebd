#!/usr/bin/env bash
# Sixty times SIGKILL.
exec "$(dirname "$0")/../work/kill.sh" 60
