<<<<<<< HEAD
#!/bin/sh
# 60,000 files, and a real source tree where there is one (Debian's linux-source).
[ -d /usr/src/linux ] && export SOURCE=/usr/src/linux
FILES=60000 SIZE=6G exec "$(dirname "$0")/../tests/tree.sh"
=======
#!/usr/bin/env bash
# The kernel's source tree and one of each odd thing.
exec "$(dirname "$0")/../work/tree.sh" full
>>>>>>> w/work
