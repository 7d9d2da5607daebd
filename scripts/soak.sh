#!/usr/bin/env bash
# The long tests: every script in scripts/soak/, each of which keeps its progress
# under soak-state/ and stops after its share of SOAK_MINUTES (default 60).
# Running it again goes on where it stopped; rm -r soak-state begins anew.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh
scripts/build.sh || exit 1
mkdir -p soak-state
shopt -s nullglob
files=(scripts/soak/*.sh)
[ "${#files[@]}" -gt 0 ] || { say "There are no soak tests yet."; exit 0; }
seconds=$((${SOAK_MINUTES:-60} * 60 / ${#files[@]}))
status=0
for file in "${files[@]}"; do
    name=$(basename "$file" .sh)
    [ -e "soak-state/$name.done" ] && { say "$name: done before"; continue; }
    say "== $name, at most $seconds s"
    if SOAK_SECONDS=$seconds SOAK_STATE=$PWD/soak-state/$name "$file"; then
        touch "soak-state/$name.done"
    else
        code=$?
        # 75: more to do, go on next time.
        case $code in
        75) say "$name: goes on next time" ;;
        77) ;; # it has said why it cannot be done here
        *) say "$name: FAILED"; status=1 ;;
        esac
    fi
done
exit "$status"
