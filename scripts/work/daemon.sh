#!/usr/bin/env bash
# daemon.sh signals|limits|device: the daemon ends, is short of something, or its device is in trouble.
# Beside it another volume is at work all the time, and must not notice; nor may the kernel.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
part=$1
need python3 prlimit mountpoint
begin "daemon-$part"
LOADS=$HERE/daemon.py
# Nothing that was stopped stays so.
UNDER_DAEMON=
finish_all() {
    local code=$?
    set +e
    # It may have ended a moment ago, which is no failure.
    [ -z "$UNDER_DAEMON" ] || kill -CONT "$UNDER_DAEMON" 2>/dev/null
    ( exit "$code" )
    finish
}
trap finish_all EXIT
OTHER=$W/other

# What the kernel says in its log from here on; nothing where it may not be read.
kernel_begins() {
    KERNEL=unreadable
    dmesg >"$W/kernel" 2>/dev/null || return 0
    KERNEL=$(sed -n 's/^\[ *\([0-9]*\.[0-9]*\)\].*/\1/p' "$W/kernel" | tail -n 1)
    KERNEL=${KERNEL:-0}
}

# No oops, no task that hangs, no trouble of any other file system or device meanwhile.
kernel_is_well() {
    [ "$KERNEL" != unreadable ] || { left_out "the kernel's log, which may not be read here"; return 0; }
    dmesg | awk -v since="$KERNEL" '{ t = $0; sub(/^\[ */, "", t); sub(/\].*/, "", t) } t + 0 > since + 0' >"$W/kernel"
    ! grep -E 'BUG:|Oops|general protection|WARNING:|Call Trace|blocked for more than|soft lockup|hard LOCKUP|rcu.*stall|I/O error|(EXT[234]-fs|XFS|BTRFS|F2FS-fs|FAT-fs|SQUASHFS|overlayfs).*([Ee]rror|[Cc]orrupt)|Remounting filesystem read-only' "$W/kernel" >&2 ||
        wrong "the kernel's log says so"
    figure "lines of the kernel's log meanwhile, none of them bad" "$(wc -l <"$W/kernel")"
}

# What cannot be tried here: test.sh shows it behind the result.
left_out() { say "   skipped: $*"; }

other_begins() {
    kernel_begins
    mkdir -p "$OTHER"
    "$NENRIN" mkfs --sparse --size 256M "$W/other.img" >/dev/null
    "$NENRIN" mount "$W/other.img" "$OTHER"
    mkfifo "$W/end"
    python3 "$LOADS" loop "$OTHER" <"$W/end" >"$W/other.out" 2>&1 & OTHER_PID=$!
    PIDS+=("$OTHER_PID")
    exec 9>"$W/end"
}

other_is_well() {
    kill -0 "$OTHER_PID" 2>/dev/null || { cat "$W/other.out" >&2; wrong "the work on the other volume has ended"; }
}

other_ends() {
    echo >&9
    exec 9>&-
    wait "$OTHER_PID" || { cat "$W/other.out" >&2; wrong "the work on the other volume failed"; }
    figure "rounds of work on the other volume meanwhile" "$(cat "$W/other.out")"
    "$NENRIN" umount "$OTHER" || wrong "umount of the other volume: exit $?"
    "$NENRIN" check --data "$W/other.img" >"$W/said" 2>&1 || wrong "check of the other volume: exit $?, $(cat "$W/said")"
    kernel_is_well
}

# ends PID SECONDS: the process is gone by then.
ends() {
    local _
    for _ in $(seq $(($2 * 20))); do
        # One that nobody waits for yet has ended all the same.
        [ "$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null || true)" ] || return 0
        ! grep -qs '^State:.Z' "/proc/$1/status" || return 0
        sleep 0.05
    done
    return 1
}

# within SECONDS COMMAND...: what waits for a device that stands still cannot be killed, so it is not waited for.
within() {
    local seconds=$1 pid
    shift
    "$@" >"$W/within" 2>&1 & pid=$!
    ends $pid "$seconds" || return 1
    wait $pid
}

wait_for() {
    local _
    for _ in $(seq 200); do "$@" && return; sleep 0.05; done
    wrong "waited in vain for: $*"
}

# fails_with CODE COMMAND...: ends with that errno, in the language of strerror(3).
fails_with() {
    local text=$1 said
    shift
    ! said=$("$@" 2>&1) || wrong "works, and should not: $*"
    [[ "$said" = *"$text"* ]] || wrong "$*: $said, and not: $text"
}

acked_begins() {
    rm -f "$W/acks"
    python3 "$LOADS" acked "$MNT/acked" "$W/acks" >"$W/acked.out" 2>&1 & ACKED=$!
    PIDS+=("$ACKED")
    wait_for test -s "$W/acks"
}
acked_ends() {
    ends "$ACKED" 60 || wrong "a program that writes hangs"
    grep -qE "^($1)$" "$W/acked.out" || wrong "the program that writes got $(cat "$W/acked.out"), not $1"
}
# A substitution among arguments would lose its exit code.
acked_verified() {
    local told
    told=$(python3 "$LOADS" verify "$MNT/acked" "$W/acks") || wrong "$1: what was acknowledged is not there: $told"
    figure "$1" "$told"
}
# Once a run: what is missing is noticed.
loss_is_noticed() {
    mkdir -p "$W/lost"
    cp "$MNT/acked" "$W/lost/acked"
    printf 'other bytes' | dd of="$W/lost/acked" conv=notrunc status=none
    ! python3 "$LOADS" verify "$W/lost/acked" "$W/acks" >/dev/null 2>&1 || wrong "what was acknowledged and is gone is not noticed"
    rm -r "$W/lost"
}

# --- signals ---

with_sigkill() {
    volume 512M
    up
    DAEMON=$(daemon_pid)
    acked_begins
    exec 8>"$MNT/open"
    sleep 0.5
    cut
    acked_ends 'ECONNABORTED|ENOTCONN'
    fails_with 'not connected' stat "$MNT/acked"
    exec 8>&- || true
    other_is_well
    fails_with 'had ended' "$NENRIN" info "$MNT"
    # Mounting again is all that is needed.
    up
    acked_verified "SIGKILL"
    loss_is_noticed
    down
    checked
    # A dead mount can be unmounted, too, and says what follows.
    up
    DAEMON=$(daemon_pid)
    cut
    "$NENRIN" umount "$MNT" 2>"$W/said"
    grep -q 'had ended.*recovers' "$W/said" || wrong "umount of a dead mount says: $(cat "$W/said")"
    ! mountpoint -q "$MNT" || wrong "still mounted"
    checked
}

with_sigterm() {
    local options
    for options in cache=writethrough cache=writeback; do
        volume 512M
        up "$options"
        DAEMON=$(daemon_pid)
        seq 100000 >"$MNT/not-synced"
        sum=$(seq 100000 | cksum)
        kill -TERM "$DAEMON"
        ends "$DAEMON" 20 || wrong "SIGTERM does not end it"
        ! mountpoint -q "$MNT" || wrong "SIGTERM leaves the mount"
        up "$options"
        [ "$(cksum <"$MNT/not-synced")" = "$sum" ] || wrong "$options: SIGTERM lost what was written"
        "$NENRIN" info "$MNT" | grep -q 'clean unmount' || wrong "SIGTERM is no clean end"
        # With a program that goes on using it: not waited for without end, and nothing acknowledged is lost.
        DAEMON=$(daemon_pid)
        acked_begins
        kill -TERM "$DAEMON"
        ends "$DAEMON" 20 || wrong "SIGTERM waits for a program without end"
        acked_ends 'ECONNABORTED|ENOTCONN|EIO|EROFS'
        grep -q 'still use the volume' "$LOG" || wrong "the log does not say why"
        up
        acked_verified "$options: SIGTERM while in use"
        down
        checked
    done
}

run_signals() {
    other_begins
    with_sigkill
    with_sigterm
    other_ends
}

# --- limits ---

cpu_ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

without_descriptors() {
    local open before i
    volume 512M
    up
    DAEMON=$(daemon_pid)
    # None beyond the first number that is free.
    open=0
    while [ -e "/proc/$DAEMON/fd/$open" ]; do open=$((open + 1)); done
    prlimit --pid "$DAEMON" --nofile="$open:$(prlimit --pid "$DAEMON" --nofile --noheadings -o HARD | tr -d ' ')"
    before=$(cpu_ticks "$DAEMON")
    # Files need none.
    mkdir "$MNT/d"
    for i in $(seq 300); do echo "$i" >"$MNT/d/$i"; done
    sync "$MNT/d/300"
    [ "$(cat "$MNT"/d/* | wc -l)" = 300 ] || wrong "files are missing"
    # Commands do: they say something, or wait, and the daemon does not burn the processor meanwhile.
    before=$(cpu_ticks "$DAEMON")
    # One descriptor was set aside for who asks next.
    timeout 3 "$NENRIN" info "$MNT" >/dev/null || true
    timeout 3 "$NENRIN" info "$MNT" >"$W/said" 2>&1 && wrong "info works without a descriptor"
    burnt=$(($(cpu_ticks "$DAEMON") - before))
    [ "$burnt" -lt 60 ] || wrong "the daemon burnt $burnt hundredths of a second in 3 seconds"
    grep -q 'descriptor' "$LOG" || wrong "the log does not say that descriptors are short"
    prlimit --pid "$DAEMON" --nofile=1024:
    timeout 20 "$NENRIN" info "$MNT" >/dev/null || wrong "info does not come back"
    down
    checked
    # A daemon that cannot even start says so in a line.
    code=0
    ( ulimit -n 6; "$NENRIN" mount "$IMG" "$MNT" ) >"$W/said" 2>&1 || code=$?
    [ $code != 0 ] && grep -qi 'too many open files' "$W/said" && [ "$(wc -l <"$W/said")" = 1 ] || wrong "with 6 descriptors: $code, $(cat "$W/said")"
    ! mountpoint -q "$MNT" || wrong "mounted with 6 descriptors"
    figure "out of descriptors" "files work, commands wait, mounting says it"
}

# group NAME MIB WHAT: a control group with a limit of memory. Fails, and says that WHAT is left out, where none can
# be made: without root, or in a container that was given no groups.
group() {
    local mib=$2 limit
    GROUP=/sys/fs/cgroup/nenrin-$1-$$ limit=memory.max
    [ ! -d /sys/fs/cgroup/memory ] || GROUP=/sys/fs/cgroup/memory/nenrin-$1-$$ limit=memory.limit_in_bytes
    # Under version 2 a group has the limits that its parent hands on.
    [ $limit != memory.max ] || echo +memory 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true
    mkdir "$GROUP" 2>/dev/null && echo "${mib}M" 2>/dev/null >"$GROUP/$limit" && return
    rmdir "$GROUP" 2>/dev/null || true
    left_out "$3: no control group can be made here"
    return 1
}
enter() { echo "$1" >"$GROUP/cgroup.procs"; }
leave_group() { sleep 0.2; rmdir "$GROUP" 2>/dev/null || true; }

with_little_memory() {
    local options
    for options in cache=writethrough cache=writeback; do
        group daemon 48 "the memory limit of the daemon" || return 0
        # Not left of a ||: there nothing that goes wrong would end it.
        little_memory "$options"
    done
}

little_memory() {
    local options=$1 end=lives
    volume 1G
    # A third of what its caches may take by their defaults. It lives, or it is killed, which is a power cut.
    ( enter "$BASHPID"; exec "$NENRIN" mount -o "$(mount_options "$options")" --log "$LOG" "$IMG" "$MNT" )
    DAEMON=$(daemon_pid)
    acked_begins
    python3 "$HERE/ops.py" "$MNT/work" 3000 1 >"$W/load" 2>&1 || true
    timeout 120 dd if=/dev/zero of="$MNT/large" bs=1M count=300 conv=fsync 2>"$W/load" || true
    if kill -0 "$DAEMON" 2>/dev/null; then
        kill "$ACKED"
        wait "$ACKED" || true
        [ "$(stat -c %s "$MNT/large")" = $((300 << 20)) ] || wrong "the large file is short, and the daemon lives"
        down
    else
        end=killed
        acked_ends 'ECONNABORTED|ENOTCONN'
    fi
    leave_group
    other_is_well
    up
    acked_verified "$options, 48 MiB for the daemon: it $end"
    down
    checked
}

# 100,000 files made, told of and looked at by a daemon with little memory: what it knows of each, what of the index is not yet written,
# and its answers take hardly any.
with_many_files() {
    local begin told
    volume 1G
    group daemon 48 "many files of a daemon with little memory" || return 0
    ( enter "$BASHPID"; exec "$NENRIN" mount -o "$(mount_options)" --log "$LOG" "$IMG" "$MNT" )
    DAEMON=$(daemon_pid)
    "$NENRIN" snapshot create "$MNT" before >/dev/null
    begin=$(now_ms)
    python3 -c '
import os, sys
for d in range(50):
    os.mkdir(f"{sys.argv[1]}/{d}")
    for f in range(2000): os.close(os.open(f"{sys.argv[1]}/{d}/a name of some length {f}", os.O_CREAT | os.O_WRONLY))' "$MNT" || wrong "100,000 files cannot be made"
    kill -0 "$DAEMON" 2>/dev/null || wrong "making 100,000 files has killed the daemon"
    figure "100,000 files made, the daemon in 48 MiB, ms" "$(($(now_ms) - begin))"
    figure "its resident memory then, KiB" "$(awk '/^Rss:/ { print $2 }' "/proc/$DAEMON/smaps_rollup")"
    begin=$(now_ms)
    told=$("$NENRIN" diff "$MNT" before 2>"$W/said" | wc -l) || true
    kill -0 "$DAEMON" 2>/dev/null || wrong "a diff of 100,000 files has killed the daemon: $(cat "$W/said")"
    [ "$told" = 100050 ] || wrong "diff told of $told files and directories, not of 100,050"
    figure "a diff of them, ms" "$(($(now_ms) - begin))"
    "$NENRIN" segments "$MNT" >/dev/null || wrong "segments fails"
    other_is_well
    down
    leave_group
    checked
}

with_dirty_mappings() {
    local options
    for options in cache=writethrough cache=writeback; do
        volume 1G
        up "$options"
        group program 64 "dirty mappings in little memory" || { down; return 0; }
        begin_ms=$(now_ms)
        ( enter "$BASHPID"; exec timeout 200 python3 "$LOADS" dirty "$MNT/mapped" 200 ) >"$W/said" 2>&1 || wrong "$options: dirty mappings: $(tail -n 1 "$W/said")"
        other_is_well
        again "$options"
        cmp <(python3 -c '
import sys
for at in range(0, 200 << 20, 4096): sys.stdout.buffer.write((at + 1).to_bytes(8, "little") + bytes(4088))') "$MNT/mapped" || wrong "$options: mapped pages are lost"
        figure "$options: 200 MiB of mapped pages dirtied in 64 MiB, ms" "$(($(now_ms) - begin_ms))"
        leave_group
        down
        checked
    done
}

run_limits() {
    other_begins
    without_descriptors
    with_little_memory
    with_many_files
    with_dirty_mappings
    other_ends
}

# --- device ---

# The device lies on another volume, whose daemon can be stopped or killed.
inner_begins() {
    UNDER=$W/under
    mkdir -p "$UNDER"
    rm -f "$W/under.img"
    "$NENRIN" mkfs --sparse --size 1G "$W/under.img" >/dev/null
    "$NENRIN" mount -o "$(mount_options)" "$W/under.img" "$UNDER"
    UNDER_DAEMON=$("$NENRIN" info --json "$UNDER" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p')
    IMG=$UNDER/inner.img
    "$NENRIN" mkfs --size 256M "$IMG" >/dev/null
}
inner_ends() {
    "$NENRIN" umount "$UNDER"
    UNDER_DAEMON=
    IMG=$W/volume.img
}

with_vanished_device() {
    local options
    for options in cache=writethrough cache=writeback; do
        inner_begins
        : >"$LOG"
        up "$options"
        DAEMON=$("$NENRIN" info --json "$MNT" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p')
        seq 1000 >"$MNT/before"
        sync "$MNT/before"
        acked_begins
        kill -9 "$UNDER_DAEMON"
        acked_ends 'EIO|EROFS'
        # From then on nothing is acknowledged, and whoever asks is told why.
        fails_with 'error' sh -c "echo x >'$MNT/after' && sync '$MNT/after'"
        kill -0 "$DAEMON" || wrong "the daemon has ended"
        timeout 20 "$NENRIN" info "$MNT" >"$W/said" 2>&1 || true
        grep -q 'NOT GOOD' "$W/said" && grep -q 'a write failed, so the volume is read-only' "$W/said" || wrong "info does not say it: $(cat "$W/said")"
        # The daemon looks every tenth of a second, on an idle machine.
        wait_for grep -q 'inner.img: a write failed, so the volume is read-only: .*; unmount' "$LOG"
        timeout 10 ls "$MNT" >/dev/null || wrong "what is in memory cannot be listed"
        other_is_well
        code=0
        timeout 60 "$NENRIN" umount "$MNT" >"$W/said" 2>&1 || code=$?
        [ $code != 124 ] || wrong "umount hangs"
        [ $code != 0 ] && [ -s "$W/said" ] || wrong "umount of a failed volume says nothing: $code"
        ! mountpoint -q "$MNT" || wrong "still mounted"
        ends "$DAEMON" 20 || wrong "the daemon does not end"
        # The device is back.
        "$NENRIN" mount -o "$(mount_options)" "$W/under.img" "$UNDER"
        up "$options"
        acked_verified "$options: device gone and back"
        [ "$(cksum <"$MNT/before")" = "$(seq 1000 | cksum)" ] || wrong "a synced file differs"
        "$NENRIN" info "$MNT" | grep -q 'health *good' || wrong "not good after the next mount"
        down
        checked
        inner_ends
    done
}

with_slow_device() {
    inner_begins
    : >"$LOG"
    up
    seq 1000 >"$MNT/before"
    sync "$MNT/before"
    acked_begins
    before=$(wc -l <"$W/acks")
    # 1 ms of a second: what took 0.1 ms takes 100 and more, a thousand times as long.
    ( while :; do kill -STOP "$UNDER_DAEMON" || exit; sleep 1; kill -CONT "$UNDER_DAEMON"; sleep 0.001; done ) 2>/dev/null & SLOW=$!
    PIDS+=("$SLOW")
    sleep 4
    other_is_well
    # Who only looks is not held up by who waits for the device.
    worst=$(python3 "$LOADS" slowest "$MNT" 4)
    figure "device slow: the longest that a file took to make, ms" "$worst"
    timeout 10 "$NENRIN" info "$MNT" >/dev/null || wrong "info hangs with a slow device"
    [ "$(wc -l <"$W/acks")" -gt "$before" ] || wrong "nothing is acknowledged any more"
    # And one that does not answer at all for a while. Content is the kernel's to keep.
    cat "$MNT/before" >/dev/null
    kill "$SLOW"
    wait "$SLOW" 2>/dev/null || true
    kill -STOP "$UNDER_DAEMON"
    stood=$(wc -l <"$W/acks")
    within 10 cat "$MNT/before" || wrong "what is cached cannot be read while the device stands still"
    # For longer than the daemon leaves between two looks at the image, where it gets stuck itself.
    for _ in $(seq 6); do
        within 10 "$NENRIN" info "$MNT" || wrong "info hangs while the device stands still"
        sleep 0.5
    done
    [ "$(wc -l <"$W/acks")" -le $((stood + 1)) ] || wrong "something was acknowledged while the device stood still"
    other_is_well
    kill -CONT "$UNDER_DAEMON"
    sleep 1
    kill -0 "$ACKED" || wrong "the program that writes got $(cat "$W/acked.out") from a slow device"
    [ "$(wc -l <"$W/acks")" -gt "$stood" ] || wrong "it does not go on"
    kill "$ACKED"
    wait "$ACKED" || true
    "$NENRIN" info "$MNT" | grep -q 'health *good' || wrong "not good with a slow device"
    again
    acked_verified "slow device"
    down
    checked
    inner_ends
}

run_device() {
    other_begins
    with_vanished_device
    with_slow_device
    other_ends
}

"run_$part"
