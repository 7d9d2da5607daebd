#!/usr/bin/env bash
# Every test but the soak tests, with the time of each part. Goes on after a
# failure, so that one run shows everything that is wrong.
#   test.sh [PART...]      parts: format lint unit crash scripts
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh
find_cargo
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-2}"

summary=()
status=0

part() {
    local name=$1 begin=$SECONDS result=ok code
    shift
    echo "== $name"
    code=0
    "$@" </dev/null || code=$?
    # 77 means: cannot be done here, as the part has said.
    case $code in
    0) ;;
    77) result=skipped ;;
    *) result=FAILED status=1 ;;
    esac
    summary+=("$(printf '%-28s %-7s %4d s' "$name" "$result" $((SECONDS - begin)))")
}

for wanted in "${@:-all}"; do
    case "$wanted" in all | format) part format scripts/lint.sh format ;; esac
    case "$wanted" in all | lint) part lint scripts/lint.sh clippy ;; esac
    case "$wanted" in all | unit) part unit "$CARGO" test --locked --workspace --no-fail-fast --quiet ;; esac
    case "$wanted" in all | crash) part crash scripts/crash.sh 200000 ;; esac
    case "$wanted" in all | scripts)
        part build scripts/build.sh
        for file in scripts/tests/*.sh; do
            part "$(basename "$file")" "$file"
        done ;;
    esac
done

echo
printf '%s\n' "${summary[@]}"
echo "together                             $((SECONDS)) s of 1500 s"
[ "$status" = 0 ] && echo "all passed" || echo "FAILED"
exit "$status"
