#!/usr/bin/env python3
"""Makes docs/benchmarks/stripe.md and its plots of what bench-stripe.sh left in DIR.

bench_stripe.py DIR   reads limited.json and unlimited.json (nenrin-bench), and changes.json (device_changes.py)
"""
import json
import os
import sys

from bench_sync import Plot, digits, entries, facts, load, table, targets

PAPER = """
The founding paper (VAFS, four disks against one on UFS): sequential read 2.3x, write 6.5x, random read 3.0x, random write 8.5x.
"""
# More than this of what a device may do in a second cannot have been limited.
SLACK = 1.08
REQUEST_BYTES_MAX = 512 << 10


def median(row, name):
    entry = next((e for e in entries(row) if e["name"] == name), None)
    return entry["summary"]["median"] if entry else None


def scaling(results, where, part):
    """One, two, three and four devices: a table and a plot of times of one."""
    names = ["nenrin", "nenrin@2", "nenrin@3", "nenrin@4"]
    lines, body = {}, ""
    for row in results["rows"]:
        values = [median(row, name) for name in names]
        if not values[0] or not any(values[1:]):
            continue
        points = [(n + 1, v / values[0]) for n, v in enumerate(values) if v]
        lines[row["name"]] = points
        times = dict(points)
        cells = " | ".join(f"{times[n]:.2f}x" if n in times else "" for n in (2, 3, 4))
        body += f"| {row['title']} | {digits(values[0])} {row['unit']} | {cells} |\n"
    if not lines:
        return ""
    every = [point for points in lines.values() for point in points]
    plot = Plot("times of one device", [1, 4], [y for _, y in every] + [1, 10], unit="times of one device", x_name=lambda n: f"{n:.0f}")
    plot.mark_x([1, 2, 3, 4])
    for name, points in lines.items():
        plot.line(name, points)
    plot.save(os.path.join(where, f"{part}.svg"))
    head = "\n### Stripes over 1, 2, 3 and 4 devices\n\n| work | one | two | three | four |\n|---|---:|---:|---:|---:|\n"
    return head + body + f"\n![times of one device, by number of devices](stripe/{part}.svg)\n"


def degraded(results):
    body = ""
    for row in results["rows"]:
        for kind in ("nenrin", "btrfs"):
            whole, left = median(row, f"{kind}@2:mirror"), median(row, f"{kind}@2:degraded")
            if whole and left:
                body += f"| {row['title']} | {kind} | {digits(whole)} | {digits(left)} {row['unit']} | {left / whole:.2f} |\n"
    head = "\n### A mirror without one of its two devices\n\n| work | | whole | degraded | ratio |\n|---|---|---:|---:|---:|\n"
    return head + body if body else ""


def counters(results):
    """What the devices' own counters say of each contender: size of requests, how even the devices are used, the limit."""
    limit = results["settings"].get("limit_bps")
    body, broken = "", []
    for row in results["rows"]:
        for e in entries(row):
            counted = [s for s in e["samples"] if s["round"] > 0]
            devices = [s["devices"] if s.get("devices") else [s["device"]] for s in counted]
            total = {k: sum(d[k] for s in devices for d in s) for k in ("reads", "read_bytes", "writes", "write_bytes", "flushes")}
            most = sum(max(d["read_bytes"] + d["write_bytes"] for d in s) for s in devices)
            even = most * max(len(s) for s in devices) / max(total["read_bytes"] + total["write_bytes"], 1)
            writes = max(total["writes"] - (total["flushes"] if e["name"].startswith("nenrin") else 0), 0)

            def kib(count, size):
                return digits(size / count / 1024) if count else ""

            for s, d in zip(counted, devices):
                seconds = s["nanos"] / 1e9
                if limit and s["settled"] and any(max(x["read_bytes"], x["write_bytes"]) > limit * SLACK * (seconds + 0.6) for x in d):
                    broken.append(f"{row['name']} of {e['name']}")
            for count, size in ((total["reads"], total["read_bytes"]), (writes, total["write_bytes"])):
                if count and size / count > REQUEST_BYTES_MAX:
                    broken.append(f"{row['name']} of {e['name']}: requests of {size / count / 1024:.0f} KiB")
            if e["name"] in ("ext4", "nenrin", "nenrin@4", "nenrin@2:mirror", "nenrin@4:parity", "btrfs@4"):
                body += f"| {row['name']} | {e['name']} | {kib(total['reads'], total['read_bytes'])} | {kib(writes, total['write_bytes'])} | {even:.2f} |\n"
    head = "\n### What the devices counted\n\nThe busiest device's share is 1.00 where all do the same.\n\n| row | | KiB a read | KiB a write | busiest |\n|---|---|---:|---:|---:|\n"
    text = head + body
    if limit:
        text += "\n" + ("The counters of the devices say that the limit did not hold in: " + "; ".join(sorted(set(broken))) + ".\n" if broken else "No device did more than its limit allows, and no mean request is above 512 KiB.\n")
    return text


def changes(where):
    """Adding, removing and replacing devices."""
    results = load(where, "changes.json")
    if not results:
        return ""
    s = results["settings"]
    text = (
        f"\n## Changing devices\n\n{s['devices']} devices of {s['size']} MiB and a spare one, each limited to {s['iops']} requests and {digits(s['bps'] / 1e6)} MB per second each way; "
        f"{s['data']} MiB of content that does not compress. One run of each; nothing else is done meanwhile but in the last part. MiB are what all devices read and wrote. btrfs is "
        "asked to spread everything over the new device (`balance start --full-balance`), since nenrin does so by itself.\n\n"
        "| profile | | add, s | MiB read / written | remove, s | MiB read / written | replace, s | MiB read / written | a lost one replaced, s | MiB read / written |\n"
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    rates = ""
    for found in results["changes"]:
        who = f"| {found['profile']} | {found['file_system']} |"
        if "failed" in found:
            text += f"{who} failed: {found['failed']} | | | | | | | |\n"
            continue
        cells = ""
        for name in ("add", "remove", "replace", "rebuild"):
            one = found.get(name)
            cells += f" {digits(one['seconds'])} | {one['read'] / 2**20:.0f} / {one['written'] / 2**20:.0f} |" if one else " | |"
        text += who + cells + "\n"
        if "rate_whole" in found:
            whole, left, busy = (found["rate_" + name] for name in ("whole", "degraded", "rebuilding"))
            rates += f"{who} {digits(whole)} | {digits(left)} | {left / whole:.2f} | {digits(busy)} | {busy / whole:.2f} |\n"
    head = (
        "\n64 KiB written to a file of 64 MiB, from its beginning to its end again and again, and synced one after the other, a second: while all devices are there, without one of them, and while another takes its place (of which the last columns above "
        "are, so these MiB contain what was written meanwhile).\n\n| profile | | whole | degraded | ratio | rebuilding | ratio |\n|---|---|---:|---:|---:|---:|---:|\n"
    )
    return text + (head + rates if rates else "")


def main():
    where = sys.argv[1]
    text = (
        "# Several devices\n\nMade by `make bench-stripe`; how the harness measures is told in [BENCHMARKS.md](../BENCHMARKS.md). "
        "Raw results: `stripe/*.json`.\n`nenrin@4` is a stripe over four devices, `@2:mirror` two copies on two, `@2:degraded` the same after one was taken away; "
        "`@3:parity` bears the loss of any one of three; "
        "`btrfs@4` is raid0, `btrfs@2:mirror` raid1,\ndata and metadata alike, `btrfs@3:parity` raid5 with its metadata in raid1, as its manual wants it. Random reads are of a file that was written in 1 MiB pieces.\n" + PAPER
    )
    for part, title, judged in [("limited", "Each device limited to the same rate", True), ("unlimited", "Devices as they are, all files of one disk", False)]:
        results = load(where, part + ".json")
        if not results:
            continue
        with open(os.path.join(where, part + ".json"), "w", encoding="utf-8") as f:
            json.dump(results, f, separators=(",", ":"))
        text += facts(results, title)
        if judged:
            text += "\n" + targets(results)
        else:
            text += "\nOne disk and two cores carry all devices here, so more devices are not more disk: what is to be seen is what striping costs.\n"
        text += scaling(results, where, part) + degraded(results)
        for row in results["rows"]:
            text += table(row)
        text += counters(results)
    text += changes(where)
    with open(os.path.join(os.path.dirname(where.rstrip("/")), "stripe.md"), "w", encoding="utf-8") as f:
        f.write(text)


main()
