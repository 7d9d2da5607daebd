"""What is left of the rate when one of several devices becomes slow: rounds of the same work on a volume whose devices
are all limited to the same rate of requests, and on one of which one device gets a hundredth of that, in turns.
Called by bench-slow.sh; needs root and the blkio controller of cgroup version 1."""
import argparse
import json
import os
import statistics
import subprocess
import time

BLKIO = "/sys/fs/cgroup/blkio/blkio.throttle.%s_iops_device"
UNIT = 64 << 10


class Volume:
    def __init__(self, args):
        self.args, self.loops, self.point = args, [], os.path.join(args.dir, "mnt")
        os.makedirs(self.point)
        for n in range(args.devices):
            image = os.path.join(args.dir, f"{n}.img")
            with open(image, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, args.size << 20)
            words = ["losetup", "--direct-io=on", "-f", "--show", image]
            self.loops.append(subprocess.check_output(words, text=True).strip())
        self.call("mkfs", "--force", "--profile", args.profile, *self.loops)

    def call(self, *words):
        subprocess.run([self.args.nenrin, *words], check=True, stdout=subprocess.DEVNULL)

    def limit(self, index, iops):
        number = os.stat(self.loops[index]).st_rdev
        for way in ("read", "write"):
            with open(BLKIO % way, "w") as file:
                file.write(f"{os.major(number)}:{os.minor(number)} {iops}")

    def mount(self):
        self.call("mount", "-o", "checkpoint=0", ",".join(self.loops), self.point)

    def umount(self):
        self.call("umount", self.point)

    def requests(self, index):
        """Writes and flushes that a device has completed, and reads."""
        with open(f"/sys/block/{os.path.basename(self.loops[index])}/stat") as file:
            fields = [int(word) for word in file.read().split()]
        return fields[4] + fields[15], fields[0]

    def slow(self):
        """How many devices are taken for slow."""
        shown = json.loads(subprocess.check_output([self.args.nenrin, "device", "list", "--json", self.point]))
        return sum(bool(device.get("slow_since")) for device in shown)

    def end(self):
        subprocess.run([self.args.nenrin, "umount", self.point], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for index, loop in enumerate(self.loops):
            self.limit(index, 0)
            subprocess.run(["losetup", "-d", loop], check=False)


def appends(path, seconds):
    """Appends of 4 KiB with an fsync each, a second."""
    fd, count, begin = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 0, time.monotonic()
    while time.monotonic() < begin + seconds:
        os.write(fd, bytes(4096))
        os.fsync(fd)
        count += 1
    os.close(fd)
    return count / (time.monotonic() - begin)


def write_files(directory, count):
    """Files of one unit, each synced, a second."""
    os.makedirs(directory)
    begin = time.monotonic()
    for n in range(count):
        with open(os.path.join(directory, str(n)), "wb") as file:
            file.write(os.urandom(UNIT))
            file.flush()
            os.fsync(file.fileno())
    return count / (time.monotonic() - begin)


def read_files(directory, count):
    """The same files, read cold."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")
    begin = time.monotonic()
    for n in range(count):
        with open(os.path.join(directory, str(n)), "rb") as file:
            assert len(file.read()) == UNIT
    return count / (time.monotonic() - begin)


def one(volume, name, slow):
    """One slice: work while nothing is slow, then that one device is (or not), then the measured part."""
    args = volume.args
    for index in range(args.devices):
        volume.limit(index, args.iops)
    volume.mount()
    appends(os.path.join(volume.point, "log"), 2)
    victim = args.devices - 1
    if slow:
        volume.limit(victim, max(1, args.iops // args.times))
    first = appends(os.path.join(volume.point, "log"), args.settle)
    before, directory = volume.requests(victim), os.path.join(volume.point, name)
    sample = {
        "slow": slow,
        "appends in the seconds before": first,
        "appends": appends(os.path.join(volume.point, "log"), args.seconds),
        "files written": write_files(directory, args.files),
        "files read cold": read_files(directory, args.files),
    }
    after = volume.requests(victim)
    sample["devices taken for slow"] = volume.slow()
    sample["writes and flushes there"], sample["reads there"] = (now - then for now, then in zip(after, before))
    volume.limit(victim, args.iops)
    volume.umount()
    return sample


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nenrin", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--profile", default="stripe")
    numbers = dict(devices=4, size=512, iops=8000, times=100, rounds=4, settle=6, seconds=5, files=300)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    volume, samples = Volume(args), []
    try:
        for n in range(args.rounds):
            for slow in (False, True) if n % 2 == 0 else (True, False):
                samples.append(one(volume, f"{n}-{slow}", slow))
    finally:
        volume.end()
    settings = {name: getattr(args, name) for name in [*numbers, "profile"]}
    with open(args.out, "w") as file:
        json.dump({"settings": settings, "samples": samples}, file, indent=1)
    print(f"{args.profile}, {args.devices} devices of {args.size} MiB, each limited to {args.iops} requests a second; one to "
          f"{max(1, args.iops // args.times)}, measured after {args.settle} s; medians of {args.rounds} slices (least to most)")
    for key in [key for key in samples[0] if key != "slow"]:
        all_even, slow = ([s[key] for s in samples if s["slow"] is wanted] for wanted in (False, True))
        a, b = statistics.median(all_even), statistics.median(slow)
        ratio = f"{b / a:.2f}" if a else "-"
        print(f"{key:31} none slow {a:8.1f} ({min(all_even):.1f}-{max(all_even):.1f})   "
              f"one slow {b:8.1f} ({min(slow):.1f}-{max(slow):.1f})   ratio {ratio}")


main()
