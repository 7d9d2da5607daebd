#!/usr/bin/env bash
# kill.sh ROUNDS: the daemon dies by SIGKILL at random moments under SQLite, git and
# files replaced by rename. After each remount everything acknowledged is there; and in the end each load had something acknowledged.
# SEED=N chooses the same moments, as far as the machine keeps time. MOUNTS, mount options with blanks between them, in place
# of the two cache modes: each round takes the next.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
rounds=${1:-3}
need python3 git sqlite3
begin kill
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=n@example.org \
    GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=n@example.org
python3 -c 'import sqlite3' 2>/dev/null || skip "python3 has no sqlite3"

[ -e "$W/round" ] || { echo 0 >"$W/round"; volume 2G; rm -f "$W"/acks.*; }
mkdir -p "$W/beside"
round=$(cat "$W/round")
slowest=0
RANDOM=${SEED:=$(date +%N | sed 's/^0*//')}
say "   SEED=$SEED"
modes=(WAL DELETE TRUNCATE PERSIST)
read -r -a mounts <<<"${MOUNTS:-cache=writethrough cache=writeback}"
while [ "$round" -lt "$rounds" ]; do
    time_left || { say "   $round of $rounds rounds so far"; exit 75; }
    options=${mounts[$((round % ${#mounts[@]}))]}
    # Each mode has its own database; it grows from round to round.
    mode=${modes[$((round / 2 % 4))]}
    up "$options"
    DAEMON=$(daemon_pid)
    PIDS=()
    python3 "$HERE/kill.py" sql "$MNT/$mode.db" "$W/acks.$mode" $mode 2>"$W/load.sql" & PIDS+=($!)
    python3 "$HERE/kill.py" git "$MNT/repo" "$W/acks.git" 2>"$W/load.git" & PIDS+=($!)
    python3 "$HERE/kill.py" files "$MNT/files" "$W/acks.files" 2>"$W/load.files" & PIDS+=($!)
    wait_ms=$((RANDOM * RANDOM % 5000 + 700))
    sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
    kill -0 "$DAEMON" 2>/dev/null || wrong "the daemon ended by itself in round $round"
    for pid in "${PIDS[@]}"; do
        kill -0 "$pid" 2>/dev/null || { cat "$W"/load.* >&2; wrong "a load ended before the daemon was killed"; }
    done
    cut
    # Each load meets the dead volume and ends.
    for pid in "${PIDS[@]}"; do
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" || true
    done
    PIDS=()
    cp --reflink=auto --sparse=always "$IMG" "$W/beside/killed.img"
    begin_ms=$(now_ms)
    up "$options"
    took=$(($(now_ms) - begin_ms))
    [ "$took" -le "$slowest" ] || slowest=$took
    say "   round $round, $options, killed after $wait_ms ms, mounted again in $took ms"
    [ ! -e "$W/acks.$mode" ] || python3 "$HERE/kill.py" verify-sql "$MNT/$mode.db" "$W/acks.$mode"
    python3 "$HERE/kill.py" verify-git "$MNT/repo" "$W/acks.git"
    python3 "$HERE/kill.py" verify-files "$MNT/files" "$W/acks.files"
    for other in "${modes[@]}"; do
        [ ! -e "$W/acks.$other" ] || python3 "$HERE/kill.py" verify-sql "$MNT/$other.db" "$W/acks.$other" >/dev/null
    done
    down
    checked
    rm -f "$W/beside/killed.img"
    round=$((round + 1))
    echo "$round" >"$W/round"
done
count() { { cat "$@" 2>/dev/null || true; } | wc -l; }
acks="$(count "$W"/acks.[A-Z]*) $(count "$W/acks.git") $(count "$W/acks.files")"
case " $acks " in *" 0 "*) wrong "nothing was acknowledged to some load (SQLite, git, files: $acks)" ;; esac
figure "acknowledged: transactions of SQLite, commits of git, files" "${acks// /, }"
figure "rounds, slowest mount after SIGKILL in ms" "$round, $slowest"
