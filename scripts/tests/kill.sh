#!/usr/bin/env bash
<<<<<<< HEAD
# The daemon is killed with SIGKILL at random moments under SQLite and git
# load. After each remount everything acknowledged is there, and SQLite, git
# and nenrin check find nothing wrong.
#   ROUNDS (6)   SEED
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib-volume.sh
need git sqlite3
rounds=${ROUNDS:-6}
RANDOM=${SEED:-$$}
echo "SEED=${SEED:-$$}"
volume "${SIZE:-256M}"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
export GIT_CONFIG_GLOBAL=/dev/null
up
for mode in delete wal; do
    sqlite3 "$MNT/$mode.db" "pragma journal_mode=$mode; create table t(n integer primary key, v blob);" >/dev/null
    echo 0 >"$DIR/$mode.ack"
done
git init -q -b main "$MNT/repo"
git -C "$MNT/repo" config core.fsync all
git -C "$MNT/repo" config gc.auto 0
echo 0 >"$DIR/git.ack"
# git init syncs nothing.
"$NENRIN" checkpoint create "$MNT" >/dev/null

# Each writes down, outside of the volume, what was acknowledged.
database() {
    local n
    n=$(cat "$DIR/$1.ack")
    while n=$((n + 1)); do
        # With the rollback journal only "extra" makes the end of a transaction durable.
        sqlite3 "$MNT/$1.db" "pragma synchronous=extra; insert or replace into t values($n, randomblob(700));" || return 0
        echo "$n" >"$DIR/$1.ack.new" && mv "$DIR/$1.ack.new" "$DIR/$1.ack"
    done
}
repository() {
    local n
    n=$(cat "$DIR/git.ack")
    cd "$MNT/repo" || return 0
    rm -f .git/index.lock .git/HEAD.lock .git/refs/heads/main.lock
    while n=$((n + 1)); do
        echo "$n" >"f$((n % 10))" && git add -A && git commit -q -m "$n" || return 0
        # git syncs what a branch says, but not its renaming into place.
        sync .git .git/refs/heads || return 0
        echo "$n" >"$DIR/git.ack.new" && mv "$DIR/git.ack.new" "$DIR/git.ack"
    done
}

for round in $(seq "$rounds"); do
    database delete 2>/dev/null &
    database wal 2>/dev/null &
    repository 2>/dev/null &
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    sleep 0.3
    cut
    wait
    "$NENRIN" umount "$MNT" 2>/dev/null || true
    check
    up
    for mode in delete wal; do
        ack=$(cat "$DIR/$mode.ack")
        found=$(sqlite3 "$MNT/$mode.db" 'select coalesce(max(n), 0) from t; select count(*) from t; pragma integrity_check;' | tr '\n' ' ')
        read -r max count verdict <<<"$found"
        [ "$verdict" = ok ] || wrong "round $round, $mode: $found"
        [ "$max" -ge "$ack" ] && [ "$count" -ge "$ack" ] || wrong "round $round, $mode: $ack acknowledged, $count there"
    done
    git -C "$MNT/repo" fsck --strict --no-progress >/dev/null || wrong "round $round: git fsck"
    ack=$(cat "$DIR/git.ack")
    there=$(git -C "$MNT/repo" log -1 --format=%s 2>/dev/null || echo 0)
    [ "${there:-0}" -ge "$ack" ] || wrong "round $round: commit $ack was acknowledged, $there is there"
    # Start again from what is there: an operation cut off may or may not have counted.
    echo "${there:-0}" >"$DIR/git.ack"
    git -C "$MNT/repo" reset -q --hard 2>/dev/null || true
done
acks=$(cat "$DIR/delete.ack" "$DIR/wal.ack" "$DIR/git.ack" | tr '\n' ' ')
down
echo "$rounds kills, nothing acknowledged was lost (transactions: $acks)"
=======
# Three times SIGKILL under SQLite, git and files replaced by rename.
exec "$(dirname "$0")/../work/kill.sh" 3
>>>>>>> w/work
