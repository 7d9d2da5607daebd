#!/usr/bin/env python3
"""Loads for daemon.sh: what programs do on a mount while its daemon is in trouble.

  daemon.py acked FILE ACKS       appends numbered blocks, fsyncs each, notes it outside; ends at the first error and says it
  daemon.py verify FILE ACKS      every block that was noted is there
  daemon.py loop DIR              creates, writes, syncs, reads and removes files until told to end by a line on stdin
  daemon.py dirty FILE MIB        dirties a mapping of that size, syncs it, and reads it back around the cache of this process
  daemon.py slowest DIR SECONDS   the longest that one small file operation took, in ms
"""
import errno, mmap, os, select, sys, time

BLOCK = 8192


def block(n):
    return (b"%015d\n" % n) * (BLOCK // 16)


def acked(path, acks):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    with open(acks, "w") as notes:
        n = 0
        while True:
            try:
                os.pwrite(fd, block(n), n * BLOCK)
                os.fsync(fd)
            except OSError as e:
                print(errno.errorcode[e.errno], flush=True)
                return
            n += 1
            notes.write(f"{n}\n")
            notes.flush()


def verify(path, acks):
    with open(acks) as notes:
        done = sum(1 for _ in notes)
    with open(path, "rb") as f:
        for n in range(done):
            if f.read(BLOCK) != block(n):
                sys.exit(f"block {n} of {done} that were acknowledged is not there")
    if not done:
        sys.exit("nothing was acknowledged")
    print(f"{done} acknowledged blocks are there")


def loop(directory):
    n = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        path = os.path.join(directory, f"f{n % 50}")
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        os.write(fd, block(n))
        os.fsync(fd)
        if os.pread(fd, BLOCK, 0) != block(n):
            sys.exit(f"{path}: something else was read")
        os.close(fd)
        if n % 3 == 0:
            os.unlink(path)
        n += 1
        time.sleep(0.002)
    print(n)


def dirty(path, mib):
    size = mib << 20
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as m:
        for turn in range(2):
            for at in range(0, size, 4096):
                m[at:at + 8] = (at + turn).to_bytes(8, "little")
        m.flush()
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for at in range(0, size, 4096):
        if int.from_bytes(os.pread(fd, 8, at), "little") != at + 1:
            sys.exit(f"the page at {at} is not what was written through the mapping")
    print("ok")


def slowest(directory, seconds):
    worst, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        path = os.path.join(directory, "slowest")
        with open(path, "wb") as f:
            f.write(b"x")
        os.stat(path)
        os.unlink(path)
        worst = max(worst, time.monotonic() - begin)
        time.sleep(0.01)
    print(int(worst * 1000))


command, *rest = sys.argv[1:]
{"acked": acked, "verify": verify, "loop": loop, "dirty": lambda p, m: dirty(p, int(m)),
 "slowest": lambda d, s: slowest(d, float(s))}[command](*rest)
