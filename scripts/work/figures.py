"""The table of what was tried, for docs/TESTING.md, from the logs of the parts. figures.py LOGS [DOCUMENT]
With DOCUMENT, what stands there between the two marks is replaced."""
import datetime, os, re, sys

logs, document = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def log(name):
    path = os.path.join(logs, name + ".log")
    return open(path, errors="replace").read() if os.path.exists(path) else ""


crash = log("crash")
number = lambda n: f"{n:,}"


def total(pattern, text=crash):
    """All numbers of the pattern's one group, added up."""
    found = re.findall(pattern, text, re.M)
    return sum(int(n) for n in found) if found else None


def several(patterns, text=crash):
    counts = {name: total(p, text) or 0 for name, p in patterns.items()}
    return ", ".join(f"{name} {number(n)}" for name, n in counts.items() if n) or None


rows = []


def row(what, value):
    """A figure that no log has is said to be missing, not left out."""
    rows.append(f"| {what} | {number(value) if isinstance(value, int) else value or 'not run'} |")


row("distinct crash states: recovered, read back, judged", total(r"^crash images +\d+ +distinct (\d+)"))
row("images cut, equal ones included", total(r"^crash images +(\d+)"))
# Each part begins with the line that names it. "of one core" is making, recovering and judging, workloads included.
parts = [(part.split(",")[0], part) for part in re.split(r"^nenrin-sim ", crash, flags=re.M)[1:]]
speeds = [(name, *found) for name, part in parts
          for found in re.findall(r"^of one core +([\d.]+) +for (\d+) images .*: (\d+) per", part, re.M)]
cuts = [s for s in speeds if not s[0].startswith("lives")]
seconds = sum(float(s[1]) for s in cuts)
row("states a second on one core, different within their workload; without lives",
    int(sum(int(s[2]) for s in cuts) / seconds) if seconds else None)
row("the same by simulation", "; ".join(f"{s[0]}: {number(int(s[3]))}" for s in speeds))
elapsed = sum(float(s) for s in re.findall(r"^seconds +([\d.]+)", crash, re.M))
row("distinct states a second on all cores, with failed requests, lies, flipped bits and lives in the time",
    int((total(r"^crash images +\d+ +distinct (\d+)") or 0) / elapsed) if elapsed else None)
row("past states compared", total(r"past states compared (\d+)"))
row("recovered volumes used further and closed", total(r"^second lives +(\d+)"))
row("images cut from those and from recovery", total(r"^second lives .* images cut from them (\d+)"))
decisions = {d: rf"^  (?:after a lie or a flipped bit: )?{d} +(\d+)" for d in (
    "partials accepted", "cut before missing payload", "cut before missing data",
    "unfinished logical segment dropped", "the log ends", "damage proven")}
row("mounts by decision of recovery", several(decisions))
for kind, plural in (("Write", "writes"), ("Flush", "flushes"), ("Read", "reads")):
    answers = dict.fromkeys(re.findall(rf"^  {kind} fails: (\w+)", crash, re.M))
    row(f"{plural} that failed, one a run, by answer",
        several({a: rf"^  {kind} fails: {a} +(\d+)" for a in answers}))
ANSWERS = ("Same", "Mended", "InLife", "Error", "Damage", "NotReached")


def lies(request, what, known):
    """A row for each way to lie about such requests: of those that are known, and of others that the log tells of."""
    told = [kind for kind in re.findall(rf"^  {request} (\w+): ", crash, re.M) if kind != "fails"]
    for kind in dict.fromkeys([*known, *told]):
        answers = {a: rf"^  {request} {kind}: {a} +(\d+)" for a in ANSWERS}
        row(f"{what} {known.get(kind, kind)}, one a run, by what was seen", several(answers))


lies("Write", "writes that went", {"Lost": "lost without a word", "Misdirected": "to another place without a word",
                                   "Astray": "onto the one before without a word"})
lies("Read", "reads that came back with a flipped bit", {"Flipped": "once", "Stuck": "for ever"})
row("crash states of repairs and of other lives", total(r"^  repair cut +(\d+)"))
row("bits flipped, by what was seen", several({a: rf"^  Bit flipped: {a} +(\d+)" for a in ("Same", "Error", "Damage")}))
named = re.search(r"^(\d+ of \d+) deliberate breaks were noticed", crash, re.M)
hostile = len(re.findall(r"^\.*P8 .* noticed after", crash, re.M))
row("deliberate breaks noticed", named and f"{named[1]} in the simulator, {hostile} by hostile bytes")
cases = re.findall(r"^\.*(\w[\w ]*): (\d+) cases of seed", log("hostile"), re.M)
row("hostile cases", ", ".join(f"{name} {number(int(n))}" for name, n in sorted(cases)))
guided = re.findall(r"^fuzz (\w+) +(\d+) executions in (\d+) s", log("fuzz"), re.M)
row("coverage-guided executions", ", ".join(f"{name} {number(int(n))}" for name, n, _ in guided))
passed = re.findall(r"(\d+) failed, \d+ skipped, (\d+) passed", log("pjdfstest"))
row("pjdfstest", ", ".join(f"{p} passed and {f} failed" for f, p in passed))
row("fsx, seeds of 3,000 operations", total(r"fsx, seeds of \d+ operations +(\d+)", log("fsx")))
row("SQLite killed under three journal modes, times", total(r"three journal modes, times +(\d+)", log("sqlite")))
row("dbench, operations", total(r"dbench, operations +(\d+)", log("dbench")))
for name in ("fio-verify", "stress"):
    code = re.search(r"^== exit (\d+)$", log(name), re.M)
    # 77: cannot be done here.
    row(name, code and {"0": "passed", "77": "skipped"}.get(code[1], "FAILED"))
row("SIGKILL under SQLite, git and files, rounds", total(r"^ +rounds, slowest .* (\d+), \d+$", log("kill")))

table = f"Of {datetime.date.today()}.\n\n| what | how much |\n|---|---|\n" + "\n".join(rows) + "\n"
print(table)
if document:
    text = open(document).read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{document}: the marks {BEGIN.strip()} and {END.strip()} are not there once each")
    head, rest = text.split(BEGIN)
    open(document, "w").write(head + BEGIN + table + END + rest.split(END)[1])
