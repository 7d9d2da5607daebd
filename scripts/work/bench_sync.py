#!/usr/bin/env python3
"""Makes docs/benchmarks/sync.md and its plots of what bench-sync.sh left in DIR.

Where DIR is docs/benchmarks/sync, the tables of docs/BENCHMARKS.md that are made of them are made again, too.

bench_sync.py DIR   reads disk.json, seeds.json, databases.json, cost.json, limited.json, guest.json (nenrin-bench), cost-memory.jsonl (example sync_cost), cuts.json and simulated.jsonl;
                    again-PART.json is a second run of some rows; other-disk.json, other-databases.json and other-guest.json are of another machine, slower-disk.json and later-databases.json of another device
"""
import json
import os
import statistics
import sys

from plots import Plot, digits, entries, facts, load


# The volume behind the same front end that does nothing but make as much durable (decision 0015), by how it is mounted: what can be had there.
BARE = "bare"
BARE_URING = "bare+transport=uring"


def verdict(row, entry, target):
    """What one target came to, as cells; the last but one is what `bare` gives, where it was measured."""
    ratio = entry["ratios"].get(target["against"])
    if not ratio:
        return None
    higher = row["better"] == "higher"
    reached = ratio["median"]

    def meets(got, wanted):
        return got >= wanted if higher else got <= wanted

    control = BARE_URING if "transport=uring" in entry["name"] else BARE
    bare = next((e["ratios"].get(target["against"]) for e in entries(row) if e["name"] == control), None)
    missed = "**not reached**" + (", nor by bare" if bare and not meets(bare["median"], target["floor"]) else "")
    word = "aim" if meets(reached, target["aim"]) else "floor" if meets(reached, target["floor"]) else missed
    by_p50 = entry.get("ratios_by_p50", {}).get(target["against"]) if higher else None
    by_p50 = f"{by_p50['median']:.2f}" if by_p50 else ""
    spread = f"{reached:.2f} ({ratio['p10']:.2f}-{ratio['p90']:.2f})"
    bare = f"{bare['median']:.2f}" if bare else ""
    return [row["title"], f"{entry['name']} : {target['against']}", spread, by_p50, f"{target['floor']} / {target['aim']}", bare, word]


def targets(results):
    lines = [verdict(row, e, t) for row in results["rows"] for e in entries(row) for t in e["targets"]]
    lines = [line for line in lines if line]
    if not lines:
        return ""
    with_bare = any(line[5] for line in lines)
    head, rule = (" bare |", "---:|") if with_bare else ("", "")
    text = f"| work | of what | ratio (p10-p90) | by p50 | floor / aim |{head} |\n|---|---|---:|---:|---:|{rule}---|\n"
    return text + "".join(f"| {' | '.join(line if with_bare else line[:5] + line[6:])} |\n" for line in lines)


def table(row):
    """One row of the harness as a table."""
    head = ["", row["unit"], "p10-p90", "n", "p50 us", "p99 us", "p99.9 us", "max us", "writes", "KiB", "flushes"]
    body = []
    for e in row["contenders"]:
        if not e.get("summary"):
            body.append([e["name"], "failed: " + str(e.get("error"))[:80]] + [""] * 9)
            continue
        s, latency, cost = e["summary"], e.get("latency") or {}, e.get("per_operation") or {}
        data = cost.get("data_writes")
        data = cost.get("writes") if data is None else data
        body.append(
            [e["name"], digits(s["median"]), f"{digits(s['p10'])}-{digits(s['p90'])}", str(s["n"])]
            + [digits(latency.get(name)) for name in ("p50_us", "p99_us", "p999_us", "max_us")]
            + [digits(data), digits(cost.get("write_bytes", 0) / 1024), digits(cost.get("flushes"))]
        )
    used = [n for n in range(len(head)) if n < 2 or any(cells[n] for cells in body)]
    lines = [[cells[n] for n in used] for cells in [head, ["---"] + ["---:"] * 10, *body]]
    extra = [f"{beside(e)} MB/s beside {e['name']}" for e in entries(row) if beside(e)]
    text = f"\n### {row['title']}\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    if any(pace in row["title"] for pace in ("every 200 ms", "once a second")):
        text += "\nA sync that takes longer skips the turns that it missed: one latency is counted while the device stands still, so percentiles are of syncs that were made, and not of moments.\n"
    return text + (f"\nOthers wrote, median of the slices with the least and the most: {'; '.join(extra)}.\n" if extra else "")


def beside(entry):
    """What others wrote meanwhile, in all slices that count."""
    rates = [s["extra"].get("others_mb_per_s") for s in entry["samples"] if s["round"] > 0]
    rates = [rate for rate in rates if rate is not None]
    return rates and f"{digits(statistics.median(rates))} ({digits(min(rates))}-{digits(max(rates))})"


# A slowest sync may be so many times as far from the 99th percentile as the raw device's is.
MAX_TO_P99 = 1.5
# Of a sync every 200 ms beside writers: the median against f2fs, the 99th percentile against nilfs2, floor and aim.
BUSY_TARGETS = [("p50_us", "median", "f2fs", 1.0, 0.5), ("p99_us", "99th percentile", "nilfs2", 1.0, 0.5)]


def tails(row):
    """The slowest sync to the 99th percentile, beside the raw device's; where there is f2fs or nilfs2, latencies beside theirs."""
    latencies = {e["name"]: e["latency"] for e in entries(row) if e.get("latency")}
    ours = [name for name in latencies if name.startswith("nenrin")]
    text = ""
    raw = latencies.get("raw")
    for name in ours if raw else []:
        own, control = (at["max_us"] / at["p99_us"] for at in (latencies[name], raw))
        word = "reached" if own <= MAX_TO_P99 * control else "**not reached**"
        text += f"- slowest to 99th percentile: {name} {own:.2f}, raw {control:.2f}, {own / control:.2f} times it (at most {MAX_TO_P99}): {word}\n"
    for at, what, against, floor, aim in BUSY_TARGETS if row["name"] == "busy-200ms" else []:
        other = latencies.get(against)
        for name in ours if other else []:
            ratio = latencies[name][at] / other[at]
            word = "aim" if ratio <= aim else "floor" if ratio <= floor else "**not reached**"
            text += f"- {what}: {name} {digits(latencies[name][at])} us, {against} {digits(other[at])}, {ratio:.2f} of it (floor {floor}, aim {aim}): {word}\n"
    return "\n" + text if text else ""


def matrix(rows, prefix, columns):
    """Rows `prefix-COLUMN` side by side: one line for each contender, medians in the row's unit."""
    found = [(c, r) for c in columns for r in rows if r["name"] == f"{prefix}-{c}"]
    if not found:
        return ""
    names = [e["name"] for e in found[0][1]["contenders"]]
    text = f"| {found[0][1]['unit']} | " + " | ".join(c for c, _ in found) + " |\n|---|" + "---:|" * len(found) + "\n"
    for name in names:
        cells = []
        for _, row in found:
            entry = next((e for e in row["contenders"] if e["name"] == name), {})
            cells.append(digits((entry.get("summary") or {}).get("median")))
        text += f"| {name} | " + " | ".join(cells) + " |\n"
    return text


BUFFERS = ["1k", "4k", "16k", "64k", "256k", "1m", "4m", "16m"]


def buffer_bytes(name):
    return int(name[:-1]) << (20 if name.endswith("m") else 10)


def seed2(results, where):
    text = ""
    for how in ["write", "rewrite", "random-rewrite", "read", "random-read"]:
        body = matrix(results["rows"], f"seed2-{how}", BUFFERS)
        if not body:
            continue
        lines = {}
        for buffer in BUFFERS:
            for row in results["rows"]:
                if row["name"] == f"seed2-{how}-{buffer}":
                    for e in entries(row):
                        lines.setdefault(e["name"], []).append((buffer_bytes(buffer), e["summary"]["median"]))
        every = [point for points in lines.values() for point in points]
        plot = Plot(how, [x for x, _ in every], [y for _, y in every], x_log=True, unit="MB/s", x_name=lambda b: next(n for n in BUFFERS if buffer_bytes(n) == b))
        plot.mark_x(sorted({x for x, _ in every}))
        for name, points in lines.items():
            plot.line(name, points)
        plot.save(os.path.join(where, f"seed2-{how}.svg"))
        text += f"\n### {how}, 128 MiB, by buffer size\n\n{body}\n![{how} by buffer size](sync/seed2-{how}.svg)\n"
    return text


def seed1(results):
    text = ""
    for size in ["32m", "128m", "512m"]:
        for how in ["continuous", "random"]:
            columns = [b + s for s in ("", "-osync") for b in ("2k", "4k", "8k")]
            body = matrix(results["rows"], f"seed1-{how}-{size}", columns)
            text += f"\n### {how} rewrite of {size[:-1]} MiB\n\n{body}" if body else ""
    return text


def latency_plot(results, part, name, where, label):
    row = next((r for r in results["rows"] if r["name"] == name), None)
    lines = {}
    for e in entries(row) if row else []:
        series = [s["series"] for s in e["samples"] if s["round"] > 0 and s.get("series")]
        if series:
            lines[e["name"]] = series[len(series) // 2]
    if not lines:
        return ""
    every = [point for points in lines.values() for point in points]
    plot = Plot(label, [x for x, _ in every], [y for _, y in every], unit="us, slowest of each moment", x_name=lambda s: f"{s:.0f} s")
    plot.mark_x([0, max(x for x, _ in every)])
    for contender, points in lines.items():
        plot.line(contender, points)
    plot.save(os.path.join(where, f"{part}-{name}.svg"))
    return f"\n![{label}](sync/{part}-{name}.svg)\n"


def judged(rows):
    """What was found after the cuts, beside what was promised."""
    if not all("judged" in s for row in rows for s in row["samples"]):
        return ""
    text = "\nEach cut is inside a call, at a request to the device. All names and all content are read back from the mount: a file has what its first writes left, all of them up to some, and\nno fewer than were promised (by each sync; with barrier=checkpoint by syncs before the last index checkpoint); names likewise.\n\n"
    text += "| barrier | cuts | in a write; of several blocks | in a flush | files read back | with something promised | MiB | mismatches |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"
    for row in rows:
        samples = row["samples"]
        blocks = [s["blocks_under_way"] for s in samples]
        total = {name: sum(s["judged"][name] for s in samples) for name in ("files", "promised", "bytes", "mismatches")}
        wrong = "0" if total["mismatches"] == 0 else f"**{total['mismatches']}**"
        text += f"| {row['barrier']} | {len(samples)} | {sum(b > 0 for b in blocks)}; {sum(b > 1 for b in blocks)} | {sum(b == 0 for b in blocks)} "
        text += f"| {total['files']} | {total['promised']} | {total['bytes'] >> 20} | {wrong} |\n"
    return text


def simulated(where):
    """How the crash simulator ran what is measured, and what it found."""
    measured = set()
    for part in sorted(os.listdir(where)):
        results = load(where, part) if part.endswith(".json") and part != "cuts.json" else None
        measured |= {e["name"] for row in (results or {}).get("rows", []) for e in row["contenders"] if e["name"].startswith("nenrin")}
    try:
        with open(os.path.join(where, "simulated.jsonl"), encoding="ascii") as f:
            rows = [json.loads(line) for line in f]
    except FileNotFoundError:
        rows = []
    if not rows and not measured:
        return ""
    text = "\n## What the crash simulator passes\n\nEvery way to mount that a benchmark measures, as users mount it (`scripts/crash.sh --measured`): power cuts at every request of random workloads, what is found compared with a\nmodel ([TESTING.md](../TESTING.md)). What is above the simulator is named with what tries it on a real mount. Only limits are smaller than a mount's own.\nUnder barrier=none the device loses nothing that it was done with, as only such a device is promised anything.\n\n"
    text += "| contenders | `nenrin-sim run` | day | seeds | distinct crash images | past states | failures | above it |\n|---|---|---|---:|---:|---:|---:|---|\n"
    for row in rows:
        above = "; ".join(f"`{option}`: {what}" for option, what in row["above"].items())
        failures = str(row["failures"]) if row["failures"] == 0 else f"**{row['failures']}**"
        text += f"| {', '.join(row['contenders'])} | `{row['arguments']}` | {row['day']} | {row['seeds']} | {row['images']} | {row['past_states']} | {failures} | {above} |\n"
    for name in sorted(measured - {name for row in rows for name in row["contenders"]}):
        text += f"| {name} | **not simulated** | | | | | | |\n"
    return text


def cuts(where):
    try:
        with open(os.path.join(where, "cuts.json"), encoding="ascii") as f:
            rows = [json.loads(line) for line in f]
    except FileNotFoundError:
        return ""
    text = "\n## Recovery after power cuts\n\nA volume of 1 GiB with default segments; the cut comes after 1 to 60,000 operations (appends and overwrites of 4 KiB with fsync, creations,\nlarger writes); what was not flushed is dropped, kept or torn. Time of `nenrin mount`, from the command to a usable mount, nothing in memory.\n"
    text += judged(rows)
    text += "\n| barrier | cuts | median ms | p90 | p99 | max |\n|---|---:|---:|---:|---:|---:|\n"
    spread = {}
    for row in rows:
        times = sorted(s["ms"] for s in row["samples"])
        spread[row["barrier"]] = times

        def at(part, times=times):
            return times[min(len(times) - 1, round(part * (len(times) - 1)))]

        text += f"| {row['barrier']} | {len(times)} | {statistics.median(times):.0f} | {at(0.9):.0f} | {at(0.99):.0f} | {times[-1]:.0f} |\n"
    every = [t for times in spread.values() for t in times]
    plot = Plot("recovery", [0, 100], every, unit="ms", x_name=lambda p: f"{p:.0f} %")
    plot.mark_x([0, 50, 100])
    for barrier, times in spread.items():
        plot.line("barrier=" + barrier, [(100 * n / max(len(times) - 1, 1), t) for n, t in enumerate(times)])
    plot.save(os.path.join(where, "cuts.svg"))
    return text + "\n![distribution of the time of a mount after a cut](sync/cuts.svg)\n"


def counted(where):
    """What example sync_cost counted, as a table."""
    try:
        with open(os.path.join(where, "cost-memory.jsonl"), encoding="ascii") as f:
            rows = [json.loads(line) for line in f]
    except FileNotFoundError:
        return ""
    first = rows[0]
    text = f"\n## Device bytes of small synchronous writes, counted on a device in memory\n\n4 KiB to random places of a file of 256 MiB, each synced; {first['volume_mib']} MiB, half full, {first['writes']} writes in {first['seconds']} s of virtual time, index nodes of 16 KiB written twice.\n\n"
    text += "| history | KiB for each write | chain | nodes | moved by the cleaner | index checkpoints | checkpoints |\n|---|---:|---:|---:|---:|---:|---:|\n"
    for row in rows:
        text += f"| {'default' if row['history'] else 'off'} | {row['kib_each']:.2f} | {row['chain_kib_each']:.2f} | {row['node_kib_each']:.2f} | {row['moved_kib_each']:.2f} | {row['index_checkpoints']} | {row['checkpoints']} |\n"
    return text


# Two runs agree whose ratios differ by no more.
AGREE = 0.15


def ratios(results):
    """Medians of what is to be reached: by row, contender and whom it is against."""
    found = {}
    for row in results["rows"]:
        for e in entries(row):
            for target in e["targets"]:
                ratio = e["ratios"].get(target["against"])
                if ratio:
                    found[row["title"], e["name"], target["against"]] = ratio
    return found


# What was measured elsewhere: told in short.
ELSEWHERE = [
    ("slower-disk", "The disk as it is, with a slower device"),
    ("other-disk", "The disk as it is, of another machine"),
    ("other-databases", "Databases, on another machine"),
    ("later-databases", "Databases, on that machine with a faster device"),
    ("other-guest", "The virtual machine, on another machine"),
]


def again(where, parts):
    """What two runs gave, where a second one was made."""
    lines = []
    for part, _ in parts + ELSEWHERE:
        first, second = load(where, part + ".json"), load(where, f"again-{part}.json")
        if not first or not second:
            continue
        keep(second, where, f"again-{part}.json")
        before, after = ratios(first), ratios(second)
        for (work, name, against), ratio in before.items():
            if other := after.get((work, name, against)):
                change = other["median"] / ratio["median"]
                word = "" if abs(change - 1) <= AGREE else f"**by more than {AGREE:.0%}**"
                spread = [f"{r['median']:.2f} ({r['p10']:.2f}-{r['p90']:.2f})" for r in (ratio, other)]
                lines.append(f"| {part} | {work} | {name} : {against} | {spread[0]} | {spread[1]} | {change:.2f} | {word} |\n")
    if not lines:
        return ""
    head = "| part | work | of what | first run | second run | second : first | differs |\n|---|---|---|---:|---:|---:|---|\n"
    return "\n## A second run\n\nThe rows that have something to reach, measured once more (`PARTS=again`); ratios with the 10th and 90th percentile of the rounds.\n\n" + head + "".join(lines)


# The same rows on several devices, in BENCHMARKS.md between these two lines.
DISKS = ["disk", "other-disk", "slower-disk"]
BEGIN, END = "<!-- Made by scripts/work/bench_sync.py: -->", "<!-- until here -->"


def both(pair, found):
    """What two runs say, "a, b"; nothing where neither does."""
    return ", ".join(cell for cell in (found(results) for results in pair if results) if cell)


def row_of(results, name):
    return next((row for row in results["rows"] if row["name"] == name), None)


def p50(results, row, contender):
    found = row_of(results, row)
    entry = found and next((e for e in entries(found) if e["name"] == contender), None)
    return digits(entry["latency"]["p50_us"]) if entry else ""


def agreement(pair):
    """How many ratios of two runs that have something to reach agree."""
    first, second = (ratios(results) for results in pair)
    changes = [second[key]["median"] / first[key]["median"] for key in first if key in second]
    return f"{sum(abs(change - 1) <= AGREE for change in changes)} of {len(changes)}"


def devices(pairs):
    """What was measured where, a column for each device."""
    lines = [
        ("", [f"`sync/{part}.json`" for part in pairs]),
        ("processor", [pair[0]["machine"]["processor"].replace("(R)", "") for pair in pairs.values()]),
        ("begun", [both(pair, lambda r: r["started"][:16].replace("T", " ")) for pair in pairs.values()]),
        ("slices; seconds of each beside writers", [f"{pair[0]['settings']['slices']}; {loaded_s(pair[0])}" for pair in pairs.values()]),
        ("raw device, 8 KiB + flush, us (median)", [both(pair, lambda r: p50(r, "append-fsync-1", "raw")) for pair in pairs.values()]),
        ("a write and a sync with nothing to wait for, us", [both(pair, lambda r: p50(r, "calls-1", "nenrin")) for pair in pairs.values()]),
        ("the same with `transport=uring`", [both(pair, lambda r: p50(r, "calls-1", "nenrin+transport=uring")) for pair in pairs.values()]),
        (f"ratios that two runs agree on within {AGREE:.0%}", [agreement(pair) if pair[1] else "" for pair in pairs.values()]),
    ]
    text = "".join(f"| {name} | {' | '.join(cells)} |\n" for name, cells in lines)
    head, rest = text.split("\n", 1)
    return f"{head}\n|---{'|---' * len(pairs)}|\n{rest}"


def loaded_s(results):
    arguments = results["settings"]["arguments"]
    return arguments[arguments.index("--loaded-s") + 1] if "--loaded-s" in arguments else ""


def floors(pairs, contender, control):
    """One contender's ratios on each device beside the floor; bold is what misses it. Beside them `bare`, and raw where that is no target."""
    wanted = [(row, e, t) for row in pairs[DISKS[0]][0]["rows"] for e in entries(row) if contender(e["name"]) for t in e["targets"]]
    text = f"| work | of | floor |{''.join(f' `{part}` | `{control}` there | raw there |' for part in pairs)}\n|---|---|---|{'---|---|---|' * len(pairs)}\n"
    for row, entry, target in wanted:
        against, floor = target["against"], target["floor"]
        higher = row["better"] == "higher"

        def cell(name):
            def found(results):
                same = row_of(results, row["name"])
                other = same and next((e for e in entries(same) if e["name"] == name), None)
                ratio = other and other["ratios"].get(against)
                if not ratio:
                    return ""
                missed = ratio["median"] < floor if higher else ratio["median"] > floor
                return f"**{ratio['median']:.2f}**" if missed else f"{ratio['median']:.2f}"

            return found

        cells = [both(pair, cell(name)) for pair in pairs.values() for name in (entry["name"], control, "raw")]
        text += f"| {row['title']} | {against} | {floor} | {' | '.join(cells)} |\n"
    return text


def summary(where):
    """The tables of BENCHMARKS.md."""
    pairs = {part: (load(where, part + ".json"), load(where, f"again-{part}.json")) for part in DISKS}
    pairs = {part: pair for part, pair in pairs.items() if pair[0]}
    if DISKS[0] not in pairs:
        return ""
    plain = floors(pairs, lambda name: "cache=" not in name and "transport=" not in name, BARE)
    return f"{devices(pairs)}\n{plain}\nWith `transport=uring`:\n\n{floors(pairs, lambda name: 'transport=uring' in name, BARE_URING)}"


def write_summary(where):
    path = os.path.join(where, "..", "..", "BENCHMARKS.md")
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as f:
        before, found, rest = f.read().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        sys.exit(f"{path}: no line {BEGIN!r} with {END!r} behind it: put them where the tables belong")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{before}{BEGIN}\n\n{summary(where)}\n{END}{after}")


def keep(results, where, name):
    with open(os.path.join(where, name), "w", encoding="utf-8") as f:
        json.dump(results, f, separators=(",", ":"))


def main():
    where = sys.argv[1]
    text = "# Synchronous writes\n\nMade by `make bench-sync`; how the harness measures is told in [BENCHMARKS.md](../BENCHMARKS.md). Raw results: `sync/*.json`.\n"
    parts = [
        ("disk", "On the disk as it is"),
        ("seeds", "Rewriting, and buffers of all sizes, on the disk as it is"),
        ("databases", "Databases, on the disk as it is"),
        ("cost", "Device bytes over a long time"),
        ("limited", "Where the disk is the limit: this kernel, 200 requests and 100 MB per second"),
        ("guest", "Where the disk is the limit: a virtual machine, 200 requests and 100 MB per second, flushes free"),
    ]
    for part, title in parts:
        results = load(where, part + ".json")
        if not results:
            continue
        keep(results, where, part + ".json")
        text += facts(results, title) + "\n" + targets(results)
        for row in results["rows"]:
            if not row["name"].startswith("seed"):
                text += table(row) + (tails(row) if row["name"].startswith("busy") else "") + latency_plot(results, part, row["name"], where, row["title"])
        text += seed1(results) + seed2(results, where)
    for part, title in ELSEWHERE:
        if results := load(where, part + ".json"):
            keep(results, where, part + ".json")
            text += facts(results, title) + "\n" + targets(results)
            text += "".join(tails(row) for row in results["rows"] if row["name"].startswith("busy"))
    text += counted(where) + cuts(where) + simulated(where) + again(where, parts)
    with open(os.path.join(os.path.dirname(where.rstrip("/")), "sync.md"), "w", encoding="utf-8") as f:
        f.write(text)
    write_summary(where)


if __name__ == "__main__":
    main()
