#!/usr/bin/env python3
"""What going back in time costs: called by bench-history.sh, which unmounts.

bench_history.py DIR FILES BYTES VERSIONS READ
"""
import json
import os
import statistics
import subprocess
import sys
import time

NENRIN = os.environ["NENRIN"]
SAMPLES = 15
COLD_SAMPLES = 7
CHUNK = 1 << 20


def size(text):
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def run(*args):
    """Runs nenrin; its output, and how long it took in seconds."""
    begin = time.monotonic()
    done = subprocess.run([NENRIN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    took = time.monotonic() - begin
    if done.returncode:
        sys.exit(f"nenrin {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout, took


def say(text):
    print(text, file=sys.stderr, flush=True)


def shown(values, unit=1000):
    values = sorted(v * unit for v in values)
    return f"{statistics.median(values):.1f} ({values[0]:.1f}-{values[-1]:.1f}, n={len(values)})"


class Volume:
    def __init__(self, place, files, size_bytes):
        self.image, self.mnt, self.past = (os.path.join(place, n) for n in ("image", "mnt", "past"))
        os.mkdir(self.mnt)
        os.mkdir(self.past)
        self.need = size_bytes
        run("mkfs", "--size", str((size_bytes * 3 // 2 + files * 1024 + (8 << 30)) >> 20) + "M", self.image)
        self.mount()

    def mount(self):
        run("mount", "-o", "checkpoint=0", self.image, self.mnt)

    def cold(self):
        """Nothing of the volume is in memory any more."""
        run("umount", self.mnt)
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("3")
        self.mount()

    def at(self, when, path):
        return os.path.join(self.mnt, ".nenrin/at", when, path)

    def snapshot(self, name):
        return run("snapshot", "create", self.mnt, name)[1]


def fill(volume, files, total):
    say(f"making {files} files and {total >> 20} MiB")
    for n in range(files):
        if n % 1000 == 0:
            directory = os.path.join(volume.mnt, f"d{n // 1000:05}")
            os.mkdir(directory)
        os.close(os.open(os.path.join(directory, f"file {n % 1000:03}"), os.O_CREAT | os.O_WRONLY, 0o644))
    block = os.urandom(CHUNK)
    with open(os.path.join(volume.mnt, "big"), "wb", buffering=0) as f:
        for _ in range(total // CHUNK):
            f.write(block)


def listing(path):
    begin = time.monotonic()
    for entry in os.scandir(path):
        entry.stat(follow_symlinks=False)
    return time.monotonic() - begin


def reading(path):
    begin = time.monotonic()
    with open(path, "rb", buffering=0) as f:
        while f.read(CHUNK):
            pass
    return time.monotonic() - begin


def in_turn(volume, action, live, past):
    """The same of the live state and of the past, cold, in turn."""
    took = ([], [])
    for _ in range(COLD_SAMPLES):
        for values, path in zip(took, (live, past)):
            volume.cold()
            values.append(action(path))
    return took


def main():
    place, files, total, versions, read = sys.argv[1], *(size(a) for a in sys.argv[2:6])
    volume = Volume(place, files, total + 2 * read)
    fill(volume, files, total)
    # Some of the files are in one large directory, which is listed.
    many = os.path.join(volume.mnt, "many")
    os.mkdir(many)
    for n in range(10_000):
        os.close(os.open(os.path.join(many, f"entry {n}"), os.O_CREAT | os.O_WRONLY, 0o644))
    old = os.path.join(volume.mnt, "old")
    block = os.urandom(CHUNK)
    with open(old, "wb", buffering=0) as f:
        for _ in range(read // CHUNK):
            f.write(block)
    run("checkpoint", "create", volume.mnt)

    say("snapshots")
    created = []
    for n in range(SAMPLES):
        with open(os.path.join(volume.mnt, "small"), "w", encoding="ascii") as f:
            f.write(f"{n}")
        created.append(volume.snapshot(f"s{n}"))
    volume.snapshot("yesterday")
    # Since then half of the entries were replaced, and all of the file was overwritten.
    for n in range(0, 10_000, 2):
        path = os.path.join(many, f"entry {n}")
        os.remove(path)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    with open(old, "r+b", buffering=0) as f:
        for _ in range(read // CHUNK):
            f.write(block[::-1])
    run("checkpoint", "create", volume.mnt)

    say("mounts of a past state")
    mounted = []
    for _ in range(SAMPLES):
        mounted.append(run("mount", "-o", "at=yesterday", volume.image, volume.past)[1])
        run("umount", volume.past)

    say(f"{versions} versions of one file")
    saved = os.path.join(volume.mnt, "d00000", "file 000")
    for n in range(versions):
        with open(saved, "w", encoding="ascii") as f:
            f.write(f"version {n}\n")
        run("checkpoint", "create", volume.mnt)
    history = []
    for _ in range(SAMPLES):
        text, took = run("history", "--json", saved)
        history.append(took)
    found = len(json.loads(text))
    if found < versions:
        sys.exit(f"only {found} of {versions} versions were listed")
    volume.cold()
    cold_history = run("history", "--json", saved)[1]

    say("cold listings and reads")
    listed = in_turn(volume, listing, many, volume.at("yesterday", "many"))
    reads = in_turn(volume, reading, old, volume.at("yesterday", "old"))
    info = json.loads(run("info", "--json", volume.mnt)[0])

    ratio = lambda pair: statistics.median(pair[1]) / statistics.median(pair[0])
    print(f"""# What going back in time costs

Made by `make bench-history`: {files:,} files, {total >> 20} MiB in one more, checkpoint=0, write-through, retention default, {info['live_bytes'] * 100 // info['total_bytes']} %
of the volume live. Medians (lowest-highest, samples) in milliseconds, the whole command with its process included. Cold: unmounted, caches dropped, mounted,
live and past in turn.

| what | ms | aim |
|---|---|---|
| `snapshot create` | {shown(created)} | 10 |
| mount of a past state beside the live mount | {shown(mounted)} | 300 |
| `history` of a file with {found:,} states | {shown(history)} | 100 |
| the same, cold, once | {cold_history * 1000:.1f} | |
| cold listing with attributes of 10,000 entries, live | {shown(listed[0])} | |
| the same as of yesterday, half of them replaced since | {shown(listed[1])} | |
| cold sequential read of {read >> 20} MiB, live | {shown(reads[0])} | |
| the same as of yesterday, all overwritten since | {shown(reads[1])} | |

The listing of the past takes {ratio(listed):.2f} times the live one (aim: at most 2). Reading a past version goes at {1 / ratio(reads):.2f} of the live
speed (aim: at least 0.8).""")


main()
