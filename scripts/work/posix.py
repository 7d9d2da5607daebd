"""What programs expect of a file system, beyond reading and writing files.

posix.py PHASE DIR       phases: all, and write then verify around a remount
"""
import errno, fcntl, mmap, os, random, subprocess, sys, time

GIB = 1 << 30
phase, top = sys.argv[1], sys.argv[2]
path = lambda name: os.path.join(top, name)


def check(what, ok, more=""):
    if not ok:
        print(f"WRONG: {what} {more}", file=sys.stderr)
        sys.exit(1)


def child(work):
    """Runs work in another process; returns a function that waits for it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as e:
            print(f"WRONG: in a child: {e!r}", file=sys.stderr)
        os._exit(code)
    def wait():
        check("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0)
    return wait


def free():
    s = os.statvfs(top)
    return s.f_bavail * s.f_frsize


def until(what, test, seconds=20):
    end = time.monotonic() + seconds
    while not test():
        check(what, time.monotonic() < end, "never came true")
        time.sleep(0.05)


HEAD, TAIL = b"head" * 1024, b"tail" * 1024


def sparse_write():
    with open(path("sparse"), "wb") as f:
        f.write(HEAD)
        f.seek(20 * GIB - len(TAIL))
        f.write(TAIL)
        os.fsync(f.fileno())
    sparse_check()


def sparse_check():
    s = os.stat(path("sparse"))
    check("size of the sparse file", s.st_size == 20 * GIB, s.st_size)
    check("du of the sparse file is small", s.st_blocks * 512 <= 1 << 20, s.st_blocks)
    with open(path("sparse"), "rb", buffering=0) as f:
        check("its head", f.read(len(HEAD)) == HEAD)
        for at in [len(HEAD), 5 * GIB + 1, 20 * GIB - len(TAIL) - 70000]:
            f.seek(at)
            check("its hole", f.read(65536) == bytes(65536), at)
        f.seek(20 * GIB - len(TAIL))
        check("its tail", f.read() == TAIL)
        fd = f.fileno()
        hole = os.lseek(fd, 0, os.SEEK_HOLE)
        check("SEEK_HOLE", len(HEAD) <= hole <= 1 << 20, hole)
        data = os.lseek(fd, hole, os.SEEK_DATA)
        check("SEEK_DATA", 20 * GIB - (1 << 20) <= data <= 20 * GIB - len(TAIL), data)
        check("SEEK_HOLE behind the tail", os.lseek(fd, data, os.SEEK_HOLE) == 20 * GIB)


def mmap_write():
    size = 3 << 20
    with open(path("mapped"), "w+b") as f:
        f.truncate(size + 123)
        with mmap.mmap(f.fileno(), size + 123) as m:
            r = random.Random(5)
            for _ in range(400):
                at = r.randrange(size)
                m[at:at + 50] = r.randbytes(50)
            m[size + 100:size + 123] = b"x" * 23
            m.flush()
            # What is mapped is what read sees, and the other way round.
            f.seek(1000)
            check("read sees the mapping", f.read(5000) == m[1000:6000])
            os.pwrite(f.fileno(), b"written beside", 777777)
            check("the mapping sees write", m[777777:777791] == b"written beside")
            m[100:110] = b"not synced"
        # Not synced, only closed: umount carries it.


def mmap_check():
    size = 3 << 20
    expected = bytearray(size + 123)
    r = random.Random(5)
    for _ in range(400):
        at = r.randrange(size)
        expected[at:at + 50] = r.randbytes(50)
    expected[size + 100:] = b"x" * 23
    expected[777777:777791] = b"written beside"
    expected[100:110] = b"not synced"
    with open(path("mapped"), "rb") as f:
        check("mapped writes are there", f.read() == bytes(expected))
    with open(path("mapped"), "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        check("and mapped again", m[:] == bytes(expected))


def two_programs():
    """One writes, one reads: what write returned for, read sees, in another process."""
    name = path("shared")
    open(name, "wb").close()
    r1, w1 = os.pipe()
    r2, w2 = os.pipe()

    def reader():
        fd = os.open(name, os.O_RDONLY)
        for i in range(300):
            check("told", os.read(r1, 1) == b"w")
            r = random.Random(i)
            at, data = r.randrange(1 << 20), r.randbytes(r.randrange(1, 40000))
            check("a reader sees what another program wrote", os.pread(fd, len(data), at) == data, i)
            check("and its size", os.fstat(fd).st_size >= at + len(data))
            os.write(w2, b"r")
    wait = child(reader)
    fd = os.open(name, os.O_WRONLY)
    for i in range(300):
        r = random.Random(i)
        at, data = r.randrange(1 << 20), r.randbytes(r.randrange(1, 40000))
        os.pwrite(fd, data, at)
        os.write(w1, b"w")
        check("answered", os.read(r2, 1) == b"r")
    wait()
    os.close(fd)

    # Two mappings of one file in two processes.
    with open(name, "r+b") as f:
        f.truncate(1 << 16)
        m = mmap.mmap(f.fileno(), 1 << 16)
        m[0:8] = bytes(8)
        def other():
            with open(name, "r+b") as g, mmap.mmap(g.fileno(), 1 << 16) as n:
                for i in range(1, 200):
                    while n[0] != i & 0xff:
                        pass
                    n[4096] = i & 0xff
        wait = child(other)
        for i in range(1, 200):
            m[0] = i & 0xff
            while m[4096] != i & 0xff:
                pass
        wait()
        m.close()


def unlinked():
    name = path("gone")
    size = 64 << 20
    data = random.Random(9).randbytes(1 << 20)
    before = free()
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    for i in range(size >> 20):
        os.pwrite(fd, data, i << 20)
    os.fsync(fd)
    os.unlink(name)
    check("no name left", not os.path.exists(name))
    check("nlink 0", os.fstat(fd).st_nlink == 0)
    check("read after unlink", os.pread(fd, 1 << 20, 5 << 20) == data)
    os.pwrite(fd, b"after unlink", 3 << 20)
    check("write after unlink", os.pread(fd, 12, 3 << 20) == b"after unlink")
    os.ftruncate(fd, 10 << 20)
    check("truncate after unlink", os.fstat(fd).st_size == 10 << 20 and os.pread(fd, 10, 11 << 20) == b"")
    os.fsync(fd)
    os.fchmod(fd, 0o600)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    check("opened once more through /proc", os.pread(again, 12, 3 << 20) == b"after unlink")
    os.close(fd)
    check("still there for the other", os.pread(again, 12, 3 << 20) == b"after unlink")
    os.close(again)
    until("the space comes back", lambda: free() >= before - (6 << 20))

    # A new file of the name is another file; a directory removed while it is open.
    a = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(a, b"old")
    os.unlink(name)
    b = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.write(b, b"new!")
    check("two lives of a name", os.pread(a, 9, 0) == b"old" and os.pread(b, 9, 0) == b"new!")
    # A file without a name from the beginning, then given one.
    # With a directory given, so that Python calls linkat and not link.
    d0 = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    t = os.open(top, os.O_RDWR | os.O_TMPFILE, 0o600)
    os.write(t, b"temporary")
    os.link(f"/proc/self/fd/{t}", path("named"), src_dir_fd=d0, follow_symlinks=True)
    check("O_TMPFILE given a name", open(path("named"), "rb").read() == b"temporary")
    for fd in (a, b, t, d0):
        os.close(fd)
    os.mkdir(path("dir"))
    d = os.open(path("dir"), os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(path("dir"))
    try:
        os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=d)
        check("create in a removed directory", False)
    except OSError as e:
        check("create in a removed directory", e.errno == errno.ENOENT, e)
    os.close(d)
    # Replaced by rename while open.
    with open(path("r1"), "wb") as f:
        f.write(b"first")
    f = open(path("r1"), "rb")
    with open(path("r2"), "wb") as g:
        g.write(b"second")
    os.rename(path("r2"), path("r1"))
    check("open file survives being replaced", f.read() == b"first")
    check("the name has the new one", open(path("r1"), "rb").read() == b"second")
    f.close()


def appenders():
    name = path("log")
    open(name, "wb").close()
    def writer(tag):
        def work():
            fd = os.open(name, os.O_WRONLY | os.O_APPEND)
            for i in range(2000):
                line = b"%c %06d %s\n" % (tag, i, b"." * (i % 97))
                check("whole line written", os.write(fd, line) == len(line))
        return work
    waits = [child(writer(t)) for t in b"AB"]
    for w in waits:
        w()
    seen = {b"A": 0, b"B": 0}
    for line in open(name, "rb"):
        tag, number, dots = line.rstrip(b"\n").split(b" ")
        check("appended lines are whole and in order", int(number) == seen[tag] and len(dots) == int(number) % 97, line)
        seen[tag] += 1
    check("every appended line is there", seen == {b"A": 2000, b"B": 2000}, seen)


def locks():
    name = path("locked")
    open(name, "wb").write(b"0")
    # flock: exclusive between descriptions, and across processes.
    a, b = open(name), open(name)
    fcntl.flock(a, fcntl.LOCK_EX)
    def refused(work):
        try:
            work()
        except OSError as e:
            return e.errno in (errno.EAGAIN, errno.EACCES)
        return False
    check("flock excludes", refused(lambda: fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)))
    fcntl.flock(a, fcntl.LOCK_SH)
    fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
    check("flock shared excludes exclusive", refused(lambda: fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)))
    a.close()
    b.close()
    # Record locks: of other processes, by range.
    f = open(name, "r+b")
    fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
    def other():
        g = open(name, "r+b")
        check("a locked range excludes", refused(lambda: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 5)))
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
    child(other)()
    # Counting under a lock from several processes: no count is lost.
    f.close()
    def count(lock):
        def work():
            for _ in range(150):
                with open(name, "r+b", buffering=0) as g:
                    lock(g)
                    n = int(g.read())
                    g.seek(0)
                    g.write(b"%d" % (n + 1))
        return work
    open(name, "wb").write(b"0")
    for lock in (lambda g: fcntl.flock(g, fcntl.LOCK_EX), lambda g: fcntl.lockf(g, fcntl.LOCK_EX)):
        before = int(open(name).read())
        waits = [child(count(lock)) for _ in range(3)]
        for w in waits:
            w()
        check("counted under a lock", int(open(name).read()) == before + 450)
    # A lock goes with its holder.
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        g = open(name, "r+b")
        fcntl.flock(g, fcntl.LOCK_EX)
        os.write(w, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(r, 1)
    g = open(name, "r+b")
    check("held", refused(lambda: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)))
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    fcntl.flock(g, fcntl.LOCK_EX)
    g.close()


def direct():
    name = path("direct")
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    m = mmap.mmap(-1, 1 << 20)
    m[:] = random.Random(3).randbytes(1 << 20)
    check("O_DIRECT write", os.pwrite(fd, m, 4096) == 1 << 20)
    n = mmap.mmap(-1, 1 << 20)
    check("O_DIRECT read", os.preadv(fd, [n], 4096) == 1 << 20 and n[:] == m[:])
    with open(name, "rb") as f:
        check("buffered read of it", f.read() == bytes(4096) + m[:])
    os.close(fd)


def preallocate():
    fd = os.open(path("reserved"), os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 8 << 20)
    check("fallocate sets the size", os.fstat(fd).st_size == 8 << 20)
    check("reserved space reads as zeros", os.pread(fd, 100, 4 << 20) == bytes(100))
    os.pwrite(fd, b"in it", 4 << 20)
    check("written into it", os.pread(fd, 6, 4 << 20) == b"in it\0")
    os.close(fd)
    # copy_file_range
    a = os.open(path("mapped"), os.O_RDONLY)
    b = os.open(path("copied"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    left = os.fstat(a).st_size
    while left:
        n = os.copy_file_range(a, b, left)
        check("copy_file_range moves on", n > 0)
        left -= n
    check("copy_file_range", os.pread(b, 1 << 23, 0) == os.pread(a, 1 << 23, 0))
    os.close(a)
    os.close(b)


def copied_while_written():
    """What is written and not closed is no hole for a program that copies data only."""
    data = random.Random(8).randbytes(700_000)
    with open(path("growing"), "wb", buffering=0) as f:
        for i in range(5):
            f.write(data)
            # Not by another program: with the end of a child the kernel sends what it keeps.
            with open(path("growing"), "rb", buffering=0) as g, open(path("copy"), "wb", buffering=0) as h:
                size = os.fstat(g.fileno()).st_size
                h.truncate(size)
                at = 0
                while at < size:
                    try:
                        at = os.lseek(g.fileno(), at, os.SEEK_DATA)
                    except OSError as e:
                        check("lseek", e.errno == errno.ENXIO, e)
                        break
                    end = os.lseek(g.fileno(), at, os.SEEK_HOLE)
                    os.pwrite(h.fileno(), os.pread(g.fileno(), end - at, at), at)
                    at = end
            check("a copy of an open file is whole", open(path("copy"), "rb").read() == data * (i + 1), i)


STEPS = {
    "write": [sparse_write, mmap_write],
    "verify": [sparse_check, mmap_check],
    "live": [two_programs, unlinked, appenders, locks, direct, preallocate, copied_while_written],
}
for step in STEPS[phase]:
    begin = time.monotonic()
    step()
    print(f"   {step.__name__:<58} {time.monotonic() - begin:.1f} s", flush=True)
