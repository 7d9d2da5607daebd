"""What it takes to add, remove and replace a device, and what is left of the rate without one and while another takes its place: time,
and bytes that the devices counted. Four devices and a spare one, each limited to the same rate; nenrin beside btrfs.
Called by bench-stripe.sh; needs root and the blkio controller of cgroup version 1."""
import argparse
import json
import os
import re
import subprocess
import time

BLKIO = "/sys/fs/cgroup/blkio/blkio.throttle.%s_%s_device"
PIECE = 64 << 10
# They are written in turn to a file of so many.
PIECES = 1024
# Data and metadata of btrfs for each profile, and whether it bears the loss of a device.
PROFILES = {"stripe": ("raid0", "raid0", False), "mirror": ("raid1", "raid1", True), "parity": ("raid5", "raid1", True)}


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{os.path.basename(words[0])} {' '.join(words[1:])}: {done.stdout.strip()}")
    return done.stdout


class Devices:
    def __init__(self, args):
        self.args, self.all = args, []
        for n in range(args.devices + 1):
            image = os.path.join(args.dir, f"{n}.img")
            with open(image, "wb") as file:
                for _ in range(args.size):
                    file.write(bytes(1 << 20))
            self.all.append(run("losetup", "--direct-io=on", "-f", "--show", image).strip())
        self.limit(args.iops, args.bps)

    def limit(self, iops, bps):
        for device in self.all:
            number = os.stat(device).st_rdev
            for way in ("read", "write"):
                for what, value in (("iops", iops), ("bps", bps)):
                    with open(BLKIO % (way, what), "w", encoding="ascii") as file:
                        file.write(f"{os.major(number)}:{os.minor(number)} {value}")

    def counted(self):
        """Bytes read and written on all devices."""
        total = [0, 0]
        for device in self.all:
            with open(f"/sys/block/{os.path.basename(device)}/stat", encoding="ascii") as file:
                fields = file.read().split()
            total[0] += int(fields[2]) * 512
            total[1] += int(fields[6]) * 512
        return total

    def end(self):
        self.limit(0, 0)
        for device in self.all:
            subprocess.run(["losetup", "-d", device], check=False)


class Nenrin:
    def __init__(self, args, profile, devices, point):
        self.program, self.devices, self.point = args.nenrin, list(devices), point
        run(self.program, "mkfs", "--force", "--profile", profile, *devices)
        self.mount()

    def mount(self, without=None):
        left = [d for d in self.devices if d != without]
        run(self.program, "mount", "-o", "degraded" if without else "rw", ",".join(left), self.point)

    def umount(self):
        run(self.program, "umount", self.point)

    def add(self, device):
        run(self.program, "device", "add", "--force", self.point, device)
        self.devices.append(device)

    def remove(self, device):
        run(self.program, "device", "remove", self.point, device)
        self.devices.remove(device)

    def replace(self, old, new):
        run(self.program, "device", "replace", "--force", self.point, str(self.devices.index(old) + 1), new)
        self.devices[self.devices.index(old)] = new


class Btrfs:
    def __init__(self, args, profile, devices, point):
        del args
        self.devices, self.point = list(devices), point
        data, metadata, _ = PROFILES[profile]
        run("mkfs.btrfs", "-q", "-f", "-K", "-d", data, "-m", metadata, *devices)
        self.mount()

    def mount(self, without=None):
        run("btrfs", "device", "scan", "--forget")
        left = [d for d in self.devices if d != without]
        options = [f"device={d}" for d in left] + ["nodiscard"] + (["degraded"] if without else [])
        run("mount", "-t", "btrfs", "-o", ",".join(options), left[0], self.point)

    def umount(self):
        run("umount", self.point)

    def add(self, device):
        run("btrfs", "device", "add", "-f", "-K", device, self.point)
        run("btrfs", "balance", "start", "--full-balance", self.point)
        self.devices.append(device)

    def remove(self, device):
        run("btrfs", "device", "remove", device, self.point)
        self.devices.remove(device)

    def replace(self, old, new):
        shown = run("btrfs", "filesystem", "show", self.point)
        known = {path: number for number, path in re.findall(r"devid\s+(\d+) .*path (\S+)", shown)}
        # One that is gone is not listed by its path.
        gone = set(range(1, len(self.devices) + 1)) - {int(n) for path, n in known.items() if path in self.devices}
        number = known[old] if old in known else str(min(gone))
        run("btrfs", "replace", "start", "-B", "-f", number, new, self.point)
        self.devices[self.devices.index(old)] = new


def fill(point, mib):
    piece = os.urandom(1 << 20)
    with open(os.path.join(point, "data"), "wb") as file:
        for _ in range(mib):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def rate(path, until):
    """Pieces written and synced in a second, until it is time to end."""
    fd, count, begin = os.open(path, os.O_WRONLY | os.O_CREAT), 0, time.monotonic()
    while not until(time.monotonic() - begin):
        os.pwrite(fd, bytes(PIECE), count % PIECES * PIECE)
        os.fsync(fd)
        count += 1
    os.close(fd)
    return count / (time.monotonic() - begin)


def while_it_goes_on(path, stop, change):
    """The rate meanwhile, by a process of its own, which a file ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = rate(path, lambda _: os.path.exists(stop))
            os.write(writer, str(found).encode())
        finally:
            os._exit(0)
    try:
        change()
    finally:
        with open(stop, "wb"):
            pass
        os.waitpid(child, 0)
        os.unlink(stop)
    found = os.read(reader, 100)
    os.close(reader)
    os.close(writer)
    return float(found)


def measured(devices, change):
    before, begin = devices.counted(), time.monotonic()
    change()
    os.sync()
    took, after = time.monotonic() - begin, devices.counted()
    return {"seconds": took, "read": after[0] - before[0], "written": after[1] - before[1]}


def one(kind, profile, devices, args):
    point = os.path.join(args.dir, "mnt")
    members, spare = devices.all[:-1], devices.all[-1]
    made = kind(args, profile, members, point)
    found = {"file_system": kind.__name__.lower(), "profile": profile}
    try:
        fill(point, args.data)
        log = os.path.join(point, "log")
        found["add"] = measured(devices, lambda: made.add(spare))
        found["remove"] = measured(devices, lambda: made.remove(spare))
        found["replace"] = measured(devices, lambda: made.replace(members[1], spare))
        if PROFILES[profile][2]:
            found["rate_whole"] = rate(log, lambda passed: passed > args.seconds)
            made.umount()
            lost, new = members[2], members[1]
            made.mount(without=lost)
            found["rate_degraded"] = rate(log, lambda passed: passed > args.seconds)
            rebuilt = {}

            def rebuild():
                rebuilt.update(measured(devices, lambda: made.replace(lost, new)))

            found["rate_rebuilding"] = while_it_goes_on(log, os.path.join(args.dir, "stop"), rebuild)
            found["rebuild"] = rebuilt
    finally:
        try:
            made.umount()
        except RuntimeError:
            subprocess.run(["umount", "-l", point], check=False)
    return found


def main():
    parser = argparse.ArgumentParser()
    for name in ("nenrin", "dir", "out"):
        parser.add_argument(f"--{name}", required=True)
    numbers = dict(devices=4, size=1024, data=600, iops=1000, bps=40_000_000, seconds=4)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profiles", default=",".join(PROFILES))
    args = parser.parse_args()
    os.makedirs(os.path.join(args.dir, "mnt"))
    devices, found = Devices(args), []
    try:
        for profile in args.profiles.split(","):
            for kind in (Nenrin, Btrfs):
                try:
                    found.append(one(kind, profile, devices, args))
                except (RuntimeError, OSError) as error:
                    found.append({"file_system": kind.__name__.lower(), "profile": profile, "failed": str(error)})
                print(json.dumps(found[-1]), flush=True)
    finally:
        devices.end()
    settings = {name: getattr(args, name) for name in numbers}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"settings": settings, "changes": found}, file)


main()
