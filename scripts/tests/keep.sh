#!/usr/bin/env bash
# A build tree that keeps no history, on a real mount: what snapshots show of it is whole, all else says that it is not known, and
# it takes no room; what is beside it keeps everything.
set -eu
cd "$(dirname "$0")/../.."
[ -w /dev/fuse ] || { echo "skipped: no /dev/fuse"; exit 77; }
[ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null || { echo "skipped: no fusermount3"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. scripts/lib.sh
nenrin=$(release)/nenrin
[ -x "$nenrin" ] || cargo build --locked --release -q -p nenrin
dir=$(mktemp -d)
cleanup() { "$nenrin" umount "$dir/m" >/dev/null 2>&1 || true; rm -rf "$dir"; }
trap cleanup EXIT
fail() { echo "keep: $*"; exit 1; }
set_history() { python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.nenrin.history", sys.argv[2].encode())' "$@"; }
get_history() { python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "user.nenrin.history").decode())' "$@"; }
# Says "Stale file handle", and not something else.
stale() { local said; said=$("$@" 2>&1) && fail "$* says $said"; grep -q 'Stale file handle' <<<"$said" || fail "$*: $said"; }

"$nenrin" mkfs --size 256M "$dir/image" >/dev/null
mkdir "$dir/m"
"$nenrin" mount "$dir/image" "$dir/m"
cd "$dir/m"
mkdir -p project/target project/src
set_history project/target none
python3 - <<'END' && fail "an impossible value was taken"
import os, sys
try:
    os.setxattr("project/target", "user.nenrin.history", b"some")
except OSError as e:
    sys.exit(e.errno)
END
build() {
    mkdir -p project/target/debug/deps
    for n in $(seq 20); do head -c 200000 /dev/urandom >project/target/debug/deps/o$n; done
    echo "built $1" >project/target/debug/stamp
    ln -sf "deps/o1" project/target/debug/program
}
edit() { echo "source $1" >project/src/main.rs; }
edit 1; build 1
[ "$(get_history project/target/debug/deps/o7)" = none ] || fail "what was made below has not inherited"
"$nenrin" checkpoint create . >/dev/null
first=$("$nenrin" checkpoint list --json . | python3 -c 'import json, sys; print(json.load(sys.stdin)[-1]["cno"])')
rm -r project/target/debug; edit 2; build 2
"$nenrin" snapshot create . release >/dev/null
cp -a project "$dir/release"
history() { "$nenrin" info --json . | python3 -c 'import json, sys; v = json.load(sys.stdin); print(v["history_bytes"] - v["snapshot_bytes"])'; }
before=$(history)
for n in 3 4 5 6; do
    rm -r project/target/debug; edit $n; build $n
    "$nenrin" checkpoint create . >/dev/null
done
after=$(history)
[ $((after - before)) -lt 1000000 ] || fail "four builds of 4 MB left $((after - before)) bytes of history"
# What keeps all is there; what keeps nothing says so; nothing is something else.
[ "$(cat ".nenrin/at/$first/project/src/main.rs")" = "source 1" ] || fail "the source of $first"
ls ".nenrin/at/$first/project" | grep -qx target || fail "the directory itself has a name in $first"
stale ls ".nenrin/at/$first/project/target/"
stale cat ".nenrin/at/$first/project/target/debug/stamp"
diff -r --no-dereference "$dir/release" .nenrin/at/release/project || fail "the snapshot is not what it was"
"$nenrin" restore project/target/debug --at release --to "$dir/m/restored" >/dev/null
diff -r --no-dereference "$dir/release/target/debug" restored || fail "what was restored is not what it was"
stale "$nenrin" restore project/target/debug/stamp --at "$first" --to "$dir/m/other"
"$nenrin" history project/target/debug/stamp | grep -c . >/dev/null
"$nenrin" restore --list-deleted project/target >/dev/null
"$nenrin" diff . "$first" release | grep -q "^? project/target/" || fail "diff does not say what is not known"
code=0
"$nenrin" restore project --at "$first" --to "$dir/m/partly" 2>said >/dev/null || code=$?
[ "$code" = 1 ] || fail "restore of the rest gave $code"
grep -q "project/target is not known" said || fail "restore has not said what it left out"
[ "$(cat partly/src/main.rs)" = "source 1" ] || fail "the rest is not what it was"
"$nenrin" restore project --at "$first" --force >/dev/null 2>said && fail "restore replaced what it could not bring back"
[ "$(cat project/target/debug/stamp)" = "built 6" ] || fail "what is there now went"
rm said
# The copy that restore made has the attribute, too; it can be taken away.
python3 -c 'import os; os.removexattr("project/target", "user.nenrin.history")'
python3 -c 'import os; print(os.listxattr("project/target"))' | grep -q history && fail "the attribute is still there"
cd /
"$nenrin" umount "$dir/m"
"$nenrin" check --data "$dir/image" >/dev/null || fail "check finds something"
# Read-only, and alone, the past says the same.
"$nenrin" mount -o cp="$first" "$dir/image" "$dir/m"
stale ls "$dir/m/project/target/"
[ "$(cat "$dir/m/project/src/main.rs")" = "source 1" ] || fail "the source of $first in a mount of it"
"$nenrin" umount "$dir/m"
echo "   a build tree without history: $(((after - before) / 1000)) KB of history for four builds of 4 MB; its snapshot is whole"
