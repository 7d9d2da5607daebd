#!/usr/bin/env bash
# postgres.sh prepare|run|end DIR: PostgreSQL with its data in DIR, as installed but for a socket of
# its own; a run is pgbench's standard transactions, 4 clients, for SECONDS (3), for nenrin-bench.
set -euo pipefail
verb=$1 dir=$2
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
[ -n "$bin" ] || { echo "postgres.sh: PostgreSQL is missing: apt-get install postgresql" >&2; exit 1; }
# Unix sockets have short names, and the server does not run as root.
socket=/tmp/nenrin-bench-postgres
as() { runuser -u postgres -- "$@"; }
start() { as "$bin/pg_ctl" -D "$dir" -l "$dir/log" -w -o "-c listen_addresses= -c unix_socket_directories=$socket" start >/dev/null; }
case $verb in
prepare)
    rm -rf "$dir"
    mkdir -p "$dir" "$socket"
    chown postgres "$dir" "$socket"
    chmod 700 "$dir"
    # Every directory above must be passable for the server.
    as test -x "$dir" || { echo "postgres.sh: user postgres cannot enter $dir: give the benchmark a --dir that others may pass" >&2; exit 1; }
    as "$bin/initdb" -D "$dir" -A trust >/dev/null
    start
    as "$bin/pgbench" -h "$socket" -i -s 10 -q postgres >/dev/null 2>&1
    as "$bin/pg_ctl" -D "$dir" -w -m fast stop >/dev/null
    ;;
run)
    start
    trap 'as "$bin/pg_ctl" -D "$dir" -w -m fast stop >/dev/null' EXIT
    as "$bin/pgbench" -h "$socket" -c 4 -j 2 -T "${SECONDS_EACH:-3}" -n postgres 2>/dev/null |
        awk '/^number of transactions actually processed/ { split($NF, n, "/"); done = n[1] }
             /^tps = / { tps = $3 }
             END { if (!tps) exit 1; printf "operations %d seconds %.6f\n", done, done / tps }'
    ;;
end) ;;
esac
