#!/usr/bin/env bash
# What is tried to break nenrin, counted: power cuts, damage, deliberate breaks, hostile bytes, public
# suites. Prints the table of docs/TESTING.md; --write puts it there. About 20 minutes, at most 50.
#   proof.sh [--write]
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh
find_cargo
case "${1:-}" in
"" | --write) ;;
*) fail "proof.sh: --write, or nothing; not '$1'" ;;
esac
logs="${CARGO_TARGET_DIR:-target}/proof"
mkdir -p "$logs" && rm -f "$logs"/*.log
status=0
run() {
    local name=$1 code=0
    shift
    say "== $name"
    timeout --kill-after=60 1200 "$@" </dev/null >"$logs/$name.log" 2>&1 || code=$?
    echo "== exit $code" >>"$logs/$name.log"
    [ $code = 77 ] && say "   skipped: $(grep -v '^==' "$logs/$name.log" | tail -1)" && return
    [ $code = 0 ] || { say "   FAILED, see $logs/$name.log"; status=1; }
}
run build scripts/build.sh
run crash scripts/crash.sh 200000
run hostile "$CARGO" test --locked --quiet -p nenrin-fuzz --test hostile -- --nocapture
run fuzz scripts/fuzz.sh 60
for suite in pjdfstest fsx sqlite dbench fio-verify stress kill; do
    run "$suite" "scripts/tests/$suite.sh"
done
[ "${1:-}" = --write ] && [ $status = 0 ] && set -- docs/TESTING.md || set --
python3 scripts/work/figures.py "$logs" "$@" || status=1
exit $status
