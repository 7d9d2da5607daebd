#!/usr/bin/env bash
# bench-clean.sh: what the cleaner costs, beside other file systems, into docs/benchmarks/clean.md with
# plots and raw results. As root; about 45 minutes on an idle machine.
# PARTS (memory host fsync remove order full guest; curves only when it is named) leaves some out: their last results stay. Of host and guest: SIZE (2G) of
# the volume and GUEST_SIZE (1, in GiB); FILLS (50 80 90 95) and GUEST_FILLS (80), hundredths of what is available;
# LOADS (uniform hot churn) and GUEST_LOADS (hot); SLICES (8) and GUEST_SLICES (4) of SLICE_PERCENT (12) of the volume, after
# AGE_PERCENT (150) of it were overwritten, with SLICE_S (3) and AGE_S (25) seconds at most (GUEST_SLICE_S 12, GUEST_AGE_S 90);
# CONTENDERS and GUEST_CONTENDERS. The part curves is the guest's at all fills, and for all loads (CURVES_FILLS, CURVES_LOADS, CURVES_SLICES 3, CURVES_SIZE 512M,
# CURVES_AGE_FREE_PERCENT 300 of what is free, CURVES_AGE_S 150, CURVES_SLICE_S 10, CURVES_CONTENDERS): about an hour and a half, on a processor that does nothing else, since what is too slow to age the volume measures free space. CURVES_CPUS (1) processors: with one, bound to it by taskset, it leaves the others alone. Of host and guest: where 80 is among the fills, a row with an fsync after each 16 MiB comes along. ROUNDS (3) and
# LOADED (4) seconds of the parts fsync and remove, ROUNDS also of order; REMOVED (100G) is the size of the removed file, FULL_ROUNDS (1); MEMORY_MIB (512). GUEST_LIMIT as for
# guest/run.sh. DIR (/var/tmp) where images lie; OUT where results go.
# Everything once, in two minutes and worth nothing:
#   SIZE=512M FILLS=80 LOADS=hot SLICES=2 AGE_PERCENT=25 CONTENDERS=ext4,nenrin ROUNDS=1 LOADED=2 REMOVED=1G MEMORY_MIB=128 \
#       PARTS='memory host fsync remove order full' OUT=/tmp/clean scripts/bench-clean.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
out=${OUT:-$PWD/docs/benchmarks/clean} parts=" ${PARTS:-memory host fsync remove order full guest} "
size=${SIZE:-2G} rounds=${ROUNDS:-3} loaded=${LOADED:-4} removed=${REMOVED:-100G}
work=(--age-percent "${AGE_PERCENT:-150}" --slice-percent "${SLICE_PERCENT:-12}")
known "$parts" memory host fsync remove order full guest curves
[ "$(id -u)" = 0 ] || fail "bench-clean.sh: must be run as root, since it makes and mounts file systems"
scripts/setup.sh bench-clean
find_cargo
export NENRIN=${NENRIN:-$(release)/nenrin}
"$CARGO" build --release --locked --quiet -p nenrin-bench
bench=$(release)/nenrin-bench
mkdir -p "$out"
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-clean.XXXXXX")
zram=
cleanup() {
    [ -z "$zram" ] || echo "$zram" >/sys/class/zram-control/hot_remove || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
wanted() { case $parts in *" $1 "*) ;; *) return 1 ;; esac; }
# rows LOADS FILLS: names for --only.
rows() {
    local load fill list=
    for load in $1; do
        for fill in $2; do
            list=$list,$load-$fill-end
            [ "$fill" != 80 ] || list=$list,$load-80-16m
        done
    done
    printf %s "${list#,}"
}
# harness PART OPTION...
harness() {
    local part=$1
    shift
    say "$part"
    "$bench" --nenrin "$NENRIN" --suite clean --dir "$dir/work" --out "$dir/$part" "$@" >"$dir/$part.txt" ||
        { tail -n 5 "$dir/$part.txt" >&2; say "some of it failed: the tables say what" >&2; }
    [ ! -e "$dir/$part/results.json" ] || cp "$dir/$part/results.json" "$out/$part.json"
}
# example NAME ARGUMENT...: what it counts in memory, where there is one of that name.
example() {
    local name=$1
    shift
    [ -e "crates/core/examples/$name.rs" ] || return 0
    say "memory: $name"
    "$CARGO" run --release --locked --quiet -p nenrin-core --example "$name" -- "$@" | sed "s/^{/{\"example\":\"$name\",/" >>"$dir/memory.jsonl"
}

if wanted memory; then
    example clean_cost --json "${MEMORY_MIB:-512}"
    example idle_cost "${MEMORY_MIB:-512}"
    example versions_cost --json
    example busy_tree --json
    cp "$dir/memory.jsonl" "$out/memory.jsonl"
fi
# shellcheck disable=SC2086
if wanted host; then
    harness host --size "$size" --slices "${SLICES:-8}" "${work[@]}" --age-s "${AGE_S:-25}" --sustained-s "${SLICE_S:-3}" \
        --only "$(rows "${LOADS:-uniform hot churn}" "${FILLS:-50 80 90 95}")" ${CONTENDERS:+--contenders "$CONTENDERS"}
fi
if wanted fsync; then harness fsync --size "$size" --slices "$rounds" --loaded-s "$loaded" --only fsync-cleaning; fi
if wanted remove; then harness remove --size "$size" --slices "$rounds" --loaded-s "$loaded" --removed "$removed" --only remove-; fi
if wanted order; then harness order --size "$size" --slices "$rounds" --only order; fi
if wanted full; then
    # A page in which all words are equal takes no memory there, so the content of 100 GB fits; the index of the volume does not compress.
    if zram=$(cat /sys/class/zram-control/hot_add 2>/dev/null) && [ -n "$zram" ]; then
        mib=$((($(numfmt --from=iec "$removed") * 115 / 100 >> 20) + 1024))
        echo "${mib}M" >"/sys/block/zram$zram/disksize"
        harness full --devices "/dev/zram$zram" --slices "${FULL_ROUNDS:-1}" --loaded-s "$loaded" --removed "$removed" \
            --only remove-full --contenders "${FULL_CONTENDERS:-nenrin}"
    else
        zram=
        say "full is left out: this kernel has no zram" >&2
    fi
fi
# guest PART ROWS SLICES AGE_S SLICE_S CONTENDERS SIZE OPTION...
guest() {
    local part=$1 rows=$2 slices=$3 age=$4 slice=$5 contenders=$6 gib=$7
    shift 7
    local guest=${GUEST_DIR:-$PWD/target/guest} limit=${GUEST_LIMIT:-throttling.iops-total=2000,throttling.bps-total=100000000}
    say "$part"
    scripts/guest/setup.sh "$guest"
    {
        printf 'exec /host/nenrin-bench --nenrin /usr/bin/nenrin --suite clean --gate-cores 9 --devices /dev/vda --dir /tmp/work --out /host'
        printf ' %q' "${work[@]}" "$@" --slices "$slices" --age-s "$age" --sustained-s "$slice" --only "$rows" --contenders "$contenders"
        printf '\n'
    } >"$dir/job"
    GUEST_DISKS=1 GUEST_LIMIT=$limit GUEST_FILES=$bench GUEST_SECONDS=${GUEST_SECONDS:-10800} \
        scripts/guest/run.sh "$guest" "$dir/$part" "$gib" "$dir/job" || say "some of it failed: the tables say what" >&2
    cp "$dir/$part/results.json" "$out/$part.json"
    printf '%s\n' "$limit" >"$out/guest-limit.txt"
}
few=f2fs,nilfs2+cleanerd,nenrin+checkpoint=0,nenrin
if wanted guest; then
    guest guest "$(rows "${GUEST_LOADS:-hot}" "${GUEST_FILLS:-80}")" "${GUEST_SLICES:-4}" "${GUEST_AGE_S:-90}" "${GUEST_SLICE_S:-12}" \
        "${GUEST_CONTENDERS:-f2fs,f2fs+mode=lfs,nilfs2+cleanerd,nenrin+checkpoint=0,nenrin+cache=writeback+checkpoint=0,nenrin}" "${GUEST_SIZE:-1}"
fi
if wanted curves; then
    GUEST_CPUS=${CURVES_CPUS:-1} guest curves "$(rows "${CURVES_LOADS:-uniform hot churn}" "${CURVES_FILLS:-50 80 90 95}" | sed 's/,[a-z]*-80-16m//g')" \
        "${CURVES_SLICES:-3}" "${CURVES_AGE_S:-150}" "${CURVES_SLICE_S:-10}" "${CURVES_CONTENDERS:-$few}" "${CURVES_SIZE:-512M}" \
        --age-free-percent "${CURVES_AGE_FREE_PERCENT:-300}"
fi
python3 scripts/work/bench_clean.py "$out"
say "$(dirname "$out")/clean.md is written"
