#!/usr/bin/env python3
"""One line of what measured.sh did: for whom it stands, how it was run, what came of it.

measured.py RUN KIND FAILURES TALLY ERRORS   RUN as `nenrin-bench --measured` prints it; KIND more arguments of the simulator; TALLY what it
                                             counted, as JSON; ERRORS what it said
"""
import datetime
import json
import sys


def main():
    run, kind, failures, tally, errors = sys.argv[1:]
    made = json.loads(run)
    made["arguments"] = f"{made['arguments']} {kind}".strip()
    with open(tally, encoding="ascii") as f:
        text = f.read()
    # A run that failed prints what failed, and no tally.
    counted = json.loads(text)["tally"] if text.strip() else {}
    with open(errors, encoding="utf-8") as f:
        replays = [line.strip() for line in f if " replay --seed " in line]
    made |= {
        "day": datetime.date.today().isoformat(),
        "seeds": counted.get("workloads", 0),
        "images": counted.get("distinct", 0),
        "past_states": counted.get("past_states", 0),
        "failures": int(failures),
    }
    if replays:
        made["replay"] = replays[0]
    print(json.dumps(made))


main()
