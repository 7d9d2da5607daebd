#!/usr/bin/env bash
# bench-sync.sh: what making writes durable costs, beside other file systems, into
# docs/benchmarks/sync.md with plots and raw results. As root; about two hours on an idle machine.
# PARTS (disk seeds databases cost limited guest cuts simulated again) leaves some out: their last results stay; again is the rows of this
# kernel that have something to reach, once more, so that a reader sees how far two runs agree (AGAIN: of which parts). SLICES (15), LOADED
# (10) and LONG (600) seconds as for nenrin-bench; GUEST_SLICES (5) and GUEST_LOADED (30) the same of the guest, GUEST_GIB (4; on 2 nilfs2 runs out of space) of each of its disks, GUEST_ARGS more of its options, LIMITED_SLICES (9)
# of limited; CUTS (100) power cuts for each barrier mode; SIMULATED (20000) crash images of each way to mount, by the simulator (crash.sh --measured); SIZE (4G) of each device; DIR (/var/tmp) where images lie; OUT where results go.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
out=${OUT:-$PWD/docs/benchmarks/sync} parts=" ${PARTS:-disk seeds databases cost limited guest cuts simulated again} "
slices=${SLICES:-15} loaded=${LOADED:-10} long=${LONG:-600} size=${SIZE:-4G}
known "$parts" disk seeds databases cost limited guest cuts simulated again
[ "$(id -u)" = 0 ] || fail "bench-sync.sh: must be run as root, since it makes and mounts file systems"
scripts/setup.sh bench-sync
find_cargo
export NENRIN=${NENRIN:-$(release)/nenrin}
"$CARGO" build --release --locked --quiet -p nenrin-bench -p nenrin-sim
# The control of what is mounted by this front end.
"$CARGO" build --release --locked --quiet -p nenrin-fuse --example bare
bench=$(release)/nenrin-bench
NENRIN_SIM=$(release)/nenrin-sim NENRIN_BENCH_SCRIPTS=$PWD/scripts/work
export NENRIN_SIM NENRIN_BENCH_SCRIPTS
mkdir -p "$out"
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-sync.XXXXXX")
# The server of a database benchmark must be able to enter.
chmod 755 "$dir"
# The calls alone are measured with transport=uring, too, where the kernel has it; it is off again at the end where it was.
uring=/sys/module/fuse/parameters/enable_uring switched=
if [ "$(cat "$uring" 2>/dev/null)" = N ] && echo Y >"$uring"; then switched=yes; fi
cleanup() {
    "$NENRIN" umount "$dir/mnt" >/dev/null 2>&1 || true
    [ -z "$switched" ] || echo N >"$uring"
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
wanted() { case $parts in *" $1 "*) ;; *) return 1 ;; esac; }
# harness PART OPTION...
harness() {
    local part=$1
    shift
    say "$part"
    "$bench" --nenrin "$NENRIN" --slices "$slices" --loaded-s "$loaded" --long-s "$long" --dir "$dir/work" --out "$dir/$part" "$@" >"$dir/$part.txt" ||
        { tail -n 5 "$dir/$part.txt" >&2; say "some of it failed: the table says what" >&2; }
    cp "$dir/$part/results.json" "$out/$part.json"
}
# Each PART [OPTION...]
# shellcheck disable=SC2086
on_disk() { harness "$1" --suite sync --size "$size" --only "${2:-append-fsync,calls,overwrite-fdatasync,barrier,busy,order}" ${DISK_ARGS:-}; }
# shellcheck disable=SC2086
databases() { harness "$1" --suite databases --size "$size" "${@:2}" ${DISK_ARGS:-}; }
limited() {
    harness "$1" --suite limited --size "$size" --slices "${LIMITED_SLICES:-9}" --slice-ms 2000 --limit-iops 200 --limit-bps 100000000 \
        --contenders raw,ext4,xfs,btrfs,nenrin,nenrin+cache=writeback,nenrin+order=strict "${@:2}"
}
if wanted disk; then on_disk disk; fi
if wanted seeds; then on_disk seeds seed1,seed2; fi
if wanted databases; then databases databases; fi
if wanted cost; then
    harness cost --suite cost --size "$size"
    "$CARGO" run --release --locked --quiet -p nenrin-core --example sync_cost -- 4096 "$long" >"$out/cost-memory.jsonl"
fi
if wanted limited; then limited limited; fi
guest() {
    say "$1"
    scripts/guest/setup.sh "${GUEST_DIR:-$PWD/target/guest}"
    cat >"$dir/job" <<END
exec /host/nenrin-bench --nenrin /usr/bin/nenrin --suite guest --slices ${GUEST_SLICES:-5} --slice-ms 4000 --loaded-s ${GUEST_LOADED:-30} \
    ${GUEST_ARGS:-} --gate-cores 9 --devices "\$(ls /dev/vd? | tr '\n' ',')" --dir /tmp/work --out /host
END
    GUEST_DISKS=11 GUEST_LIMIT=throttling.iops-total=200,throttling.bps-total=100000000 GUEST_FILES=$bench GUEST_SECONDS=7200 \
        scripts/guest/run.sh "${GUEST_DIR:-$PWD/target/guest}" "$dir/guest" "${GUEST_GIB:-4}" "$dir/job" || say "some of it failed: the table says what" >&2
    cp "$dir/guest/results.json" "$out/$1.json"
}
if wanted guest; then guest guest; fi
if wanted cuts; then
    say "cuts"
    python3 scripts/work/recovery_cuts.py "$dir" "${CUTS:-100}" "$out/cuts.json"
fi
if wanted simulated; then
    OUT=$out/simulated.jsonl scripts/crash.sh --measured "${SIMULATED:-20000}" || say "some of it failed: the table says what" >&2
fi
again() { wanted again && case " ${AGAIN:-disk databases limited guest} " in *" $1 "*) ;; *) return 1 ;; esac; }
if again disk; then on_disk again-disk; fi
if again databases; then databases again-databases --only sqlite; fi
if again limited; then limited again-limited --only append-fsync,order; fi
# It takes half an hour, all of it as the first time.
if again guest; then guest again-guest; fi
python3 scripts/work/bench_sync.py "$out"
say "docs/benchmarks/sync.md is written"
