#!/usr/bin/env bash
# Real programs on a volume: git, SQLite in both journal modes, mmap, two
# programs on one file, unlinked but open files.
#   COMMITS (30)   ROWS (300)
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib-volume.sh
need git sqlite3 python3
commits=${COMMITS:-30} rows=${ROWS:-300}
volume "${SIZE:-256M}"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
export GIT_CONFIG_GLOBAL=/dev/null

for cache in writethrough writeback; do
    up "cache=$cache"
    echo "cache=$cache: git"
    git init -q -b main "$MNT/repo-$cache"
    (
        cd "$MNT/repo-$cache"
        git config core.fsync all
        for i in $(seq "$commits"); do
            mkdir -p "d$((i % 7))"
            seq "$i" $((i * 50)) >"d$((i % 7))/f$i"
            git add -A
            git commit -q -m "commit $i"
        done
        git checkout -q -b side HEAD~5
        git checkout -q main
        git gc -q --prune=now
        git fsck --strict --no-progress
        [ -z "$(git status --porcelain)" ] || wrong "git sees changes"
    )
    for mode in delete wal; do
        echo "cache=$cache: SQLite, journal_mode=$mode"
        db=$MNT/$cache-$mode.db
        sqlite3 "$db" "pragma journal_mode=$mode; create table t(n integer primary key, v blob);" >/dev/null
        for i in $(seq "$rows"); do echo "insert into t values($i, randomblob(500));"; done | sqlite3 "$db"
        [ "$(sqlite3 "$db" 'select count(*) from t; pragma integrity_check;' | tr '\n' ' ')" = "$rows ok " ] || wrong "$db"
    done
    python3 - "$MNT" <<'P'
import mmap, os, sys
path = os.path.join(sys.argv[1], "shared")
with open(path, "wb") as f:
    f.truncate(1 << 20)
a, b = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
m = mmap.mmap(a, 1 << 20)
m[5000:5005] = b"hello"
assert os.pread(b, 5, 5000) == b"hello", "what mmap writes, read(2) does not see"
os.pwrite(b, b"world", 9000)
assert m[9000:9005] == b"world", "what write(2) writes, mmap does not see"
m.flush()
os.unlink(path)
os.pwrite(b, b"still here", 0)
assert os.pread(a, 10, 0) == b"still here"
P
    down
    up
    git -C "$MNT/repo-$cache" fsck --strict --no-progress
    git -C "$MNT/repo-$cache" log --oneline main | wc -l | grep -qx "$commits" || wrong "commits are missing"
    sqlite3 "$MNT/$cache-wal.db" 'pragma integrity_check;' | grep -qx ok || wrong "the database after a remount"
    down
done
echo "git, SQLite, mmap and open files work"
