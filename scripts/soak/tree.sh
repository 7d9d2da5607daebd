#!/bin/sh
# 60,000 files, and a real source tree where there is one (Debian's linux-source).
[ -d /usr/src/linux ] && export SOURCE=/usr/src/linux
FILES=60000 SIZE=6G exec "$(dirname "$0")/../tests/tree.sh"
