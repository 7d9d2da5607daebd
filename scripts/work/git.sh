#!/usr/bin/env bash
# git.sh small|full: git, a build with cargo, SQLite.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
size=${1:-small}
need git sqlite3
begin git
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=n@example.org \
    GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=n@example.org
commits=$([ "$size" = full ] && echo 1000 || echo 200)

with_git() {
    local r=$MNT/repo i begin_ms
    begin_ms=$(now_ms)
    git init -q -b main "$r"
    git -C "$r" config gc.auto 0
    for ((i = 0; i < commits; i++)); do
        mkdir -p "$r/d$((i % 13))"
        printf 'line %s\n' $(seq 1 $((i % 50 + 1))) >"$r/d$((i % 13))/f$((i % 37))"
        printf '%s\n' "$i" >>"$r/log"
        git -C "$r" add -A
        git -C "$r" commit -q -m "commit $i"
        [ $((i % 40)) != 7 ] || git -C "$r" tag "t$i"
    done
    figure "$1: git, $commits commits, s" "$((($(now_ms) - begin_ms) / 1000))"
    git -C "$r" branch side HEAD~50
    git -C "$r" gc -q --aggressive --prune=now
    git -C "$r" fsck --strict --full --no-dangling 2>&1 | { ! grep .; } || wrong "git fsck found something"
    git clone -q --no-hardlinks "$r" "$MNT/clone"
    git clone -q --local "$r" "$MNT/linked"
    again "$1"
    git -C "$r" fsck --strict --full --no-dangling 2>&1 | { ! grep .; } || wrong "git fsck after remount"
    git -C "$MNT/clone" fsck --strict 2>&1 | { ! grep -v '^Checking'; } || wrong "git fsck of the clone"
    for i in 0 7 60 150; do
        git -C "$MNT/clone" checkout -q "HEAD~$((commits - 1 - i))" 2>/dev/null
        [ "$(tail -n 1 "$MNT/clone/log")" = $i ] || wrong "commit $i has something else"
        [ -z "$(git -C "$MNT/clone" status --porcelain)" ] || wrong "checkout of $i is not clean"
        git -C "$MNT/clone" checkout -q main
    done
    [ "$(git -C "$r" rev-list --count HEAD)" = "$commits" ] || wrong "commits are missing"
    [ -z "$(git -C "$r" status --porcelain)" ] || wrong "git status is not clean"
}

with_cargo() {
    find_cargo
    local begin_ms
    begin_ms=$(now_ms)
    if [ "$size" = full ]; then
        git clone -q --no-hardlinks . "$MNT/workspace"
        ( cd "$MNT/workspace" && CARGO_TARGET_DIR=target "$CARGO" build --locked --offline -q --workspace )
        "$MNT/workspace/target/debug/nenrin" version >/dev/null
        figure "$1: cargo build of this workspace, s" "$((($(now_ms) - begin_ms) / 1000))"
        begin_ms=$(now_ms)
        again "$1"
        ( cd "$MNT/workspace" && CARGO_TARGET_DIR=target "$CARGO" build --locked --offline --workspace 2>&1 | { ! grep Compiling; } ) ||
            wrong "cargo builds again what it had built"
    else
        mkdir -p "$MNT/crate/src"
        printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' >"$MNT/crate/Cargo.toml"
        { for i in $(seq 1 60); do echo "pub fn f$i(x: u64) -> u64 { x.wrapping_mul($i) }"; done; } >"$MNT/crate/src/lib.rs"
        echo 'fn main() { println!("{}", small::f7(6)); }' >"$MNT/crate/src/main.rs"
        [ "$(cd "$MNT/crate" && CARGO_TARGET_DIR=target "$CARGO" run -q --offline)" = 42 ] || wrong "the crate does not run"
        again "$1"
        ( cd "$MNT/crate" && CARGO_TARGET_DIR=target "$CARGO" build --offline 2>&1 | { ! grep Compiling; } ) ||
            wrong "cargo builds again what it had built"
        [ "$("$MNT/crate/target/debug/small")" = 42 ] || wrong "the program does not run after a remount"
        figure "$1: cargo, s" "$((($(now_ms) - begin_ms) / 1000))"
    fi
}

with_sqlite() {
    local mode begin_ms rows=$([ "$size" = full ] && echo 2000 || echo 200)
    for mode in DELETE WAL TRUNCATE PERSIST; do
        begin_ms=$(now_ms)
        {
            echo "PRAGMA journal_mode=$mode; PRAGMA synchronous=FULL; CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, b BLOB);"
            echo "CREATE INDEX v ON t(v);"
            for ((i = 1; i <= rows; i++)); do echo "INSERT INTO t(v, b) VALUES(hex(randomblob(20)), randomblob($((i % 9 * 500))));"; done
            echo "DELETE FROM t WHERE id % 3 = 0; UPDATE t SET v = v || 'x' WHERE id % 5 = 0; VACUUM;"
            echo "BEGIN; WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 20000) INSERT INTO t(v) SELECT n FROM c; COMMIT;"
        } | sqlite3 -bail "$MNT/$mode.db" >/dev/null
        figure "$1: SQLite $mode, $rows transactions, s" "$((($(now_ms) - begin_ms) / 1000))"
        sqlite3 "$MNT/$mode.db" "SELECT count(*), sum(length(v)) FROM t" >"$W/$mode.sum"
    done
    again "$1"
    for mode in DELETE WAL TRUNCATE PERSIST; do
        [ "$(sqlite3 "$MNT/$mode.db" 'PRAGMA integrity_check')" = ok ] || wrong "SQLite $mode: integrity_check"
        sqlite3 "$MNT/$mode.db" "SELECT count(*), sum(length(v)) FROM t" | cmp -s - "$W/$mode.sum" || wrong "SQLite $mode: rows differ"
    done
}

for options in cache=writethrough cache=writeback; do
    ! done_before "$options" || continue
    volume "$([ "$size" = full ] && echo 8G || echo 1G)"
    up "$options"
    with_git "$options"
    with_sqlite "$options"
    with_cargo "$options"
    down
    checked
    is_done "$options"
    enough_for_now
done
