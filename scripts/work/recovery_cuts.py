#!/usr/bin/env python3
"""How long a mount takes after a power cut under load: called by bench-sync.sh, which unmounts.

recovery_cuts.py DIR CUTS OUT   writes OUT: one line of JSON for each barrier mode

Images come from `nenrin-sim image`, which drops, keeps or tears what was not flushed; each is mounted
by the real program, with nothing of it in memory.
"""
import json
import os
import subprocess
import sys
import time

NENRIN, SIM = os.environ["NENRIN"], os.environ["NENRIN_SIM"]


def run(*line):
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(line)}: {done.stderr.strip()}")
    return done.stdout


def one(place, barrier, seed):
    image, mnt = os.path.join(place, "cut"), os.path.join(place, "mnt")
    words = run(SIM, "image", "--seed", str(seed), "--barrier", barrier, "--out", image).split()
    load = dict(zip(words[::2], map(int, words[1::2])))
    fd = os.open(image, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("3")
    begin = time.monotonic()
    run(NENRIN, "mount", "-o", f"barrier={barrier}", image, mnt)
    took = time.monotonic() - begin
    found = sum(1 for _ in os.scandir(mnt))
    run(NENRIN, "umount", mnt)
    return {"seed": seed, "ms": round(took * 1000, 1), **load, "found": found}


def keep(rows, out):
    with open(out, "w", encoding="ascii") as f:
        for barrier, samples in rows.items():
            print(json.dumps({"barrier": barrier, "samples": samples}), file=f)


def main():
    place, cuts, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.makedirs(os.path.join(place, "mnt"), exist_ok=True)
    rows = {"sync": [], "checkpoint": [], "none": []}
    for seed in range(cuts):
        for barrier, samples in rows.items():
            samples.append(one(place, barrier, seed))
        if seed % 10 == 9:
            print(f"  {seed + 1} of {cuts} cuts", file=sys.stderr, flush=True)
            keep(rows, out)
    keep(rows, out)


main()
