#!/usr/bin/env bash
# rocksdb.sh prepare|run|end DIR: RocksDB's db_bench in DIR: 2,000 of 100,000 values of 100 bytes written
# anew in a run, one at a time, with sync, for nenrin-bench.
set -euo pipefail
verb=$1 dir=$2
bench=$(command -v db_bench || command -v rocksdb_db_bench || true)
[ -n "$bench" ] || { echo "rocksdb.sh: db_bench is missing: apt-get install rocksdb-tools" >&2; exit 1; }
case $verb in
prepare)
    rm -rf "$dir"
    "$bench" --benchmarks=fillseq --db="$dir" --num=100000 --value_size=100 >/dev/null 2>&1
    ;;
run)
    # `overwrite : 12.345 micros/op 81004 ops/sec ...`; fillrandom would want a new database.
    "$bench" --benchmarks=overwrite --db="$dir" --use_existing_db=1 --num=100000 --writes=2000 --value_size=100 --sync=1 2>/dev/null |
        awk '/^overwrite/ { us = $3 } END { if (!us) exit 1; printf "operations 2000 seconds %.6f\n", us * 2000 / 1e6 }'
    ;;
end) ;;
esac
