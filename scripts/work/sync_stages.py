"""Where the time of a write and its sync goes, by the kernel's tracepoints.

sync_stages.py MOUNT DEVICE SECONDS [JSON]: appends 4 KiB and calls fsync, again and again, and tells of each stage the median, the mean, and
the 10th and 90th percentiles in microseconds; for whether two things happened on one processor, the share. For a thread that polls "until the
thread runs again" is nothing by construction, and what it takes until it looks is in "until the answer".
"""

import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

INSTANCE = Path("/sys/kernel/tracing/instances/nenrin-stages")
LINE = re.compile(r"^\s*.+-(\d+)\s+\[(\d+)\]\s+\S+\s+(\d+\.\d+): (\w+): (.*)$")
SENT = re.compile(r"req (\d+) opcode \d+ \(FUSE_(WRITE|FSYNC)\)")
REQUEST = re.compile(r"req (\d+)")
NEXT = re.compile(r"next_comm=(.+?) next_pid=(\d+)")
WARM_UP = 500


def put(name, value):
    (INSTANCE / name).write_text(value)


def traced(mount, device, seconds):
    """The lines that the kernel wrote while this program appended, and how many times it did."""
    number = os.stat(device).st_rdev
    on_device = f"dev=={os.major(number) << 20 | os.minor(number)}"
    INSTANCE.mkdir(exist_ok=True)
    try:
        put("tracing_on", "0")
        put("buffer_size_kb", "40000")
        put("trace_clock", "mono")
        for event in ("block/block_bio_queue", "block/block_rq_complete"):
            put(f"events/{event}/filter", on_device)
            put(f"events/{event}/enable", "1")
        for event in ("fuse/fuse_request_send", "fuse/fuse_request_end", "sched/sched_switch"):
            put(f"events/{event}/enable", "1")
        file = os.open(Path(mount) / "stages", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        data = bytes(4096)
        for _ in range(WARM_UP):
            os.write(file, data)
            os.fsync(file)
        put("tracing_on", "1")
        done, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            os.write(file, data)
            os.fsync(file)
            done += 1
        put("tracing_on", "0")
        os.close(file)
        if any(re.search(r"overrun: [1-9]", stats.read_text()) for stats in INSTANCE.glob("per_cpu/*/stats")):
            sys.exit("sync_stages.py: the kernel's buffer was too small; trace for a shorter time")
        return (INSTANCE / "trace").read_text().splitlines(), done
    finally:
        put("events/enable", "0")
        INSTANCE.rmdir()


def events(lines):
    """(microseconds, pid, processor, event, its text), in the order of time."""
    found = (LINE.match(line) for line in lines)
    return sorted((float(m[3]) * 1e6, int(m[1]), int(m[2]), m[4], m[5]) for m in found if m)


def stages(all_events, program):
    """{(request, stage): [microseconds, or whether]}"""
    found, now = {}, None
    for at, pid, processor, event, text in all_events:
        if event == "fuse_request_send":
            sent = SENT.search(text)
            if sent and pid == program:
                now = {"request": sent[1], "name": sent[2], "sent": at, "from": processor}
        elif now is None:
            continue
        elif event == "sched_switch":
            to = NEXT.search(text)
            if int(to[2]) == program and "answered" in now:
                now.update(back=at, to=processor)
                note(found, now)
                now = None
            elif "taken" not in now and to[1].startswith("nenrin"):
                now.update(taken=at, by=processor)
            elif "completed" in now and "woken" not in now and int(to[2]) == now["writer"]:
                now["woken"] = at
        elif event == "block_bio_queue" and "asked" not in now:
            now.update(asked=at, writer=pid)
        elif event == "block_rq_complete" and "asked" in now:
            # A flush that the block layer puts behind the write is the last of two.
            now["completed"] = at
            now.pop("woken", None)
        elif event == "fuse_request_end" and REQUEST.search(text)[1] == now["request"]:
            now.update(answered=at, at=processor)
    return found


def note(found, one):
    def add(stage, value):
        found.setdefault((one["name"], stage), []).append(value)

    if "taken" not in one:
        return
    add("sent until a thread of the daemon runs", one["taken"] - one["sent"])
    if "asked" in one and "completed" in one:
        add("until the device is asked", one["asked"] - one["taken"])
        add("until the device is done", one["completed"] - one["asked"])
        # Who polls does not sleep, so nobody has to be woken.
        woken = one.get("woken", one["completed"])
        add("until the thread runs again", woken - one["completed"])
        add("until the answer", one["answered"] - woken)
    else:
        add("until the answer", one["answered"] - one["taken"])
    add("until the program runs", one["back"] - one["answered"])
    add("all", one["back"] - one["sent"])
    add("share taken where it was sent", one["by"] == one["from"])
    add("share answered where it is awaited", one["at"] == one["to"])


def summary(values):
    if isinstance(values[0], bool):
        return {"share": sum(values) / len(values), "n": len(values)}
    cut = statistics.quantiles(values, n=10) if len(values) > 1 else values * 9
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "p10": cut[0],
        "p90": cut[-1],
        "n": len(values),
    }


def main():
    lines, done = traced(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    found = stages(events(lines), os.getpid())
    if not found:
        sys.exit("sync_stages.py: the kernel traced nothing of this program")
    result = [{"request": r, "stage": s, **summary(v)} for (r, s), v in found.items()]
    result.sort(key=lambda one: one["request"], reverse=True)
    for one in result:
        what = f"{one['request']:5} {one['stage']:40}"
        if "share" in one:
            print(f"{what} {one['share']:8.2f}{'':32} n {one['n']}")
        else:
            times = " ".join(f"{name} {one[name]:7.1f}" for name in ("median", "mean", "p10", "p90"))
            print(f"{what} {times} us n {one['n']}")
    print(f"{done} times, {float(sys.argv[3]) * 1e6 / done:.1f} us each")
    if len(sys.argv) > 4:
        Path(sys.argv[4]).write_text(json.dumps({"done": done, "stages": result}))


if __name__ == "__main__":
    main()
