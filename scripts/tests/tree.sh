#!/usr/bin/env bash
<<<<<<< HEAD
# A tree with everything a tree can have, copied in with rsync -aHAXS and
# compared byte for byte and attribute for attribute after a remount.
#   FILES (2000)  how many files    SOURCE  a tree to copy as well
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib-volume.sh
need rsync setfacl setfattr python3
files=${FILES:-2000}
volume "${SIZE:-512M}"

echo "making a tree of $files files"
mkdir "$DIR/tree"
python3 - "$DIR/tree" "$files" <<'P'
import os, random, sys
root, count = sys.argv[1], int(sys.argv[2])
rng = random.Random(1)
names = ["file", "файл", "ファイル", "αρχείο", "ملف", "datei mit leerzeichen", "emoji-\U0001F333", "new\nline", "-dash"]
dirs = [root]
for i in range(max(8, count // 40)):
    d = os.path.join(rng.choice(dirs), "%s-dir-%d" % (rng.choice(names), i))
    os.mkdir(d)
    dirs.append(d)
paths = []
for i in range(count):
    path = os.path.join(rng.choice(dirs), "%s-%d" % (rng.choice(names), i))
    kind = rng.random()
    with open(path, "wb") as f:
        if kind < 0.05:                                   # sparse
            f.truncate(rng.randrange(1, 1 << 26))
            for _ in range(rng.randrange(3)):
                f.seek(rng.randrange(1 << 25)); f.write(rng.randbytes(5000))
        elif kind < 0.5:
            f.write(rng.randbytes(rng.randrange(0, 3000)))
        else:
            f.write(rng.randbytes(min(int(rng.paretovariate(1) * 3000), 1 << 20)))
    os.chmod(path, rng.choice([0o644, 0o600, 0o755, 0o444, 0o4755, 0o2755]))
    os.utime(path, ns=(rng.randrange(1 << 62), rng.randrange(-1 << 60, 1 << 62)))
    paths.append(path)
    if kind > 0.95:
        os.link(rng.choice(paths), path + ".link")
    if kind > 0.9:
        os.symlink(rng.choice(paths), path + ".symlink")
    if kind > 0.97:
        os.setxattr(path, "user.colour", rng.randbytes(rng.randrange(1, 3000)))
os.mkfifo(os.path.join(root, "fifo"))
for length, name in ((255, "x" * 255), (255, "年" * 85)):
    open(os.path.join(root, name), "w").write(str(length))
P
setfacl -m u:1234:rwx,g:4321:r-- "$DIR/tree/fifo" "$DIR"/tree/x* 2>/dev/null || echo "no ACLs on this host's file system"
mkdir "$DIR/tree/shared"
setfacl -d -m u:1234:rwx "$DIR/tree/shared" 2>/dev/null || true
if [ "$(id -u)" = 0 ]; then
    mknod "$DIR/tree/device" c 1 3
    chown 1234:4321 "$DIR"/tree/x*
fi

compare() {
    local diff
    diff=$(rsync -aHAXS --numeric-ids --delete --checksum --dry-run --itemize-changes "$1/" "$2/")
    [ -z "$diff" ] || { head -20 <<<"$diff"; wrong "$2 differs from $1"; }
}

up
echo "copying"
rsync -aHAXS --numeric-ids "$DIR/tree/" "$MNT/tree/"
[ -z "${SOURCE:-}" ] || rsync -aHAXS --numeric-ids "$SOURCE/" "$MNT/source/"
down
up
echo "comparing"
compare "$DIR/tree" "$MNT/tree"
[ -z "${SOURCE:-}" ] || compare "$SOURCE" "$MNT/source"
"$NENRIN" snapshot create "$MNT" whole >/dev/null
# The same in a state of the past, with everything gone from the live one.
rm -rf "$MNT/tree"
mkdir "$DIR/past"
"$NENRIN" mount -o at=whole "$IMAGE" "$DIR/past" >/dev/null
compare "$DIR/tree" "$DIR/past/tree"
"$NENRIN" umount "$DIR/past"
down
echo "$files files are the same, after a remount and in the past"
=======
# A tree with everything in it, through rsync and a remount.
exec "$(dirname "$0")/../work/tree.sh" small
>>>>>>> w/work
