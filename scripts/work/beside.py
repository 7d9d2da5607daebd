#!/usr/bin/env python3
"""Syncs beside programs that write much, in several directories in turns, for bench-beside.sh.

beside.py SYNCERS WRITERS ROUNDS SECONDS OUT DIR...

A syncer appends 4 KiB and syncs, a writer writes files of 100 MB, 1 MiB at a time. OUT gets a list of rounds as JSON, with
syncs per second, the largest of the syncers' 99th percentiles in ms, and MB per second of all writers.
"""
import json
import multiprocessing
import os
import statistics
import sys
import time


def sync(path, stop, out):
    took = []
    with open(path, "wb", buffering=0) as file:
        while not stop.is_set():
            begin = time.monotonic()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            took.append(time.monotonic() - begin)
    out.put((len(took), 1e3 * sorted(took)[len(took) * 99 // 100], 0))


def write(path, stop, out):
    piece, written = os.urandom(1 << 20), 0
    while not stop.is_set():
        with open(path, "wb", buffering=0) as file:
            for _ in range(100):
                if not stop.is_set():
                    written += file.write(piece)
    out.put((0, 0, written))


def one_round(where, syncers, writers, seconds):
    stop, out = multiprocessing.Event(), multiprocessing.Queue()
    jobs = [(sync, "s", n) for n in range(syncers)] + [(write, "w", n) for n in range(writers)]
    programs = [multiprocessing.Process(target=job, args=(f"{where}/{name}{n}", stop, out)) for job, name, n in jobs]
    begin = time.monotonic()
    for program in programs:
        program.start()
    time.sleep(seconds)
    stop.set()
    syncs, slowest, written = zip(*(out.get() for _ in programs))
    for program in programs:
        program.join()
    took = time.monotonic() - begin
    return {"syncs_per_s": sum(syncs) / took, "p99_ms": max(slowest), "written_mb_per_s": sum(written) / 1e6 / took}


def main():
    syncers, writers, rounds, seconds = map(int, sys.argv[1:5])
    out, places = sys.argv[5], sys.argv[6:]
    results = {os.path.basename(where): [] for where in places}
    for k in range(rounds):
        for where in places if k % 2 == 0 else places[::-1]:
            results[os.path.basename(where)].append(one_round(where, syncers, writers, seconds))
    for name, found in results.items():
        spread = {}
        for what in found[0]:
            values = sorted(r[what] for r in found)
            spread[what] = f"{statistics.median(values):.4g} ({values[0]:.4g}-{values[-1]:.4g})"
        print(f"{name}: {spread['syncs_per_s']} syncs/s, p99 {spread['p99_ms']} ms, written {spread['written_mb_per_s']} MB/s")
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"syncers": syncers, "writers": writers, "seconds": seconds, "rounds": results}, file, indent=1)


main()
