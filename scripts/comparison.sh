#!/usr/bin/env bash
# comparison.sh DIR: puts the parts that compare.sh left in DIR together as one document.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
cat docs/comparison/head.md
part() {
    [ -e "$dir/$2.md" ] || return 0
    printf '\n## %s\n\n' "$1"
    # Plots lie in the directory of the parts.
    sed 's|\](\('"$2"'-[^)]*\.svg\))|](comparison/\1)|' "$dir/$2.md"
}
part "Sequential and random, on this kernel" large
part "Small files, database, log, on this kernel" work
part "Sequential and random, all file systems, in a virtual machine" guest
part "Small files, database, log, all file systems, in a virtual machine" guest-work
cat docs/comparison/why.md
