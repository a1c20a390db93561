"""Accuracy and speed of the verifier `math` on labelled answers, next to math-verify.

    python benchmarks/verify.py                      # the labelled set of the tests, ours only
    python benchmarks/verify.py --peer               # and math-verify on a sample of it
    python benchmarks/verify.py rows.jsonl           # another set: {"category", "gold", "response", "right"} per line

Prints accuracy, false negatives and false positives by category, and rows per CPU second of both. Speed is measured
with rows all distinct and caches empty; CPU seconds, as the machine may be shared. The bar on an idle machine is 2,000
rows per CPU second.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from verizero.verifiers.mathematics import score  # noqa: E402

LABELLED = ROOT / "tests" / "verifiers" / "math" / "labelled.jsonl"
Row = dict[str, Any]


class Measured(NamedTuple):
    """The results of a grader on a set: for each row True if it was graded as right, and CPU seconds in all."""

    accepted: list[bool]
    cpu_s: float


def ours(rows: list[Row]) -> Measured:
    """Return our verdicts, and the CPU time of this process for them."""
    start = time.process_time()
    verdicts = score((row["response"], row["gold"]) for row in rows)
    return Measured([verdict.is_correct for verdict in verdicts], time.process_time() - start)


def math_verify(rows: list[Row]) -> Measured:
    """Return math-verify's verdicts with its own defaults: the gold in a box, its own five-second alarms."""
    from math_verify import parse, verify

    accepted = []
    start = time.process_time()
    for row in rows:
        try:
            accepted.append(bool(verify(parse(f"\\boxed{{{row['gold']}}}"), parse(row["response"]))))
        except BaseException as exc:  # its TimeoutException is no Exception
            if isinstance(exc, KeyboardInterrupt):
                raise
            accepted.append(False)
    return Measured(accepted, time.process_time() - start)


def summary(name: str, rows: list[Row], measured: Measured) -> str:
    """Return a line with accuracy, error rates and rows per CPU second."""
    right = [row["right"] for row in rows]
    negatives = sum(r and not a for r, a in zip(right, measured.accepted, strict=True))
    positives = sum(a and not r for r, a in zip(right, measured.accepted, strict=True))
    total, num_right = len(rows), sum(right)
    accuracy = 100 * (1 - (negatives + positives) / total)
    errors = f"false negatives {negatives}/{num_right}, false positives {positives}/{total - num_right}"
    return (
        f"{name:12} {total} rows: accuracy {accuracy:.2f}%, {errors}, {total / measured.cpu_s:,.0f} rows per CPU second"
    )


def table(rows: list[Row], columns: dict[str, Measured]) -> str:
    """Return false negatives and positives by category, a pair of columns for each grader."""
    lines = [f"{'category':20}" + "".join(f"{name + ' FN':>16}{'FP':>8}" for name in columns)]
    for category in dict.fromkeys(row["category"] for row in rows):
        at = [i for i, row in enumerate(rows) if row["category"] == category]
        num_right = sum(rows[i]["right"] for i in at)
        line = f"{category:20}"
        for measured in columns.values():
            negatives = sum(rows[i]["right"] and not measured.accepted[i] for i in at)
            positives = sum(measured.accepted[i] and not rows[i]["right"] for i in at)
            line += f"{f'{negatives}/{num_right}':>16}{f'{positives}/{len(at) - num_right}':>8}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=Path, default=LABELLED, help="labelled rows as JSONL")
    parser.add_argument("--peer", action="store_true", help="measure math-verify too")
    parser.add_argument("--sample", type=int, help="rows taken at random (math-verify does about 40 a second)")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines() if line.strip()]
    rows = list({(row["gold"], row["response"]): row for row in rows}.values())
    if args.sample:
        rows = random.Random(0).sample(rows, min(args.sample, len(rows)))
        rows.sort(key=lambda row: str(row["category"]))
    graders: dict[str, Callable[[list[Row]], Measured]] = {"ours": ours}
    if args.peer:
        graders["math-verify"] = math_verify
    columns = {name: measure(rows) for name, measure in graders.items()}
    print(table(rows, columns))
    for name, measured in columns.items():
        print(summary(name, rows, measured))


if __name__ == "__main__":
    main()
