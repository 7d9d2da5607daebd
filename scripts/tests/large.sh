#!/usr/bin/env bash
# A directory of very many entries, a sparse file of 20 GiB with data at both
# ends, and a state of the past that is many operations old, beside the live one.
#   ENTRIES (20000)   OPERATIONS (1500)
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib-volume.sh
need python3 rsync
volume "${SIZE:-512M}"
up checkpoint=0

python3 - "$MNT" "${ENTRIES:-20000}" <<'P'
import os, sys, time
root, count = os.path.join(sys.argv[1], "many"), int(sys.argv[2])
os.mkdir(root)
def step(name, body):
    begin = time.monotonic()
    body()
    print(f"{name} {count} entries: {time.monotonic() - begin:.1f} s", flush=True)
def create():
    for i in range(count):
        os.close(os.open(f"{root}/entry-{i}", os.O_CREAT | os.O_WRONLY | os.O_EXCL))
def listing():
    found = {e.name for e in os.scandir(root)}
    assert found == {f"entry-{i}" for i in range(count)}, f"{len(found)} of {count} entries are listed"
def stat():
    for i in range(count):
        os.stat(f"{root}/entry-{i}")
def remove():
    # While it is being listed, as rm -r does it.
    for e in os.scandir(root):
        os.unlink(e.path)
    assert not os.listdir(root)
    os.rmdir(root)
for name, body in (("create", create), ("list", listing), ("stat", stat), ("remove", remove)):
    step(name, body)

path, size = os.path.join(sys.argv[1], "sparse"), 20 << 30
with open(path, "wb") as f:
    f.write(b"begin")
    f.seek(size - 3)
    f.write(b"end")
    f.flush(); os.fsync(f.fileno())
st = os.stat(path)
assert st.st_size == size and st.st_blocks * 512 < 1 << 20, f"{st.st_blocks * 512} bytes for two ends"
with open(path, "rb") as f:
    assert f.read(8) == b"begin\0\0\0"
    assert os.lseek(f.fileno(), 1 << 20, os.SEEK_DATA) >= size - (2 << 20)
    f.seek(size - 6)
    assert f.read() == b"\0\0\0end"
os.unlink(path)
P

echo "a state ${OPERATIONS:-1500} operations old"
operations() {
    python3 - "$MNT/work" "$1" "$2" <<'P'
import os, random, sys
root, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
os.makedirs(root, exist_ok=True)
for _ in range(count):
    path = os.path.join(root, f"f{rng.randrange(200)}")
    what = rng.random()
    if what < 0.15 and os.path.exists(path):
        os.unlink(path)
    elif what < 0.3 and os.path.exists(path):
        os.rename(path, os.path.join(root, f"f{rng.randrange(200)}"))
    elif what < 0.4 and os.path.exists(path):
        os.truncate(path, rng.randrange(50_000))
    else:
        with open(path, "r+b" if os.path.exists(path) and rng.random() < 0.7 else "wb") as f:
            f.seek(rng.randrange(30_000))
            f.write(rng.randbytes(rng.randrange(20_000)))
P
}
operations 1 400
cno=$("$NENRIN" checkpoint create "$MNT")
cp -a "$MNT/work" "$DIR/copy"
operations 2 "${OPERATIONS:-1500}"
mkdir "$DIR/past"
"$NENRIN" mount -o "cp=$cno" "$IMAGE" "$DIR/past" >/dev/null
compare() {
    diff=$(rsync -aHAXS --delete --checksum --dry-run --itemize-changes "$DIR/copy/" "$DIR/past/work/")
    [ -z "$diff" ] || { head -20 <<<"$diff"; wrong "checkpoint $cno differs from the copy"; }
}
compare
operations 3 300
compare
"$NENRIN" umount "$DIR/past"
down
echo "many entries, a sparse file and an old state are as they should be"
