#!/usr/bin/env bash
# backup.sh [ROUNDS]: snapshots of databases at work, as docs/DATABASES.md has them made. SQLite commits in four journal modes, and where
# PostgreSQL is installed it does pgbench's transactions; of each snapshot all that was acknowledged before it is there when it is restored.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
rounds=${1:-3}
need python3
begin backup
python3 -c 'import sqlite3' 2>/dev/null || skip "python3 has no sqlite3"
modes=(WAL DELETE TRUNCATE PERSIST)

loads_begin() {
    local mode
    PIDS=()
    mkdir "$MNT/data"
    for mode in "${modes[@]}"; do
        python3 "$HERE/kill.py" sql "$MNT/data/$mode.db" "$W/acks.$mode" "$mode" 2>"$W/load.$mode" & PIDS+=($!)
    done
    for mode in "${modes[@]}"; do
        for _ in $(seq 200); do [ ! -s "$W/acks.$mode" ] || break; sleep 0.05; done
        [ -s "$W/acks.$mode" ] || { cat "$W/load.$mode" >&2; wrong "$mode: nothing was acknowledged"; }
    done
}

loads_end() {
    local pid
    for pid in "${PIDS[@]}"; do
        kill -0 "$pid" 2>/dev/null || { cat "$W"/load.* >&2; wrong "a load ended by itself"; }
        kill "$pid"
        wait "$pid" || true
    done
    PIDS=()
}

with_sqlite() {
    local options=$1 round mode
    rm -f "$W"/acks.*
    volume 1G
    up "$options"
    loads_begin
    for round in $(seq "$rounds"); do
        sleep 0.5
        for mode in "${modes[@]}"; do cp "$W/acks.$mode" "$W/before.$round.$mode"; done
        "$NENRIN" snapshot create "$MNT" "s$round" >/dev/null
    done
    # All files together, beside what goes on.
    for round in $(seq "$rounds"); do
        "$NENRIN" restore "$MNT/data" --at "s$round" --to "$MNT/restored.$round"
        for mode in "${modes[@]}"; do
            python3 "$HERE/kill.py" verify-sql "$MNT/restored.$round/$mode.db" "$W/before.$round.$mode" >"$W/said"
        done
    done
    loads_end
    figure "$options: $rounds snapshots of SQLite in ${#modes[@]} modes" "$(sed 's/^ *//' "$W/said"), the last of them"
    # Not everything passes: the first snapshot does not have what was acknowledged at the end.
    for mode in "${modes[@]}"; do
        python3 "$HERE/kill.py" verify-sql "$MNT/restored.1/$mode.db" "$W/acks.$mode" >"$W/said" 2>&1 &&
            wrong "$mode: a snapshot of long ago has all that was acknowledged since"
        grep -q 'was acknowledged, the last there is' "$W/said" || { cat "$W/said" >&2; wrong "$mode: it fails for another reason"; }
    done
    down
    checked
}

# The server that runs, if one does: nothing that fails leaves it behind.
SERVED=
finish_all() {
    local code=$?
    set +e
    [ -z "$SERVED" ] || runuser -u postgres -- "$bin/pg_ctl" -D "$SERVED" -w -m immediate stop >/dev/null 2>&1
    ( exit "$code" )
    finish
}
trap finish_all EXIT

pg() { runuser -u postgres -- "$@"; }
pg_up() {
    SERVED=$1
    pg "$bin/pg_ctl" -D "$1" -l "$1/log" -w -o "-c listen_addresses= -c unix_socket_directories=$W/socket" start >/dev/null
}
pg_down() {
    pg "$bin/pg_ctl" -D "$SERVED" -w -m fast stop >/dev/null
    SERVED=
}
ask() { pg "$bin/psql" -h "$W/socket" -X -A -t -q -c "$1" postgres; }

with_postgres() {
    local options=$1 seen sums load code=0
    volume 2G
    up "$options"
    mkdir -p "$W/socket" "$MNT/pg"
    chmod 711 "$W"
    chown postgres "$W/socket" "$MNT/pg"
    chmod 700 "$MNT/pg"
    pg "$bin/initdb" -D "$MNT/pg" -A trust --data-checksums >/dev/null
    pg_up "$MNT/pg"
    pg "$bin/pgbench" -h "$W/socket" -i -s 3 -q postgres >/dev/null 2>&1
    pg "$bin/pgbench" -h "$W/socket" -c 4 -j 2 -T 600 -n postgres >"$W/load.pg" 2>&1 & load=$!
    PIDS+=($load)
    sleep 3
    # What others see has been committed.
    seen=$(ask 'SELECT count(*) FROM pgbench_history')
    "$NENRIN" snapshot create "$MNT" running >/dev/null
    sleep 1
    kill -0 $load || { cat "$W/load.pg" >&2; wrong "pgbench ended by itself"; }
    kill $load
    wait $load || true
    PIDS=()
    pg_down
    "$NENRIN" restore "$MNT/pg" --at running --to "$MNT/pg.then"
    # As after a crash: the process that the file tells of runs no more.
    rm -f "$MNT/pg.then/postmaster.pid"
    pg_up "$MNT/pg.then"
    grep -q 'automatic recovery in progress' "$MNT/pg.then/log" || wrong "PostgreSQL had nothing to recover: the snapshot was of no running server"
    sums=$(ask 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)')
    [ "$sums" = t ] || wrong "the balances of the snapshot are not those of its history"
    local then
    then=$(ask 'SELECT count(*) FROM pgbench_history')
    [ "$then" -ge "$seen" ] && [ "$seen" -gt 0 ] || wrong "$seen transactions were seen before the snapshot, $then are in it"
    pg_down
    pg "$bin/pg_checksums" --check -D "$MNT/pg.then" >"$W/said" 2>&1 || code=$?
    [ $code = 0 ] || { cat "$W/said" >&2; wrong "pg_checksums of the snapshot"; }
    figure "$options: a snapshot of PostgreSQL" "$seen transactions seen before it, $then in it"
    down
    checked
}

for options in cache=writethrough cache=writeback; do
    with_sqlite "$options"
done
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
if [ -n "$bin" ] && is_root && command -v runuser >/dev/null; then
    for options in cache=writethrough cache=writeback; do
        with_postgres "$options"
    done
else
    say "   skipped: PostgreSQL, which is not installed here, or not as root"
fi
