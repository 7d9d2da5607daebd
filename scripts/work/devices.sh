#!/usr/bin/env bash
# Devices are added, removed and resized while a tree is copied and a database is written; then everything is there,
# and `nenrin check --data` is clean. One that does not answer any more is left out. And what must be refused is.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
begin devices
need python3 sqlite3

# images NAME...: what a volume lies on, as one argument.
images() { local n list=; for n in "$@"; do list+="${list:+,}$W/$n.img"; done; printf %s "$list"; }
start() { "$NENRIN" mount ${2:+-o "$2"} --log "$LOG" "$1" "$MNT"; }
total_mib() { df --output=size -BM "$MNT" | tail -n 1 | tr -dc 0-9; }
clean() {
    "$NENRIN" check --data "$1" >"$W/check.out" 2>&1 || { cat "$W/check.out" >&2; wrong "check of $1"; }
}
# refused TEXT COMMAND...: the command fails with a line that has the text.
refused() {
    local text=$1 code=0
    shift
    "$@" >"$W/refused.out" 2>&1 || code=$?
    [ $code -ne 0 ] || wrong "not refused: $*"
    [ "$(wc -l <"$W/refused.out")" -le 2 ] && grep -q "$text" "$W/refused.out" || { cat "$W/refused.out" >&2; wrong "$*"; }
}

mkdir "$W/tree"
cp -r crates docs scripts "$W/tree"
head -c 10M /dev/urandom >"$W/tree/random"

# Copies the tree again and again, and writes a database; both are looked at while they grow.
work() {
    (
        trap - ERR EXIT
        n=0
        while [ -e "$W/working" ]; do
            n=$((n + 1))
            rm -rf "$MNT/copy.$((n % 2))"
            cp -r "$W/tree" "$MNT/copy.$((n % 2))" && diff -r "$W/tree" "$MNT/copy.$((n % 2))" || { touch "$W/went-wrong"; exit 1; }
        done
    ) 2>>"$W/work.err" &
    COPIER=$!
    python3 - "$MNT/data.db" "$W" <<'P' 2>>"$W/work.err" &
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma synchronous=extra")
db.execute("create table if not exists t (n integer primary key, s blob)")
n = db.execute("select coalesce(max(n), 0) from t").fetchone()[0]
while os.path.exists(sys.argv[2] + "/working"):
    n += 1
    db.execute("insert into t values (?, ?)", (n, bytes([n % 251]) * (n % 3000)))
    # SQLite takes a directory that it cannot open for synced: where the daemon was killed behind the unlink of the journal, nothing was.
    os.close(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY))
    # What was acknowledged.
    with open(sys.argv[2] + "/acknowledged", "w") as f:
        f.write(str(n))
    if n % 40 == 0:
        db.execute("delete from t where n % 3 = 0 and n < ?", (n - 20,))
P
    WRITER=$!
    PIDS=("$COPIER" "$WRITER")
}
begin_work() {
    rm -f "$W/acknowledged"
    touch "$W/working"
    work
    until [ -s "$W/acknowledged" ] && [ -e "$MNT/copy.1/random" ]; do sleep 0.05; done
}
end_work() {
    rm -f "$W/working"
    wait "$COPIER" && wait "$WRITER" || { tail -n 5 "$W/work.err" >&2; wrong "the work failed"; }
    PIDS=()
    [ ! -e "$W/went-wrong" ] || wrong "a copy differs"
}
# The database is whole, and has all that was acknowledged.
verify() {
    diff -r "$W/tree" "$MNT/tree" || wrong "the tree differs"
    [ "$(sqlite3 "$MNT/data.db" 'pragma integrity_check')" = ok ] || wrong "the database is damaged"
    local have
    have=$(sqlite3 "$MNT/data.db" 'select coalesce(max(n), 0) from t')
    [ "$have" -ge "$(cat "$W/acknowledged")" ] || wrong "the database lost what was acknowledged"
    sqlite3 "$MNT/data.db" 'select count(*) from t where length(s) != n % 3000' | grep -qx 0 || wrong "a row differs"
}

for profile in single stripe mirror parity; do
    # Rows with parity need one more.
    more=() least=two
    [ $profile != parity ] || more=(x) least=three
    "$NENRIN" mkfs --profile $profile --sparse --size 128M "$W/a.img" "$W/b.img" "$W/c.img" ${more:+"$W/x.img"} >/dev/null
    start "$(images a b c "${more[@]}")"
    cp -r "$W/tree" "$MNT/tree"
    "$NENRIN" snapshot create "$MNT" before >/dev/null
    before=$(total_mib)
    begin_work
    t=$(now_ms)
    "$NENRIN" device add --size 128M --sparse "$MNT" "$W/d.img" >/dev/null
    figure "$profile: a fourth device added, ms" "$(($(now_ms) - t))"
    [ "$(total_mib)" -gt $((before + before / 6)) ] || wrong "$profile: the space of the fourth device is not there"
    t=$(now_ms)
    "$NENRIN" device remove "$MNT" "$W/b.img" >/dev/null
    figure "$profile: one of four removed, ms" "$(($(now_ms) - t))"
    refused 'not a nenrin volume' "$NENRIN" info "$W/b.img"
    "$NENRIN" resize --device "$W/c.img" "$MNT" 96M >/dev/null
    [ "$(stat -c %s "$W/c.img")" = $((96 << 20)) ] || wrong "$profile: the image was not cut"
    "$NENRIN" resize --device 3 "$MNT" 160M >/dev/null
    end_work
    verify
    diff -r "$W/tree" "$MNT/.nenrin/at/before/tree" || wrong "$profile: the snapshot differs"
    "$NENRIN" umount "$MNT"
    clean "$(images a c d "${more[@]}")"

    # A daemon that is killed in the middle: the next mount goes on.
    start "$(images a c d "${more[@]}")"
    DAEMON=$("$NENRIN" info --json "$MNT" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p')
    begin_work
    "$NENRIN" device remove "$MNT" "$W/d.img" >/dev/null 2>&1 &
    REMOVER=$!
    sleep 0.$((RANDOM % 3))
    rm -f "$W/working"
    cut
    wait "$REMOVER" "$COPIER" "$WRITER" 2>/dev/null || true
    PIDS=()
    rm -f "$W/went-wrong"
    start "$W/a.img"
    verify
    "$NENRIN" device list "$MNT" >"$W/list"
    if grep -q leaving "$W/list"; then
        figure "$profile: killed while a device was removed" "went on"
        "$NENRIN" device remove "$MNT" "$W/d.img" >/dev/null
    elif grep -q d.img "$W/list"; then
        "$NENRIN" device remove "$MNT" "$W/d.img" >/dev/null
    fi
    verify
    "$NENRIN" umount "$MNT"
    clean "$(images a c "${more[@]}")"
    start "$W/a.img"
    verify
    if [ $profile = mirror ] || [ $profile = parity ]; then
        refused "needs $least devices" "$NENRIN" device remove "$MNT" "$W/c.img"
        "$NENRIN" device add --size 128M --sparse "$MNT" "$W/e.img" >/dev/null
        "$NENRIN" umount "$MNT"
        # One is gone for good.
        rm "$W/c.img"
        start "$(images a e "${more[@]}")" degraded
        number=$("$NENRIN" device list "$MNT" | awk '$2 == "absent" { print $1 }')
        "$NENRIN" device remove "$MNT" "$number" >/dev/null
        verify
        "$NENRIN" umount "$MNT"
        clean "$(images a e "${more[@]}")"
        start "$(images a e "${more[@]}")"
        verify
    fi
    "$NENRIN" umount "$MNT"
    rm -f "$W"/*.img
done

# A volume of four devices, beneath the same work and git: one is added, one is removed, and then one does not answer any more, as
# a disk that dies without saying so. The blkio controller lets one byte a second through to it.
GROUP=/sys/fs/cgroup/blkio/nenrin-devices.$$
LOOPS=()
end_loops() {
    if [ -d "$GROUP" ]; then
        # What is held back goes on, or the daemon could not end.
        for loop in "${LOOPS[@]}"; do limit "$loop" 0 || true; done
        while read -r pid; do echo "$pid" >/sys/fs/cgroup/blkio/cgroup.procs; done <"$GROUP/cgroup.procs" 2>/dev/null || true
        rmdir "$GROUP" 2>/dev/null || true
    fi
    for loop in "${LOOPS[@]}"; do losetup -d "$loop" 2>/dev/null || true; done
    LOOPS=()
}
# limit DEVICE BYTES_A_SECOND
limit() {
    for what in read write; do
        echo "$(stat -c '%Hr:%Lr' "$1") $2" >"$GROUP/blkio.throttle.${what}_bps_device"
    done
}
git_work() {
    (
        trap - ERR EXIT
        git init -q "$MNT/repository" && cd "$MNT/repository" && git config gc.auto 0 || { touch "$W/went-wrong"; exit 1; }
        n=0
        while [ -e "$W/working" ]; do
            n=$((n + 1))
            head -c $((n * 700 % 90000)) /dev/urandom >"file.$((n % 50))"
            git add -A && git -c user.name=x -c user.email=x commit -q -m "$n" || { touch "$W/went-wrong"; exit 1; }
        done
    ) 2>>"$W/work.err" &
    PIDS+=($!)
    COMMITTER=$!
}
standing() { "$NENRIN" device list "$MNT" | awk -v n="$1" '$1 == n { print $2 }'; }
without_answer() {
    local profile=$1 all loop t
    for n in 1 2 3 4 5; do
        truncate -s 192M "$W/k$n.img"
        loop=$(losetup --direct-io=on -f --show "$W/k$n.img") || { end_loops; say "   skipped: a device that does not answer: no loop device"; return; }
        LOOPS+=("$loop")
    done
    mkdir "$GROUP"
    all=$(IFS=,; echo "${LOOPS[*]:0:4}")
    "$NENRIN" mkfs --profile "$profile" "${LOOPS[@]:0:4}" >/dev/null
    start "$all"
    DAEMON=$("$NENRIN" info --json "$MNT" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p')
    echo "$DAEMON" >"$GROUP/cgroup.procs"
    cp -r "$W/tree" "$MNT/tree"
    begin_work
    git_work
    "$NENRIN" device add "$MNT" "${LOOPS[4]}" >/dev/null
    "$NENRIN" device remove "$MNT" "${LOOPS[1]}" >/dev/null
    limit "${LOOPS[2]}" 1
    t=$(now_ms)
    until [ "$(standing 3)" = absent ]; do
        [ $(($(now_ms) - t)) -lt 90000 ] || wrong "$profile: a device that does not answer is not left out"
        sleep 0.2
    done
    figure "$profile: a device that does not answer was left out after, ms" "$(($(now_ms) - t))"
    sleep 2
    end_work
    wait "$COMMITTER"
    verify
    git -C "$MNT/repository" fsck --strict >/dev/null || wrong "$profile: the repository is damaged"
    git -C "$MNT/repository" rev-parse HEAD >"$W/head"
    # It does late what it was asked for, and is not read for that.
    limit "${LOOPS[2]}" 0
    verify
    "$NENRIN" umount "$MNT"
    all=${LOOPS[0]},${LOOPS[2]},${LOOPS[3]},${LOOPS[4]}
    start "$all" degraded
    t=$(now_ms)
    until [ "$(standing 3)" = active ]; do
        [ $(($(now_ms) - t)) -lt 60000 ] || wrong "$profile: it is not brought up to date"
        sleep 0.1
    done
    "$NENRIN" umount "$MNT"
    clean "$all"
    # Without another one: what the one that was away has is needed now.
    start "${LOOPS[2]},${LOOPS[3]},${LOOPS[4]}" degraded
    verify
    git -C "$MNT/repository" fsck --strict >/dev/null || wrong "$profile: the repository is damaged"
    [ "$(git -C "$MNT/repository" rev-parse HEAD)" = "$(cat "$W/head")" ] || wrong "$profile: a commit is gone"
    "$NENRIN" umount "$MNT"
    end_loops
    rm -f "$W"/k*.img "$W/head"
}
if is_root && [ -e /sys/fs/cgroup/blkio/blkio.throttle.read_bps_device ] && command -v git >/dev/null; then
    trap 'code=$?; set +e; end_loops; (exit $code); finish' EXIT
    without_answer mirror
    without_answer parity
    trap finish EXIT
else
    say "   skipped: a device that does not answer (needs root, git and the blkio controller of cgroup v1)"
fi

# What must be refused.
"$NENRIN" mkfs --sparse --size 64M "$W/a.img" >/dev/null
"$NENRIN" mkfs --sparse --size 64M "$W/other.img" >/dev/null
mkdir "$W/elsewhere"
"$NENRIN" mount "$W/other.img" "$W/elsewhere"
start "$W/a.img"
refused 'the last device' "$NENRIN" device remove "$MNT" 1
refused 'no device of this volume' "$NENRIN" device remove "$MNT" 5
refused 'mounted' "$NENRIN" device add "$MNT" "$W/other.img"
refused 'umount' "$NENRIN" device add --force "$MNT" "$W/a.img"
"$NENRIN" umount "$W/elsewhere"
refused 'force' "$NENRIN" device add "$MNT" "$W/other.img"
refused 'no such file' "$NENRIN" device add "$MNT" "$W/none.img"
refused 'small' "$NENRIN" device add --size 64K "$MNT" "$W/tiny.img"
[ ! -e "$W/tiny.img" ] || wrong "a file was left"
refused 'no room for a segment\|have to go first' "$NENRIN" resize "$MNT" 64K
"$NENRIN" device add --force "$MNT" "$W/other.img" >/dev/null
head -c 70M /dev/urandom >"$MNT/much"
sync "$MNT/much"
refused 'bytes have to go first' "$NENRIN" device remove "$MNT" "$W/other.img"
refused 'name one with --device' "$NENRIN" resize "$MNT" 80M
"$NENRIN" umount "$MNT"
refused 'not mounted' "$NENRIN" device remove "$W/a.img" 2
clean "$W/a.img"
say "devices come and go beneath real work, with nothing lost"
