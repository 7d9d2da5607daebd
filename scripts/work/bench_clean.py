#!/usr/bin/env python3
"""Makes docs/benchmarks/clean.md and its plots of what bench-clean.sh left in DIR.

bench_clean.py DIR   reads host.json, fsync.json, remove.json, order.json, full.json, guest.json, curves.json (nenrin-bench) and memory.jsonl
"""
import json
import os
import statistics
import sys

from plots import Plot, digits, entries, facts, load

LOADS = [
    ("uniform", "Random overwrites of 4 KiB, uniform"),
    ("hot", "Random overwrites of 4 KiB, 90 % of them to 10 % of the data"),
    ("churn", "Files of 1 KiB to 1 MiB, removed and created"),
]
MODES = [("end", "one sync at the end of each slice"), ("16m", "an fsync after each 16 MiB")]
SHORT = {
    "nenrin+checkpoint=0": "nenrin, history off",
    "nenrin+cache=writeback+checkpoint=0": "writeback, history off",
    "nilfs2+cleanerd": "nilfs2",
    "f2fs+mode=lfs": "f2fs, log only",
    "raw": "the raw device",
}
MIB = 1 << 20
# At most this many device bytes for each byte: buffered, 80 % live, 90 % of the writes to 10 % of the data.
WRITE_COST = 1.8
# At most this many times what a sync takes otherwise.
BESIDE = 2.0
# At most so much beyond the live file for 1,000 versions of it.
VERSIONS_BYTES = 8 * MIB
# At most this many writes an hour where nobody does anything.
IDLE_WRITES = 12


def short(name):
    return SHORT.get(name, name)


def counted(entry):
    return [s for s in entry["samples"] if s["round"] > 0]


class Cost:
    """What the slices of one contender in one row cost."""

    def __init__(self, entry):
        slices = counted(entry)
        self.name = entry["name"]
        self.each = [s["extra"]["device_bytes"] / s["bytes"] for s in slices if s["bytes"]]
        self.whole = sum(s["extra"]["device_bytes"] for s in slices) / max(sum(s["bytes"] for s in slices), 1)
        # What came through the page cache to the file system: all of it where nothing waits there.
        given = [s["extra"]["dirtied_bytes"] or s["bytes"] for s in slices if "dirtied_bytes" in s["extra"]]
        self.given = sum(given) / max(sum(s["bytes"] for s in slices), 1) if len(given) == len(slices) else None
        self.read = sum(s["extra"]["device_read_bytes"] for s in slices) / max(sum(s["bytes"] for s in slices), 1)
        self.rates = [s["value"] for s in slices]
        self.latency = entry.get("latency") or {}
        self.fsyncs = [s["extra"]["fsync_p99_us"] for s in slices if "fsync_p99_us" in s["extra"]]
        self.refused = sum(int(s["extra"].get("refused", 0)) for s in slices)
        self.times = slices[-1]["extra"]["times_written"]
        first, last = slices[0]["extra"].get("free_before"), slices[-1]["extra"].get("free_after")
        self.free = "" if first is None or last is None else f"{first / MIB:.0f} / {last / MIB:.0f}"
        self.aged = next((s["series"] for s in entry["samples"] if s.get("series")), [])
        self.verified = slices[-1]["extra"].get("verified_blocks")


def row_of(results, load_name, fill, mode):
    name = f"{load_name}-{fill}-{mode}"
    return next((r for r in results["rows"] if r["name"] == name), None)


def fills(results):
    found = {int(r["name"].split("-")[1]) for r in results["rows"] if r["name"].split("-")[0] in dict(LOADS)}
    return sorted(found)


HEAD = ["% live", "", "device bytes per byte", "of slices", "given", "device per given", "read per byte", "MB/s", "p10-p90", "n", "write p99 us", "p99.9 us", "max ms", "sync p99 ms", "refused", "written", "free MiB"]


def cost_line(fill, entry):
    if not entry.get("summary"):
        return [str(fill), short(entry["name"]), "failed: " + str(entry.get("error")).split(" (the daemon")[0][:70]] + [""] * (len(HEAD) - 3)
    c, rate = Cost(entry), entry["summary"]
    failed = " (failed later: " + str(entry["error"])[:60] + ")" if entry.get("error") else ""
    sync = max(c.fsyncs) / 1000 if c.fsyncs else None
    return [
        str(fill),
        short(c.name) + failed,
        f"**{c.whole:.2f}**",
        f"{min(c.each):.2f}-{max(c.each):.2f}",
        digits(c.given) if c.given else "",
        digits(c.whole / c.given) if c.given else "",
        digits(c.read),
        digits(rate["median"]),
        f"{digits(rate['p10'])}-{digits(rate['p90'])}",
        str(rate["n"]),
        digits(c.latency.get("p99_us")),
        digits(c.latency.get("p999_us")),
        digits((c.latency.get("max_us") or 0) / 1000),
        digits(sync),
        str(c.refused) if c.refused else "",
        f"{c.times:.1f} x",
        c.free,
    ]


def table(head, lines):
    used = [n for n in range(len(head)) if n < 2 or any(cells[n] for cells in lines)]
    text = [[cells[n] for n in used] for cells in [head, ["---"] + ["---" if n == 1 and head[1] == "" else "---:" for n in range(1, len(head))], *lines]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in text)


def curves(lines, title, unit, path):
    every = [(x, y) for points in lines.values() for x, y in points if y > 0]
    if not every or len({x for x, _ in every}) < 2:
        return False
    plot = Plot(title, [x for x, _ in every], [y for _, y in every], unit=unit, x_name=lambda x: f"{x:g} %")
    plot.mark_x(sorted({x for x, _ in every}))
    for name, points in lines.items():
        plot.line(short(name), [(x, y) for x, y in points if y > 0])
    plot.save(path)
    return True


def sustained(results, where, part):
    text = ""
    for load_name, title in LOADS:
        for mode, how in MODES:
            rows = [(fill, row_of(results, load_name, fill, mode)) for fill in fills(results)]
            rows = [(fill, row) for fill, row in rows if row]
            if not rows:
                continue
            text += f"\n### {title}; {how}\n\n" + table(HEAD, [cost_line(fill, e) for fill, row in rows for e in row["contenders"]])
            figures = {
                "cost": ("device bytes per byte", lambda e: Cost(e).whole),
                "rate": ("MB/s", lambda e: e["summary"]["median"]),
                "p99": ("p99 of a write, us", lambda e: (e.get("latency") or {}).get("p99_us") or 0),
            }
            for figure, (unit, value) in figures.items():
                lines = {}
                for fill, row in rows:
                    for e in entries(row):
                        lines.setdefault(e["name"], []).append((fill, value(e)))
                name = f"{part}-{load_name}-{mode}-{figure}.svg"
                if curves(lines, f"{title}: {unit} by fill", f"{unit}, by part that is live", os.path.join(where, name)):
                    text += f"\n![{title}, {how}: {unit} over the part that is live](clean/{name})\n"
            text += history(rows, where, f"{part}-{load_name}-{mode}-80-written.svg", f"{title}, 80 % live")
    return text


def history(rows, where, name, title):
    """Cost over what was written, for 80 % live: whether it is steady."""
    lines = {}
    for fill, row in rows:
        for e in entries(row) if fill == 80 else []:
            c = Cost(e)
            points = [tuple(p) for p in c.aged] + [(s["extra"]["times_written"], one) for s, one in zip(counted(e), c.each)]
            if len(points) > 1:
                lines[e["name"]] = points
    every = [point for points in lines.values() for point in points]
    if not every:
        return ""
    plot = Plot(title, [0, max(x for x, _ in every)], [y for _, y in every], unit="device bytes per byte, by how often the device's size was written", x_name=lambda x: f"{x:.1f} x")
    plot.mark_x([0, max(x for x, _ in every) / 2, max(x for x, _ in every)])
    for contender, points in lines.items():
        plot.line(short(contender), points)
    plot.save(os.path.join(where, name))
    return f"\n![{title}: device bytes per byte over what was written](clean/{name})\n"


def word(reached):
    return "reached" if reached else "**not reached**"


def cost_targets(results, where_measured):
    lines = []
    for mode, how in MODES:
        row = row_of(results, "hot", 80, mode)
        costs = {e["name"]: Cost(e) for e in entries(row)} if row else {}
        for name, c in costs.items():
            if not name.startswith("nenrin"):
                continue
            what = f"{where_measured}, 90/10, 80 % live, {how}: {short(name)}"
            lines.append(f"| {what}: device bytes per byte | {c.whole:.2f} ({min(c.each):.2f}-{max(c.each):.2f}) | {WRITE_COST} | {word(c.whole <= WRITE_COST)} |")
            for other in ("f2fs", "f2fs+mode=lfs", "nilfs2+cleanerd"):
                if other in costs:
                    reached = c.whole < costs[other].whole
                    lines.append(f"| {what}: against {short(other)} | {c.whole / costs[other].whole:.2f} | below 1 | {word(reached)} |")
    return lines


def ratio_targets(results, title):
    lines = []
    for row in results["rows"] if results else []:
        for e in entries(row):
            control = e["name"] == "raw"
            if not control and not e["name"].startswith("nenrin"):
                continue
            what = title + row["title"].split(",")[0]
            slices, told = as_named(e)
            kinds = [(what, [s["value"] for s in slices]), (what + ", with the write before it", whole_ratios(slices))]
            for of_what, ratios in kinds if slices else [(what, [])]:
                if ratios or not slices:
                    lines.append(ratio_line(f"{of_what}: {short(e['name'])}", ratios, told, control))
    return lines


def ratio_line(what, ratios, told, control):
    middle = statistics.median(ratios) if ratios else None
    measured = f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else ""
    verdict = word(middle <= BESIDE) if ratios else "**not measured**"
    return f"| {what} | {'; '.join(filter(None, [measured, told]))} | " + ("| control |" if control else f"{BESIDE} | {verdict} |")


def as_named(entry):
    """The slices that say something of the cleaner, which moved something in the part that is named after its work and
    nothing in the one in which it has none; and how many they are, where what it moved is told."""
    all_of = counted(entry)
    if not any("working_moved_bytes" in s["extra"] for s in all_of):
        return all_of, ""
    idle = [s for s in all_of if not s["extra"]["working_moved_bytes"]]
    busy = [s for s in all_of if s["extra"]["idle_moved_bytes"] and s not in idle]
    left = [s for s in all_of if s not in idle + busy]
    why = [f"{len(some)} in which {what}" for some, what in [(idle, "the cleaner did nothing"), (busy, "it moved something before")] if some]
    return left, f"{len(left)} of {len(all_of)} slices" + (f", left out {' and '.join(why)}" if why else "")


def whole_ratios(slices):
    pairs = [("working_whole_p99_us", "idle_whole_p99_us"), ("removing_whole_p99_us", "usual_whole_p99_us")]
    extras = [s["extra"] for s in slices]
    return [x[over] / x[under] for x in extras for over, under in pairs if over in x and under in x]


def slowest_targets(results, title):
    """The slowest sync while a file goes: in times of what 99 of 100 take at most otherwise, and of the slowest of as many before."""
    lines = []
    for row in results["rows"] if results else []:
        for e in entries(row):
            extras = [s["extra"] for s in counted(e) if "removing_max_us" in s["extra"]]
            what = f"{title}{row['title'].split(',')[0].replace('p99', 'slowest')}: {short(e['name'])}"
            kinds = [
                ("removing_max_us", "usual_p99_us", "against the usual p99"),
                ("removing_max_us", "usual_max_us", "against the slowest of as many before"),
                ("usual_max_us", "usual_p99_us", "the slowest of as many before, against the usual p99"),
            ]
            for over, under, of_what in kinds:
                ratios = [x[over] / x[under] for x in extras if x.get(under)]
                if ratios:
                    wanted = e["name"].startswith("nenrin") and over == "removing_max_us"
                    bound = f"{BESIDE} | {word(max(ratios) <= BESIDE)}" if wanted else "| for comparison"
                    lines.append(f"| {what}, {of_what} | {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | {bound} |")
    return lines


def memory_targets(memory):
    lines = []
    for one in memory:
        if one["example"] == "versions_cost":
            what = f"{one['versions']} versions of a file of {one['file_mib']} MiB, 4 KiB changed in each: MiB beyond the live file, after cleaning"
            lines.append(f"| {what} | {one['beyond_bytes'] / MIB:.2f} | {VERSIONS_BYTES // MIB} | {word(one['beyond_bytes'] <= VERSIONS_BYTES)} |")
        if one["example"] == "idle_cost":
            state = "files replaced before" if one["replaced"] else "files written once"
            most = max(one["writes_each_hour"])
            reached = most <= IDLE_WRITES and one["moved_blocks"] == 0
            lines.append(f"| idle and full, {state}, history {one['history']}: writes in an hour; blocks moved | {most}; {one['moved_blocks']} | {IDLE_WRITES}; 0 | {word(reached)} |")
    return lines


def median_of(entry, name, unit=1.0):
    values = [s["extra"][name] * unit for s in counted(entry) if name in s["extra"]]
    return statistics.median(values) if values else None


def fsync_part(results):
    head = ["", "", "p50 us", "p99 us", "max ms", "write + fsync p99 us", "max ms", "moved MiB", "load MB/s", "n"]
    lines = []
    for row in results["rows"]:
        for e in entries(row):
            for part, what in [("idle", "nothing to clean"), ("working", "cleaner works in the background"), ("asked", "`nenrin clean` runs")]:
                of = lambda figure, unit=1.0, part=part, e=e: digits(median_of(e, f"{part}_{figure}", unit))
                lines.append([short(e["name"]), what, of("p50_us"), of("p99_us"), of("max_us", 1e-3), of("whole_p99_us"), of("whole_max_us", 1e-3), of("moved_bytes", 1 / MIB), of("mb_per_s"), of("n")])
        lines += [[short(e["name"]), "failed: " + str(e["error"])[:80]] + [""] * 8 for e in row["contenders"] if not e.get("summary")]
    return (
        "\n4 KiB written and made durable every 2 ms, beside one thread that overwrites 4 KiB at random at 20 MB/s; medians of the slices. A write that takes longer skips the turns that it missed, for whoever is measured: while the device stands still one latency is counted and not one for each turn, so percentiles are of writes that were made, and not of moments. In each slice the three parts follow each other on one volume. Of the raw device the parts are requests alone: 8 KiB + flush, the load as writes of 256 KiB, and what is moved as reads and writes of 512 KiB at 60 and 150 MB/s.\n\n"
        + table(head, lines)
    )


def removal_part(results):
    head = ["", "", "size GiB", "data GiB", "usual p99 us", "p99 meanwhile", "first second p99", "usual max ms", "max ms meanwhile", "over 2 x p99, usual %", "meanwhile %", "unlink ms", "n"]
    lines = []
    for row in results["rows"]:
        kind = row["name"].split("-")[1]
        for e in row["contenders"]:
            if not e.get("summary"):
                lines.append([short(e["name"]), kind, "failed: " + str(e["error"])[:80]] + [""] * 10)
                continue
            of = lambda figure, unit=1.0, e=e: digits(median_of(e, figure, unit))
            lines.append(
                [short(e["name"]), kind, of("file_bytes", 2.0**-30), of("data_bytes", 2.0**-30), of("usual_p99_us"), of("removing_p99_us"), of("first_second_p99_us")]
                + [of("usual_max_us", 1e-3), of("removing_max_us", 1e-3), of("usual_over_percent"), of("removing_over_percent"), of("remove_ms"), str(e["summary"]["n"])]
            )
    text = "\n4 KiB written and made durable every 2 ms in another file, before and from the removal on, for as long; medians of the slices, whose length is the setting `--loaded-s`. "
    text += "A write that takes longer skips the turns that it missed: percentiles are of writes that were made, and not of moments. "
    text += "A single slow sync in such a window decides *max*, before the removal as well: the table at the top compares the slowest with what is usual, and each slice must stay within the bound there.\n\n"
    return text + table(head, lines)


def order_part(results):
    head = ["", "file MiB", "read", "MB/s", "device requests per MiB", "device bytes per byte", "clean s", "n"]
    lines = []
    for e in [e for row in results["rows"] for e in row["contenders"]]:
        if not e.get("summary"):
            lines.append([short(e["name"]), "failed: " + str(e["error"])[:80]] + [""] * 6)
            continue
        of = lambda figure, unit=1.0, e=e: digits(median_of(e, figure, unit))
        for part, what in [("before", "written at random"), ("after", "the same after `nenrin clean`"), ("sequence", "written in sequence")]:
            clean = of("clean_s") if part == "after" else ""
            lines.append([short(e["name"]), of("file_bytes", 1 / MIB), what, of(part + "_mb_per_s"), of(part + "_reads_per_mib"), of(part + "_bytes_per_byte"), clean, str(e["summary"]["n"])])
    return (
        "\nA file written in pieces of 4 KiB, each block once in an order that is drawn, with an fsync after each 2 MiB; then read cold from its beginning to its end, 1 MiB at a time, compared with what was written; medians of the slices. "
        "Cold: mounted anew, caches dropped.\n\n" + table(head, lines)
    )


def memory_part(memory):
    text = ""
    costs = [one for one in memory if one["example"] == "clean_cost"]
    if costs:
        text += "\n### Random overwrites of 4 KiB\n\nNo page cache, no history; as much overwritten as is live, after as much to settle (`--example clean_cost`).\n\n"
        head = ["MiB", "writes", "% live", "device bytes per byte", "moved", "index", "chain", "index checkpoints", "in the writer's way"]
        text += table(head, [[str(o["volume_mib"]), {"HotCold": "90/10", "HotSpread": "90/10, spread"}.get(o["pattern"], "uniform"), str(o["live_percent"])] + [digits(o[k]) for k in ("device", "moved", "index", "chain")] + [str(o["checkpoints"]), str(o["stalls"])] for o in costs])
    idle = [one for one in memory if one["example"] == "idle_cost"]
    if idle:
        text += "\n### Full, and nobody does anything\n\nVirtual time (`--example idle_cost`). The first minute after the last change is told apart.\n\n"
        head = ["MiB", "history", "files", "writes in the first minute", "writes in each hour", "bytes in each hour", "blocks moved", "the cleaner rests"]
        many = lambda numbers: ", ".join(str(n) for n in numbers)
        text += table(head, [[str(o["volume_mib"]), o["history"], "replaced" if o["replaced"] else "written once", str(o["settling_writes"]), many(o["writes_each_hour"]), many(o["bytes_each_hour"]), str(o["moved_blocks"]), o["rests"]] for o in idle])
    for name in sorted({one["example"] for one in memory} - {"clean_cost", "idle_cost"}):
        rows = [one for one in memory if one["example"] == name]
        # An example may tell several rows at once.
        rows = [{k: v for k, v in one.items() if k != "rows"} | more for one in rows for more in one.get("rows", [{}])]
        keys = [key for key in rows[0] if key != "example"]
        text += f"\n### `--example {name}`\n\n" + table([k.replace("_", " ") for k in keys], [[str(one.get(k, "")) for k in keys] for one in rows])
    return text


def read_lines(where, name):
    try:
        with open(os.path.join(where, name), encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.startswith("{")]
    except FileNotFoundError:
        return []


def slices_text(results):
    words = results["settings"]["arguments"]
    given = {words[n].lstrip("-"): words[n + 1] for n in range(len(words) - 1) if words[n].startswith("--")}
    free = given.get("age-free-percent")
    aged = f", and no more than {free} % of what is free beside what is live," if free else ""
    return (
        f"filled, then overwritten by {given.get('age-percent', '200')} % of the device's size{aged} (for {given.get('age-s', '60')} s at most) before anything counts; "
        f"{given.get('slices', '15')} slices of {given.get('slice-percent', '12')} % of the device's size each ({given.get('sustained-s', '20')} s at most), without pauses"
    )


INTRO = """# What the cleaner costs

Made by `make bench-clean`; how the harness measures is told in [BENCHMARKS.md](../BENCHMARKS.md) and in decision [0021](../decisions/0021-bench-clean.md). Raw results: `clean/*.json`.

Device bytes per byte: what /sys/block/DEVICE/stat counted, from the end of one slice to the end of the next, for each byte that the program wrote; the last slice
of a row ends with an unmount. Live: of what df shows as available on the empty volume. Buffered: writes go through the page cache, which joins overwrites of
the same block until they are synced or 30 s old; nenrin is write-through unless the name says writeback, so it has every write at once. *written*: how often the device's size was
written by the end. *given*: what was made dirty in the page cache (write_bytes in /proc/self/io), so what the file system got, for each byte that the program wrote; where nothing waits
there, all of it. *refused*: calls that were told that no room is left, and were tried again until there was. *free MiB*: in segments that nothing is needed of, before the first slice that counts and after the last; where it falls, work was left for later.
f2fs overwrites in place on devices of up to 16 GiB (it tells its ipu_policy), so that nothing is to be cleaned; with `mode=lfs` it writes a log as it does elsewhere.
History off is `checkpoint=0`; otherwise retention is the default. What nenrin holds was read back after the last slice of each row and compared.
"""


def keep(results, where, name):
    with open(os.path.join(where, name), "w", encoding="utf-8") as f:
        json.dump(results, f, separators=(",", ":"))


def cleanerd(results):
    for row in results["rows"]:
        for e in row["contenders"]:
            for option in e.get("options", []):
                if option.startswith("nilfs_cleanerd: "):
                    return f"- {option}\n"
    return ""


def main():
    where = sys.argv[1]
    parts = {part: load(where, part + ".json") for part in ("host", "guest", "fsync", "remove", "order", "full", "curves")}
    for part, results in parts.items():
        if results:
            keep(results, where, part + ".json")
    memory = read_lines(where, "memory.jsonl")
    lines = []
    for part, title in [("host", "this kernel"), ("guest", "virtual machine")]:
        if parts[part]:
            lines += cost_targets(parts[part], title)
    lines += ratio_targets(parts["fsync"], "") + memory_targets(memory) + ratio_targets(parts["remove"], "") + ratio_targets(parts["full"], "100 GB device in memory: ")
    lines += slowest_targets(parts["remove"], "") + slowest_targets(parts["full"], "100 GB device in memory: ")
    text = INTRO
    if lines:
        text += "\n| what | measured (of slices) | at most | |\n|---|---:|---:|---|\n" + "\n".join(lines) + "\n"
    if parts["host"]:
        text += facts(parts["host"], "Sustained work, on this kernel", slices_text(parts["host"])) + sustained(parts["host"], where, "host")
    if parts["guest"]:
        title = "Sustained work in a virtual machine with a limited disk"
        text += facts(parts["guest"], title, slices_text(parts["guest"])) + cleanerd(parts["guest"])
        text += "\nThe processor is emulated and far slower than any: bytes say more than times here. The disk is limited by QEMU to "
        text += f"{limits(where)}.\n" + sustained(parts["guest"], where, "guest")
    if parts["curves"]:
        title = "The same at several fills"
        text += facts(parts["curves"], title, slices_text(parts["curves"])) + cleanerd(parts["curves"])
        text += f"\nThe processor and the limit of the disk are those of the virtual machine, {limits(where)}. Shares of what is live are of what each file system says is available.\n"
        text += sustained(parts["curves"], where, "curves")
    if parts["fsync"]:
        text += facts(parts["fsync"], "Durable writes while the cleaner works", f"{parts['fsync']['settings']['slices']} slices") + fsync_part(parts["fsync"])
    if parts["order"]:
        text += facts(parts["order"], "Reading what was written at random", f"{parts['order']['settings']['slices']} slices") + order_part(parts["order"])
    for part, title in [("remove", "Removing a huge file"), ("full", "Removing a huge file that was written in full, on a device in memory")]:
        if parts[part]:
            text += facts(parts[part], title, f"{parts[part]['settings']['slices']} slices") + removal_part(parts[part])
    if memory:
        text += "\n## In memory, counted\n" + memory_part(memory)
    with open(os.path.join(os.path.dirname(os.path.abspath(where)), "clean.md"), "w", encoding="utf-8") as f:
        f.write(text)


def limits(where):
    try:
        with open(os.path.join(where, "guest-limit.txt"), encoding="ascii") as f:
            return f.read().strip()
    except FileNotFoundError:
        return "what bench-clean.sh says"


main()
