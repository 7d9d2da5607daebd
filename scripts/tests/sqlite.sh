#!/usr/bin/env bash
# SQLite: its own load tests, and SIGKILL under them.
exec "$(dirname "$0")/../work/suites.sh" sqlite 10
