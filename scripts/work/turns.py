"""What two programs in turns gave: of each row and contender the median of the turns' ratios, with the least and the most.

turns.py DIRECTORY, which has before-N.json and after-N.json of nenrin-bench.
"""

import json
import statistics
import sys
from pathlib import Path


def ratios(directory, program):
    """{(row, contender, reference): [ratio of each turn]}"""
    found = {}
    for file in sorted(directory.glob(f"{program}-*.json")):
        for row in json.loads(file.read_text())["rows"]:
            for one in row["contenders"]:
                for reference, ratio in (one.get("ratios") or {}).items():
                    found.setdefault((row["name"], one["name"], reference), []).append(ratio["median"])
    return found


def shown(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    directory = Path(sys.argv[1])
    before, after = ratios(directory, "before"), ratios(directory, "after")
    for key in before:
        row, contender, reference = key
        if key in after and contender.startswith("nenrin"):
            print(f"{row:24} {contender} : {reference:6} before {shown(before[key])}  after {shown(after[key])}  turns {len(after[key])}")


if __name__ == "__main__":
    main()
