#!/usr/bin/env python3
"""How long a mount takes after a power cut under load, and whether all that was promised is there: called by bench-sync.sh, which unmounts.

recovery_cuts.py DIR CUTS OUT   writes OUT: one line of JSON for each barrier mode

Images come from `nenrin-sim image`, which cuts inside a call, at any request to the device, and drops, keeps or tears what was not
flushed; each is mounted by the real program, with nothing of it in memory. Then `nenrin-sim judge` reads every file and compares it.
"""
import json
import os
import subprocess
import sys
import time

NENRIN, SIM = os.environ["NENRIN"], os.environ["NENRIN_SIM"]


def run(*line, codes=(0,)):
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(line)}: {done.stderr.strip()}")
    return done.stdout


def one(place, barrier, seed):
    image, mnt, told = (os.path.join(place, name) for name in ("cut", "mnt", "told"))
    load = json.loads(run(SIM, "image", "--seed", str(seed), "--barrier", barrier, "--out", image, "--told", told))
    fd = os.open(image, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("3")
    begin = time.monotonic()
    run(NENRIN, "mount", "-o", f"barrier={barrier}", image, mnt)
    took = time.monotonic() - begin
    judged = json.loads(run(SIM, "judge", "--told", told, mnt, codes=(0, 1)))
    run(NENRIN, "umount", mnt)
    for line in judged["mismatches"][:3]:
        print(f"WRONG: barrier={barrier}, seed {seed}: {line}", file=sys.stderr, flush=True)
    return {"seed": seed, "ms": round(took * 1000, 1), **load, "judged": judged | {"mismatches": len(judged["mismatches"])}}


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
