"""Makes a tree that has everything a tree can have, the same each time.

tree.py special DIR          one of each odd thing
tree.py plain DIR FILES SEED many ordinary files, about 17 KiB each
"""
import ctypes, os, random, socket, stat, subprocess, sys

LIBC = ctypes.CDLL(None, use_errno=True)
ROOT = os.geteuid() == 0


def put(path, data=b"", mode=None):
    with open(path, "wb") as f:
        f.write(data)
    if mode is not None:
        os.chmod(path, mode)


def try_(what, *args, **more):
    """What the host itself refuses cannot be compared."""
    try:
        return what(*args, **more)
    except (OSError, subprocess.CalledProcessError, FileNotFoundError) as e:
        print(f"   note: the host of the source refuses {what.__name__} {args[:1]}: {e}", file=sys.stderr)


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


NAMES = [
    "日本語のファイル名", "年輪", "Καλημέρα κόσμε", "Привет, мир", "שלום עולם", "مرحبا بالعالم", "नमस्ते",
    "한국어 파일", "Größe und Maß", "naïve café", "e\u0301 decomposed", "\u00e9 composed", "🌲🌳 trees", "ไทย",
    "tab\there", "new\nline", " leading", "trailing ", "quote'\"`", "back\\slash", "-dash", "--", "*?[]{}", "$HOME",
    "...", ".hidden", "a" * 255, "界" * 85, "A", "a", "\u200b", "%s%n", "#!", "con", "nul.", ";rm", "x" * 254 + "y",
]


def special(top):
    os.makedirs(top)
    os.chdir(top)
    os.umask(0o022)
    os.mkdir("names")
    for i, name in enumerate(NAMES):
        put(os.path.join("names", name), b"content %d\n" % i)
    put(b"names/\xff\xfe not utf-8 \x80", b"bytes")
    os.makedirs(b"names/" + b"/".join(b"\xe6\x9c\xa8" * 60 for _ in range(12)))

    os.mkdir("links")
    put("links/one", b"linked\n" * 1000)
    for i in range(40):
        os.link("links/one", f"links/again{i}")
    os.mkdir("links/deeper")
    os.link("links/one", "links/deeper/far")
    os.symlink("one", "links/relative")
    os.symlink("/nowhere/at all", "links/broken")
    os.symlink("loop", "links/loop")
    os.symlink("x/" * 2000 + "end", "links/long")
    os.symlink("目的地", "links/目的")
    os.link("links/broken", "links/broken2", follow_symlinks=False)

    os.mkdir("sizes")
    for size in [0, 1, 15, 63, 64, 100, 255, 511, 512, 1000, 2047, 4095, 4096, 4097, 8191, 8193, 16384, 65535, 65537,
                 131072, 1 << 20, (1 << 20) + 1, (3 << 20) - 1]:
        put(f"sizes/{size}", random.Random(size).randbytes(size))
    put("sizes/zeros", bytes(300000))

    os.mkdir("sparse")
    for name, size, pieces in [
        ("hole-only", 10 << 20, []), ("start", 5 << 20, [(0, 4096)]), ("end", 7 << 20, [((7 << 20) - 10, 10)]),
        ("odd", 3000001, [(1, 1), (4095, 2), (70000, 5000), (2999999, 2)]),
        ("many", 8 << 20, [(i * 65536, 4096) for i in range(0, 128, 2)]),
    ]:
        with open("sparse/" + name, "wb") as f:
            f.truncate(size)
            for at, n in pieces:
                f.seek(at)
                f.write(random.Random(at).randbytes(n))

    os.mkdir("modes")
    for mode in [0o000, 0o400, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o6711, 0o1644, 0o7777]:
        put(f"modes/f{mode:04o}", b"x")
        os.chmod(f"modes/f{mode:04o}", mode)
        os.mkdir(f"modes/d{mode:04o}")
        os.chmod(f"modes/d{mode:04o}", mode | 0o700 if not ROOT else mode)
    if ROOT:
        for uid, gid in [(1, 1), (1000, 1000), (65534, 65534), (4000000000, 4000000001)]:
            put(f"modes/owned{uid}", b"o", 0o640)
            os.chown(f"modes/owned{uid}", uid, gid)
            os.symlink("x", f"modes/link{uid}")
            os.lchown(f"modes/link{uid}", uid, gid)
        os.chown("modes/owned1", 1, 1)
        os.chmod("modes/owned1", 0o6755)

    os.mkdir("kinds")
    os.mkfifo("kinds/fifo", 0o640)
    s = socket.socket(socket.AF_UNIX)
    s.bind("kinds/socket")
    s.close()
    if ROOT:
        for name, kind, major, minor in [("null", stat.S_IFCHR, 1, 3), ("big", stat.S_IFCHR, 511, 1048575), ("block", stat.S_IFBLK, 7, 99)]:
            try_(os.mknod, f"kinds/{name}", kind | 0o660, os.makedev(major, minor))

    os.mkdir("xattrs")
    put("xattrs/file", b"x")
    for name, value in [("user.empty", b""), ("user.text", b"text"), ("user.binary", bytes(range(256))), ("user.big", b"v" * 2000), ("user.ключ", b"k")]:
        try_(os.setxattr, "xattrs/file", name, value)
    put("xattrs/many", b"x")
    for i in range(60):
        try_(os.setxattr, "xattrs/many", f"user.n{i:02}", b"%d" % i)
    os.mkdir("xattrs/dir")
    try_(os.setxattr, "xattrs/dir", "user.on-a-directory", b"yes")
    if ROOT:
        try_(os.setxattr, "xattrs/file", "trusted.nenrin-test", b"root only")
        os.symlink("file", "xattrs/link")
        try_(os.setxattr, "xattrs/link", "trusted.on-a-link", b"l", follow_symlinks=False)
        put("xattrs/capable", b"#!/bin/sh\n", 0o755)
        try_(run, "setcap", "cap_net_raw,cap_dac_override=ep", "xattrs/capable")

    os.mkdir("acls")
    put("acls/file", b"x", 0o640)
    try_(run, "setfacl", "-m", "u:1:rw,u:65534:r,g:2:rwx,m::rx", "acls/file")
    os.mkdir("acls/dir")
    try_(run, "setfacl", "-m", "u:1:rwx,d:u:1:rwx,d:g:3:rx,d:o::-", "acls/dir")
    put("acls/dir/inherits", b"x")
    os.mkdir("acls/dir/below")
    put("acls/dir/below/too", b"x")

    os.mkdir("times")
    for name, ns in [("nanoseconds", 1700000000123456789), ("one", 1), ("zero", 0), ("before-1970", -1), ("year-1965", -157766400 * 10**9 + 7),
                     ("year-1902", -2145916800 * 10**9 + 999999999), ("past-2038", 2147483648 * 10**9 + 5), ("past-2106", 4294967296 * 10**9 + 6),
                     # Times on a volume end in 2262 (FORMAT.md section 1).
                     ("year-2200", 7258118400 * 10**9 + 1)]:
        put("times/" + name, b"t")
        os.utime("times/" + name, ns=(ns, ns))
        os.symlink("x", f"times/link-{name}")
        os.utime(f"times/link-{name}", ns=(ns, ns), follow_symlinks=False)
        os.mkdir(f"times/dir-{name}")
        os.utime(f"times/dir-{name}", ns=(ns, ns))

    deep = "deep"
    for i in range(60):
        deep += f"/{i}"
    os.makedirs(deep)
    put(deep + "/bottom", b"deep")


def plain(top, files, seed):
    r = random.Random(seed)
    os.makedirs(top, exist_ok=True)
    dirs = [top]
    for i in range(files):
        if r.random() < 0.06:
            path = f"{r.choice(dirs)}/d{i}"
            os.mkdir(path)
            dirs.append(path)
        # Sizes as in source trees: most small, a few large.
        size = int(r.lognormvariate(8.6, 1.5)) % (4 << 20)
        line = b"%d the quick brown fox, %d\n" % (i, r.getrandbits(40))
        data = r.randbytes(size) if r.random() < 0.3 else (line * (size // len(line) + 1))[:size]
        path = f"{r.choice(dirs)}/f{i}"
        put(path, data)
        t = r.randrange(10**18, 2 * 10**18)
        os.utime(path, ns=(t, t))
        if r.random() < 0.02:
            os.link(path, path + ".link")


if sys.argv[1] == "special":
    special(sys.argv[2])
else:
    plain(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
