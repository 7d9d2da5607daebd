#!/usr/bin/env bash
# stress-ng, longer.
exec "$(dirname "$0")/../work/suites.sh" stress-ng 600
