#!/usr/bin/env python3
"""What the size of a volume costs, empty as it is: see scripts/large.sh."""

import argparse
import os
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid):
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_kib(pid):
    """What it has in memory, its binary aside."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def timed(*command):
    """Seconds that a command takes, and what it prints."""
    begin = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.monotonic() - begin, done.stdout


def syncs(path, count, pause):
    """Milliseconds of each append of 4 KiB with its fsync."""
    out = []
    with open(path, "ab", buffering=0) as file:
        for number in range(count):
            begin = time.monotonic()
            file.write(bytes([number % 256]) * 4096)
            os.fsync(file.fileno())
            out.append((time.monotonic() - begin) * 1e3)
            time.sleep(pause)
    return sorted(out)


def measure(args, size):
    """One volume of that size, in a sparse file."""
    image, at = os.path.join(args.dir, "image"), os.path.join(args.dir, "at")
    os.makedirs(at, exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(size << 30)
    device = timed("losetup", "--direct-io=on", "--find", "--show", image)[1].strip()
    try:
        return measure_device(args, size, device, at)
    finally:
        timed("losetup", "--detach", device)
        os.remove(image)


def measure_device(args, size, device, at):
    """The same of its device."""
    made = timed(args.nenrin, "mkfs", device)[0]
    mounted = timed(args.nenrin, "mount", device, at)[0]
    try:
        pid = args.pid_of(at)
        # Something that index checkpoints and the cleaner could look at.
        syncs(os.path.join(at, "first"), 200, 0)
        time.sleep(2)
        before, begin = processor_seconds(pid), time.monotonic()
        time.sleep(args.seconds)
        idle = (processor_seconds(pid) - before) / (time.monotonic() - begin)
        before, begin = processor_seconds(pid), time.monotonic()
        took = syncs(os.path.join(at, "second"), int(args.seconds * 200), 0.004)
        busy = (processor_seconds(pid) - before) / (time.monotonic() - begin)
        memory = memory_kib(pid)
    finally:
        unmounted = timed(args.nenrin, "umount", at)[0]
    again = timed(args.nenrin, "mount", device, at)[0]
    timed(args.nenrin, "umount", at)
    return {
        "gib": size, "mkfs_s": made, "mount_s": mounted, "umount_s": unmounted, "second_mount_s": again,
        "memory_mib": memory / 1024, "idle_share": idle, "busy_share": busy,
        "p50_ms": took[len(took) // 2], "p99_ms": took[len(took) * 99 // 100], "max_ms": took[-1], "syncs": len(took),
    }


def pid_of(nenrin):
    """Finds the daemon of a mount by its control: the process that has the mount point in its command."""
    def find(at):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if os.fsencode(at) in words and os.path.basename(words[0]) == os.fsencode(os.path.basename(nenrin)):
                return int(pid)
        raise SystemExit(f"large.py: no daemon of {at} was found")
    return find


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nenrin", required=True)
    parser.add_argument("--dir", required=True, help="an empty directory")
    parser.add_argument("--gib", type=int, nargs="+", default=[8, 1024, 8192])
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    args.pid_of = pid_of(args.nenrin)
    print("| GiB | mkfs s | mount s | umount s | memory MiB | idle, share of a processor | 200 syncs a second | p50 ms | p99 ms | most ms |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for size in args.gib:
        m = measure(args, size)
        print(f"| {m['gib']} | {m['mkfs_s']:.2f} | {m['mount_s']:.2f}, {m['second_mount_s']:.2f} | {m['umount_s']:.2f} "
              f"| {m['memory_mib']:.0f} | {m['idle_share']:.4f} | {m['busy_share']:.3f} | {m['p50_ms']:.2f} | {m['p99_ms']:.2f} | {m['max_ms']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
