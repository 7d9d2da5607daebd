"""trace_cost.py files|requests DEVICE DIR PAIRS REQUESTS: see scripts/trace-cost.sh."""

import json
import os
import statistics
import subprocess
import sys

COMMON = ["fio", "--name=load", "--randseed=1", "--group_reporting", "--output-format=json"]
JOBS = 2


def requests_load(device, requests):
    return COMMON + [
        f"--filename={device}", "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=io_uring", "--iodepth=32",
        f"--numjobs={JOBS}", f"--number_ios={requests // JOBS}", "--io_size=100g",
    ]


def files_load(directory):
    return COMMON + [
        f"--directory={directory}/mnt", "--rw=randwrite", "--bsrange=4k-256k", "--ioengine=psync", "--fsync=16",
        "--size=96m", "--io_size=192m", f"--numjobs={JOBS}", "--fallocate=native", "--overwrite=0",
    ]


def fio_says(text):
    """Operations a second and seconds."""
    job = json.loads(text[text.index("{"):])["jobs"][0]
    return job["write"]["iops"], job["write"]["runtime"] / 1000


def processor_seconds():
    t = os.times()
    return t.children_user + t.children_system


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trace_cost.py: {command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Side:
    """One of two: without, or recorded."""

    def __init__(self):
        self.rates, self.seconds, self.processor = [], [], []

    def add(self, command):
        before = processor_seconds()
        rate, seconds = fio_says(run(command))
        self.processor.append(processor_seconds() - before)
        self.rates.append(rate)
        self.seconds.append(seconds)


def main():
    kind, device, directory, pairs, requests = sys.argv[1:3] + [sys.argv[3]] + [int(n) for n in sys.argv[4:6]]
    trace = f"{directory}/trace"
    load = requests_load(device, requests) if kind == "requests" else files_load(directory)
    record = [os.environ["NENRIN"], "trace", "record", "--device", device, "-o", trace, "--"]
    run(load)
    without, recorded, lost, disagree, counted = Side(), Side(), 0, 0, []
    for turn in range(pairs):
        for side in ([without, recorded], [recorded, without])[turn % 2]:
            if side is without:
                without.add(load)
                continue
            recorded.add(record + load)
            report = json.loads(run([os.environ["NENRIN"], "trace", "report", "--json", trace]))[0]
            lost += report["lost"]
            writes = report["operations"]["write"]["requests"]
            counted.append(writes)
            disagree += report["counters_agree"] is not True or writes < requests
    # What a recording costs however little there is to record.
    before = processor_seconds()
    for _ in range(10):
        run(record + ["true"])
    start = (processor_seconds() - before) / 10
    slower = [100 * (1 - b / a) for a, b in zip(without.rates, recorded.rates)]
    median = statistics.median
    per = 1e6 / median(counted)

    def line(name, values, unit=""):
        print(f"{name:48} median {median(values):10.2f}{unit} ({min(values):.2f} to {max(values):.2f})")

    print(f"{kind}: {pairs} pairs, {median(counted):.0f} write requests each")
    line("  without: operations a second", without.rates)
    line("  recorded: operations a second", recorded.rates)
    line("  recorded: requests a second", [c / s for c, s in zip(counted, recorded.seconds)])
    line("  slower, pair by pair", slower, " %")
    print(f"{'  slower, median against median':48} {100 * (1 - median(recorded.rates) / median(without.rates)):17.2f} %")
    line("  processor time a request: the load, us", [p * per for p in without.processor])
    extra = [(b - a - start) * per for a, b in zip(without.processor, recorded.processor)]
    line("  processor time a request: recording, us", extra)
    share = 100 * median(extra) / (median(without.processor) * per)
    print(f"  recording in per cent of the load's processor time: {share:.1f}; beginning and ending one: {start * 1e3:.0f} ms")
    print(f"  {lost} events lost; counts differ from the device's own in {disagree} of {pairs} runs")


main()
