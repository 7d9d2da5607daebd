#!/usr/bin/env bash
# suites.sh SUITE SECONDS: public test suites on a mount. SUITE is pjdfstest, fsx, fio or stress-ng.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
suite=$1 seconds=${2:-30}
case $suite in pjdfstest | fsx) need=; for d in target/tools/bin "${CARGO_HOME:-$HOME/.cargo}/bin"; do PATH="$PATH:$PWD/$d"; PATH="$PATH:$d"; done ;; esac
[ "$suite" != pjdfstest ] || is_root || skip "pjdfstest needs root"
if ! command -v "$suite" >/dev/null; then
    case $suite in
    pjdfstest) skip "get it with: cargo install --root target/tools --locked pjdfstest@0.2.2   (needs libacl1-dev)" ;;
    fsx) skip "get it with: cargo install --root target/tools --locked fsx@0.3.0" ;;
    *) skip "$suite is missing" ;;
    esac
fi
begin "$suite"

run_pjdfstest() {
    need useradd
    id nenrin-test >/dev/null 2>&1 || useradd -M -s /usr/sbin/nologin nenrin-test
    mkdir -p "$W/other"
    chmod 755 "$W"   # other users come through
    cat >"$W/pjdfstest.toml" <<T
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["nenrin-test", "nenrin-test"]]
T
    for options in cache=writethrough cache=writeback; do
        volume 512M
        up "$options"
        timeout 300 pjdfstest -c "$W/pjdfstest.toml" -p "$MNT" -s "$W/other" >"$W/out" 2>&1 || true
        # What is known to differ, each with its reason: none.
        grep -E 'FAILED|panicked|failed' "$W/out" >"$W/failures" || true
        tail -n 1 "$W/out"
        grep -q 'pass' "$W/out" || { tail "$W/out"; wrong "pjdfstest did not run"; }
        if grep -qE '[1-9][0-9]* failed|FAILED' "$W/out"; then cat "$W/failures" >&2; wrong "$options: pjdfstest"; fi
        down
        checked
    done
}

run_fsx() {
    local seed options end
    for options in cache=writethrough cache=writeback; do
        volume 512M
        up "$options"
        end=$((SECONDS + seconds / 2))
        seed=1
        while :; do
            timeout 120 fsx -N 3000 -S $seed "$MNT/fsx.$seed" >"$W/out" 2>&1 || { tail -n 40 "$W/out" >&2; wrong "$options: fsx -N 3000 -S $seed"; }
            rm -f "$MNT/fsx.$seed"
            [ $SECONDS -lt $end ] || break
            seed=$((seed + 1))
        done
        figure "$options: fsx, seeds of 3000 operations" $seed
        down
        checked
    done
}

run_fio() {
    local options engine
    for options in cache=writethrough cache=writeback; do
        volume 1G
        up "$options"
        for engine in "psync 0" "libaio 1" "mmap 0"; do
            set -- $engine
            for rw in randwrite write; do
                common=(--name="v-$1-$rw" --directory="$MNT" --ioengine="$1" --direct="$2" --rw=$rw --bs=4k-64k --bs_unaligned=0 --size=48M
                    --iodepth=8 --verify=crc32c --verify_fatal=1 --randseed=7 --fallocate=none --output="$W/out")
                ( cd "$W" && timeout 200 fio "${common[@]}" --do_verify=0 ) >/dev/null 2>&1 || { cat "$W/out" >&2; wrong "$options: fio $1 $rw writing"; }
                again "$options"
                ( cd "$W" && timeout 200 fio "${common[@]}" --verify_only ) >/dev/null 2>&1 || { cat "$W/out" >&2; wrong "$options: fio $1 $rw verifying"; }
            done
        done
        down
        checked
    done
}

run_stress() {
    local options stressor each bad=
    # Left out, with the reason:
    #   binderfs ramfs quota: mount file systems of their own, or need quota
    #   chdir: 8192 open directories, more than some limits of open files allow
    #   file-ioctl: only tries what each ioctl answers on any file system
    local names="access acl chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl fiemap filename flock fpunch fstat
        getdent hdd inode-flags io iomix link lockf lockofd locka mknod mmapaddr msync open readahead rename rawdev seek revio sendfile
        splice symlink sync-file touch truncate unlink utime verity xattr aio aiol eventfd"
    each=$((seconds / 90 + 1))
    for options in cache=writethrough cache=writeback; do
        volume 2G
        up "$options"
        turn=0
        for stressor in $names; do
            time_left || break
            # In little time each runs in one cache mode, in turn.
            turn=$((turn + 1))
            [ "$seconds" -ge 90 ] || [ $((turn % 2)) = "$([ "$options" = cache=writeback ] && echo 0 || echo 1)" ] || continue
            code=0
            mkdir -p "$MNT/stress"
            timeout 120 stress-ng --"$stressor" 2 -t "$each" --verify --temp-path "$MNT/stress" --no-rand-seed >"$W/out" 2>&1 || code=$?
            # 3: not supported here, 4: not implemented, 1 with "unrecognized": unknown to this version.
            case $code in
            0 | 3 | 4) ;;
            *) grep -qE 'unrecognized|unknown option' "$W/out" || { bad="$bad $stressor"; grep -E 'fail|error' "$W/out" | head -n 4 >&2; } ;;
            esac
            kill -0 "$(daemon_pid)" || wrong "the daemon ended under $stressor"
            rm -rf "$MNT/stress"
        done
        [ -z "$bad" ] || wrong "$options: stress-ng:$bad"
        down
        checked
    done
}

case $suite in
stress-ng) run_stress ;;
*) "run_$suite" ;;
esac
