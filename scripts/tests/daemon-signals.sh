#!/usr/bin/env bash
# SIGKILL and SIGTERM.
exec "$(dirname "$0")/../work/daemon.sh" signals
