#!/usr/bin/env bash
# measured.sh [IMAGES [MINUTES_MAX]]: see crash.sh --measured, which calls it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
find_cargo
images=${1:-20000} minutes=${2:-2} out=${OUT:-docs/benchmarks/sync/simulated.jsonl} jobs=$(nproc)
"$CARGO" build --release --locked --quiet -p nenrin-sim -p nenrin-bench
target=$(release)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
# What results that are kept name is simulated, too, whoever measured it.
kept=$(cat docs/benchmarks/*/*.json | grep -o '"name": *"nenrin[^"]*"' | sort -u | sed 's/.*"\(nenrin[^"]*\)"/\1/' | paste -sd, || true)
"$target/nenrin-bench" ${kept:+--contenders "$kept"} --measured >"$dir/runs"
code=0
: >"$dir/done"
while IFS= read -r run; do
    arguments=$(sed 's/.*"arguments":"\([^"]*\)".*/\1/' <<<"$run")
    kinds=("")
    # Cleaning is what the suite clean measures.
    ! grep -q '"suites":\[[^]]*"clean"' <<<"$run" || kinds+=("--profile clean --steps 300")
    wanted=$images
    ! grep -q -e --devices <<<"$arguments" || wanted=$((images / 4))
    # Fewer than a thousand say nothing: the test in crates/bench/src/measured.rs refuses them, too.
    [ "$wanted" -ge 1000 ] || wanted=1000
    for kind in "${kinds[@]}"; do
        say "nenrin-sim run $arguments${kind:+ $kind}, at least $wanted images"
        result=ok
        # shellcheck disable=SC2086 # arguments are several words
        "$target/nenrin-sim" run --seeds 10000000..20000000 --images "$wanted" --minutes "$minutes" --jobs "$jobs" --keep-going --json \
            $arguments $kind >"$dir/tally" 2>"$dir/errors" </dev/null || result=failed
        [ $result = ok ] || { cat "$dir/errors" >&2; code=1; }
        failures=$(grep -c '^FAILED' "$dir/errors" || true)
        [ $result = ok ] || [ "$failures" -gt 0 ] || failures=1
        python3 scripts/work/measured.py "$run" "$kind" "$failures" "$dir/tally" "$dir/errors" >>"$dir/done"
        tail -n 1 "$dir/done" | sed 's/.*"seeds"/   "seeds"/'
        distinct=$(tail -n 1 "$dir/done" | sed 's/.*"images": \([0-9]*\).*/\1/')
        [ "$distinct" -ge "$wanted" ] || { say "only $distinct images in $minutes minutes" >&2; code=1; }
    done
done <"$dir/runs"
cp "$dir/done" "$out"
[ $code = 0 ] || fail "some of what is measured does not pass"
say "$out is written"
