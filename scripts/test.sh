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
    local name=$1 begin=$SECONDS result=ok
    shift
    echo "== $name"
    "$@" </dev/null || { result=FAILED; status=1; }
    summary+=("$(printf '%-28s %-7s %4d s' "$name" "$result" $((SECONDS - begin)))")
}

script() {
    # 77 means: cannot be done here, as the script has said.
    local code=0
    "$1" || code=$?
    [ "$code" = 0 ] || [ "$code" = 77 ]
}

for wanted in "${@:-all}"; do
    case "$wanted" in all | format) part format scripts/lint.sh format ;; esac
    case "$wanted" in all | lint) part lint scripts/lint.sh clippy ;; esac
    case "$wanted" in all | unit) part unit "$CARGO" test --locked --workspace --no-fail-fast --quiet ;; esac
    case "$wanted" in all | crash) part crash scripts/crash.sh 20000 ;; esac
    case "$wanted" in all | scripts)
        part build scripts/build.sh
        for file in scripts/tests/*.sh; do
            part "$(basename "$file")" script "$file"
        done ;;
    esac
done

echo
printf '%s\n' "${summary[@]}"
echo "together                             $((SECONDS)) s of 1500 s"
[ "$status" = 0 ] && echo "all passed" || echo "FAILED"
exit "$status"
