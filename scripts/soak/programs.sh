#!/bin/sh
COMMITS=1000 ROWS=20000 SIZE=4G exec "$(dirname "$0")/../tests/programs.sh"
