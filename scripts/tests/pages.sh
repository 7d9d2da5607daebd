#!/usr/bin/env bash
# Content that a program changed through a mapping, and that the kernel has not sent, on a real mount: programs that copy find it, a
# name that it gets shows it after the daemon was killed, a checkpoint that was asked for has it, and it moves no time that was set after it.
set -eu
cd "$(dirname "$0")/../.."
[ -w /dev/fuse ] || { echo "skipped: no /dev/fuse"; exit 77; }
[ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null || { echo "skipped: no fusermount3"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. scripts/lib.sh
nenrin=${NENRIN:-$(release)/nenrin}
[ -x "$nenrin" ] || cargo build --locked --release -q -p nenrin
dir=$(mktemp -d)
holders=()
# What holds the mapped files is ended first: a mount in use stays.
cleanup() {
    kill "${holders[@]}" 2>/dev/null || true
    "$nenrin" umount "$dir/m" >/dev/null 2>&1 || umount -l "$dir/m" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
fail() { echo "pages: $*"; exit 1; }
# Maps a file, fills it, closes it, and keeps the mapping: hold FILE BYTES LETTER
hold() {
    rm -f "$dir/held"
    python3 - "$1" "$2" "$3" "$dir/held" <<'END_OF_PROGRAM' &
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, int(sys.argv[2]))
mapping = mmap.mmap(fd, int(sys.argv[2]))
os.close(fd)
mapping[:] = sys.argv[3].encode() * int(sys.argv[2])
open(sys.argv[4], "w").close()
time.sleep(600)
END_OF_PROGRAM
    holders+=($!)
    for _ in $(seq 200); do [ ! -e "$dir/held" ] || return 0; sleep 0.05; done
    fail "$1 was not mapped"
}
let_go() {
    kill "${holders[@]}" 2>/dev/null || true
    wait "${holders[@]}" 2>/dev/null || true
    holders=()
}
owner() { "$nenrin" info --json "$dir/m" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'; }
# is FILE BYTES LETTER
is() { head -c "$2" /dev/zero | tr '\0' "$3" | cmp -s - "$1" || fail "$4: $1 is not what was written"; }

"$nenrin" mkfs --size 256M "$dir/image" >/dev/null
mkdir "$dir/m"
for cache in writethrough writeback; do
    "$nenrin" mount -o "commit=1,cache=$cache" "$dir/image" "$dir/m"
    cd "$dir/m"
    hold mapped 1048576 a
    cp --sparse=always mapped "$dir/copy"
    is "$dir/copy" 1048576 a "$cache, cp"
    hold packed 1048576 b
    # The time of a change comes with its content, so tar may say that the file was changed meanwhile (1).
    tar -cSf "$dir/tar" packed 2>/dev/null || [ $? = 1 ]
    tar -xOf "$dir/tar" >"$dir/copy"
    is "$dir/copy" 1048576 b "$cache, tar"

    hold checkpointed 9000 c
    cno=$("$nenrin" checkpoint create --json . | python3 -c 'import json, sys; print(json.load(sys.stdin)["cno"])')
    is ".nenrin/at/$cno/checkpointed" 9000 c "$cache, checkpoint"
    hold shown 9000 d
    "$nenrin" snapshot create . "of $cache" >/dev/null
    is ".nenrin/at/of $cache/shown" 9000 d "$cache, snapshot"

    echo old >target
    echo old >exchanged
    hold new 9000 e
    hold other 9000 f
    mv new target
    python3 - <<'END_OF_PROGRAM'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.renameat2(-100, b"exchanged", -100, b"other", 2) != 0:
    raise OSError(ctypes.get_errno(), "renameat2")
END_OF_PROGRAM
    head -c 9000 /dev/zero | tr '\0' s >secret
    chmod 600 secret
    sync secret
    hold secret 9000 h
    chmod 644 secret
    head -c 9000 /dev/zero | tr '\0' s >labelled
    sync labelled
    hold labelled 9000 i
    if [ "$(id -u)" = 0 ]; then python3 -c 'import os; os.setxattr("labelled", "security.label", b"all")'; fi
    # What the mapping changed before a time was set is not to come after it, and to count as a change of now.
    python3 - <<'END_OF_PROGRAM' || fail "$cache: the time that was set for a mapped file is another"
import mmap, os, sys
fd = os.open("dated", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 9000)
mapping = mmap.mmap(fd, 9000)
mapping[0] = 120
os.utime(fd, (1, 1))
mapping.close()
os.close(fd)
sys.exit(os.stat("dated").st_mtime != 1)
END_OF_PROGRAM
    # Their names are committed by now.
    sleep 3
    pid=$(owner)
    cd /
    kill -9 "$pid"
    let_go
    umount -l "$dir/m"
    "$nenrin" mount -o "cache=$cache" "$dir/image" "$dir/m"
    is "$dir/m/target" 9000 e "$cache, renamed"
    is "$dir/m/exchanged" 9000 f "$cache, exchanged"
    # Whoever was let in sees nothing that was written over.
    [ "$(stat -c %a "$dir/m/secret")" = 644 ] || fail "$cache: the mode was not committed"
    is "$dir/m/secret" 9000 h "$cache, let in"
    [ "$(id -u)" != 0 ] || is "$dir/m/labelled" 9000 i "$cache, labelled"

    # A daemon that leaves while the file is in use.
    hold "$dir/m/left" 9000 g
    pid=$(owner)
    kill "$pid"
    for _ in $(seq 600); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
    [ ! -e "/proc/$pid" ] || fail "$cache: the daemon has not left"
    let_go
    "$nenrin" mount "$dir/image" "$dir/m"
    is "$dir/m/left" 9000 g "$cache, left"
    rm "$dir/m/"*
    "$nenrin" umount "$dir/m"
done
"$nenrin" check --data "$dir/image" >/dev/null || fail "check finds something"
