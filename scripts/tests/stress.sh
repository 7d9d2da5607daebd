#!/usr/bin/env bash
# Odd system calls.
exec "$(dirname "$0")/../work/suites.sh" stress-ng 45
