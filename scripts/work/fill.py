"""Works on a nearly full volume, and says what should be there. Content is known by sectors of 512 bytes."""
import array, errno, json, os, pickle, random, subprocess, sys, time

SECTOR = 512
FULL = (errno.ENOSPC,)
# Of what is available when nothing is there, so much must be available again, within so many seconds.
REGAINED, PATIENCE = 0.99, 60


def pattern(stamps):
    return b"".join(s.to_bytes(8, "little") * (SECTOR // 8) for s in stamps)


def available(mnt):
    s = os.statvfs(mnt)
    return s.f_bavail * s.f_frsize


class Work:
    def __init__(self, mnt, seed, nenrin):
        self.mnt, self.nenrin, self.random = mnt, nenrin, random.Random(seed)
        self.files, self.snapshots, self.stamp, self.made = {}, [], 0, 0
        self.empty = available(mnt)
        self.refused, self.removals_refused, self.done, self.bytes = 0, 0, {}, 0
        self.taken, self.aim = 0, 0.0

    def path(self, name):
        return os.path.join(self.mnt, name)

    def command(self, *words):
        return subprocess.run([self.nenrin, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def command_out(self, *words):
        return subprocess.run([self.nenrin, *words], capture_output=True, text=True)

    def pick(self):
        return self.random.choice(list(self.files))

    def write(self, name, at, count):
        """Sectors from `at` on; what is refused changes nothing."""
        self.stamp += 1
        stamps = array.array("Q", ((self.stamp << 20) + i for i in range(count)))
        fd = os.open(self.path(name), os.O_WRONLY)
        try:
            wrote = os.pwrite(fd, pattern(stamps), at * SECTOR)
        finally:
            os.close(fd)
        if wrote % SECTOR:
            sys.exit(f"{name}: {wrote} bytes written, no whole sectors")
        self.bytes += wrote
        count = wrote // SECTOR
        held = self.files[name]
        held.extend([0] * max(0, at + count - len(held)))
        held[at : at + count] = stamps[:count]

    def create(self):
        self.made += 1
        name = f"f{self.made}"
        os.close(os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        self.files[name] = array.array("Q")
        self.write(name, 0, self.random.choice((1, 3, 8, 60, 400, 1000)))

    def overwrite(self):
        name = self.pick()
        length = len(self.files[name])
        self.write(name, self.random.randrange(length + 1), self.random.choice((1, 8, 16, 100)))

    def grow(self):
        name = self.pick()
        for _ in range(8):
            self.write(name, len(self.files[name]), 1024)

    def truncate(self):
        name = self.pick()
        length = self.random.randrange(len(self.files[name]) + 1)
        os.truncate(self.path(name), length * SECTOR)
        del self.files[name][length:]

    def remove(self):
        name = self.pick()
        os.unlink(self.path(name))
        del self.files[name]

    def copy(self):
        source, target = self.pick(), self.pick()
        if source == target:
            return
        held = self.files[source]
        at, to = (self.random.randrange(len(self.files[n]) // 8 + 1) * 8 for n in (source, target))
        count = min(self.random.randrange(1, 1024), len(held) - at)
        if count <= 0:
            return
        a, b = os.open(self.path(source), os.O_RDONLY), os.open(self.path(target), os.O_WRONLY)
        try:
            copied = os.copy_file_range(a, b, count * SECTOR, at * SECTOR, to * SECTOR)
        finally:
            os.close(a), os.close(b)
        self.bytes += copied
        count = copied // SECTOR
        into = self.files[target]
        into.extend([0] * max(0, to + count - len(into)))
        into[to : to + count] = held[at : at + count]

    def sync(self):
        fd = os.open(self.path(self.pick()), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def snapshot(self):
        self.made += 1
        if len(self.snapshots) > 1:
            return self.expire()
        if self.command("snapshot", "create", self.mnt, f"s{self.made}").returncode == 0:
            self.snapshots.append(f"s{self.made}")

    def expire(self):
        """Letting go is never refused."""
        if self.snapshots:
            gone = self.command("snapshot", "delete", self.mnt, self.snapshots.pop(0))
            if gone.returncode != 0:
                sys.exit(f"a snapshot could not be deleted: {gone.stderr}")

    def free(self, what):
        """Removing works; where snapshots keep all that is removed, once they are gone."""
        for _ in range(100):
            try:
                return what()
            except OSError as e:
                if e.errno not in FULL:
                    raise
            self.removals_refused += 1
            self.expire()
            time.sleep(0.1)
        sys.exit(f"{what.__name__} is refused without any snapshot")

    def step(self):
        """The volume is led to some fullness above 90 %, where it stays for a while, or until it is refused, and so on."""
        left = available(self.mnt) / self.empty
        if self.taken % 150 == 0:
            self.aim = self.random.choice((-1, -1, 0.005, 0.02, 0.05, 0.09))
        self.taken += 1
        if len(self.files) < 5:
            # What was removed is kept by snapshots.
            self.expire()
            what = self.create
        elif left > 0.10:
            what = self.random.choice((self.create, self.grow, self.grow, self.overwrite, self.copy))
        else:
            kinds = (self.create, self.grow, self.overwrite, self.truncate, self.remove, self.copy, self.sync, self.snapshot, self.expire)
            more = left > self.aim
            weights = (20, 8, 40, 3, 4, 12, 8, 2, 1) if more else (8, 0, 40, 10, 24, 8, 8, 2, 3)
            if self.aim < 0 and left < 0.002:
                # More fits than df tells: on to where it is refused.
                weights = (20, 40, 40, 1, 2, 12, 8, 2, 1)
            what = self.random.choices(kinds, weights)[0]
        if left <= 0.10:
            self.done[what.__name__] = self.done.get(what.__name__, 0) + 1
        if what in (self.remove, self.truncate):
            return self.free(what)
        try:
            what()
        except OSError as e:
            if e.errno not in FULL:
                raise
            self.refused += 1
            if len(self.files) > 5:
                self.free(self.remove)
            elif not self.snapshots:
                time.sleep(0.1)


def work(mnt, model, seed, steps, nenrin):
    w = Work(mnt, int(seed), nenrin)
    while available(mnt) > 0.10 * w.empty:
        try:
            w.create() if w.random.random() < 0.5 or not w.files else w.grow()
        except OSError as e:
            if e.errno not in FULL:
                raise
            break
    fullest = 1.0
    for _ in range(int(steps)):
        w.step()
        fullest = min(fullest, available(mnt) / w.empty)
    with open(model, "wb") as f:
        pickle.dump((w.files, w.snapshots, w.empty), f)
    print(f"   {len(w.files)} files, {w.bytes >> 20} MiB written, {w.refused} writes and {w.removals_refused} removals refused, at the fullest {fullest:.1%} available; "
          f"above 90 % full: {json.dumps(w.done)}", flush=True)


def verify(mnt, model):
    with open(model, "rb") as f:
        files, _, _ = pickle.load(f)
    if sorted(os.listdir(mnt)) != sorted(files):
        sys.exit(f"names differ: {set(os.listdir(mnt)) ^ set(files)}")
    for name, stamps in files.items():
        with open(os.path.join(mnt, name), "rb") as f:
            if f.read() != pattern(stamps):
                sys.exit(f"{name} is not what was written")


def regained(mnt, before, first):
    """What is available, once that is enough of what was before the round and of what was after mkfs: so no round may leave a little for the next."""
    wanted = max(before, first) * REGAINED
    end = time.monotonic() + PATIENCE
    while available(mnt) < wanted:
        if time.monotonic() >= end:
            sys.exit(f"{available(mnt)} bytes available after everything was removed, {before} before the round, {first} after mkfs")
        time.sleep(0.1)
    return available(mnt)


def empty(mnt, model, nenrin, first):
    """Removes everything; prints how many thousandths of what was available after mkfs are so again."""
    with open(model, "rb") as f:
        files, snapshots, before = pickle.load(f)
    w = Work(mnt, 0, nenrin)
    w.files, w.snapshots = files, snapshots
    while w.files:
        w.free(w.remove)
    while w.snapshots:
        w.expire()
    left = regained(mnt, before, int(first))
    data = os.urandom(1 << 20)
    with open(w.path("all"), "wb", buffering=0) as f:
        for _ in range(int(left * 0.9) >> 20):
            f.write(data)
        os.fsync(f.fileno())
    os.unlink(w.path("all"))
    print(left * 1000 // int(first))


if __name__ == "__main__":
    {"work": work, "verify": verify, "empty": empty}[sys.argv[1]](*sys.argv[2:])
