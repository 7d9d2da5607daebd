#!/usr/bin/env bash
# What scripts say of parts that they do not know, and test.sh of parts that were left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for script in test lint; do
    code=0
    said=$("scripts/$script.sh" unti 2>&1) || code=$?
    [ $code = 2 ] && grep -q "no part 'unti'; there are: all format" <<<"$said" || fail "$script.sh unti ended with $code and said: $said"
done
for script in bench-clean bench-stripe bench-sync compare; do
    code=0
    said=$(PARTS=unti "scripts/$script.sh" 2>&1) || code=$?
    [ $code = 2 ] && grep -q "no part 'unti'" <<<"$said" || fail "$script.sh with PARTS=unti ended with $code and said: $said"
done
# A tree with scripts of its own, so that nothing of this run's logs is touched.
mkdir -p "$dir/scripts/tests"
cp scripts/test.sh scripts/lib.sh "$dir/scripts/"
script() { printf '#!/bin/sh\nexit %s\n' "$2" >"$dir/scripts/$1"; chmod +x "$dir/scripts/$1"; }
script build.sh 0
script tests/one.sh 0
run() { CARGO_TARGET_DIR=$dir/target "$dir/scripts/test.sh" scripts 2>&1; }
run | grep -qx 'all passed' || fail "two parts passed, and test.sh does not say so"
script tests/two.sh 77
run | grep -qx '2 passed, 1 skipped' || fail "a part was skipped, and test.sh does not say so"
script tests/three.sh 1
said=$(run) && fail "a part failed, and test.sh ended with 0"
grep -qx FAILED <<<"$said" || fail "a part failed, and test.sh said: $said"
say "test.sh: what is unknown, skipped or failed is said"
