"""Plots and tables of what nenrin-bench left, for the documents of the benchmarks."""
import json
import math
import os

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 260, 70, 14, 14, 58
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a3db8", "#777"]
STYLE = (
    "<style>:root{--bg:#fff;--fg:#1b1f24;--line:#d5dae0}"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e9ec;--line:#363c43}}"
    "svg{background:var(--bg)}text{fill:var(--fg);font:12px system-ui,sans-serif}.l{stroke:var(--line);fill:none}</style>"
)


def load(where, name):
    try:
        with open(os.path.join(where, name), encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return None


def digits(value):
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ticks(low, high):
    """Powers of ten from low to high, for an axis that goes by them."""
    first, last = math.floor(math.log10(max(low, 0.01))), math.ceil(math.log10(max(high, 0.1)))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


class Plot:
    """Lines or points over a linear or logarithmic x, y logarithmic."""

    def __init__(self, title, xs, ys, x_log=False, x_name=str, unit=""):
        self.log = math.log10
        self.marks = ticks(min(ys), max(ys))
        self.x_log, self.x_name = x_log, x_name
        self.x_low, self.x_high = min(xs), max(xs)
        if self.x_low == self.x_high:
            self.x_high += 1
        self.parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" xmlns="http://www.w3.org/2000/svg">{STYLE}'
        ]
        for mark in self.marks:
            y = self.y(mark)
            self.parts.append(f'<path class="l" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            name = f"{mark:g}" if mark < 1e4 else f"{mark / 1000:g}k"
            self.parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
        self.parts.append(f'<text x="4" y="{TOP - 2}">{unit}</text>')
        self.shown = 0

    def x(self, value):
        low, high = (self.log(self.x_low), self.log(self.x_high)) if self.x_log else (self.x_low, self.x_high)
        value = self.log(value) if self.x_log else value
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        low, high = self.log(self.marks[0]), self.log(self.marks[-1])
        part = (self.log(max(value, self.marks[0])) - low) / (high - low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def mark_x(self, values):
        for value in values:
            self.parts.append(
                f'<text x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{self.x_name(value)}</text>'
            )

    def line(self, name, points):
        colour = COLOURS[self.shown % len(COLOURS)]
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in sorted(points))
        self.parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="1.5" fill="none"/>')
        at = LEFT + self.shown % 5 * 140
        row = HEIGHT - 26 + self.shown // 5 * 16
        self.parts.append(f'<rect x="{at}" y="{row}" width="10" height="10" fill="{colour}"/><text x="{at + 14}" y="{row + 9}">{name}</text>')
        self.shown += 1

    def save(self, path):
        with open(path, "w", encoding="utf-8") as f:
            f.write("".join(self.parts) + "</svg>\n")


def entries(row):
    return [e for e in row["contenders"] if e.get("summary")]


def facts(results, title, slices=None):
    """The machine, what was compared and how it was made; `slices` says what a slice is."""
    m, s = results["machine"], results["settings"]
    versions = "; ".join(f"{k}: {v}" for k, v in sorted(m["versions"].items()))
    seen, options = set(), []
    for row in results["rows"]:
        for e in row["contenders"]:
            if e["name"] not in seen and e.get("mount"):
                seen.add(e["name"])
                kept = f", retention {e['retention']}" if e.get("retention") else ""
                # Where the program lies is nobody's business.
                mkfs = "nenrin " + e["mkfs"].split(" ", 1)[1] if e["name"].startswith("nenrin") else e["mkfs"]
                options.append(f"- {e['name']}: `{mkfs}`, `{e['mount']}`, cache {e['cache']}{kept}")
    limit = ""
    if s.get("limit_iops"):
        limit = f", each limited to {s['limit_iops']} requests and {s['limit_bps']} bytes per second by the blkio controller"
    slices = slices or f"{s['slices']} slices of {s['slice_ms']} ms (fewer where the tables say so)"
    busy = sum(e["gate_gave_up"] for r in results["rows"] for e in r["contenders"])
    count = sum(len(e["samples"]) for r in results["rows"] for e in r["contenders"])
    begun = f"Begun {results['started'][:16].replace('T', ' ')}. " if results.get("started") else ""
    return (
        f"\n## {title}\n\n{begun}{m['processor']}, {m['cores']} cores, {m['memory_bytes'] / 2**30:.1f} GiB, Linux {m['kernel']}, {m['system']}; "
        f"devices of {s['device_bytes'] >> 20} MiB{limit}; {slices}, "
        f"{busy} of {count} slices on a machine that was not idle. {versions}.\n\n" + "\n".join(options + [f"- {note}" for note in results.get("notes", [])]) + "\n"
    )
