"""Puts published claims to the test.

    python -m benchmarks.claims [NAMES] --folder runs/claims        all of them: hours

Prints a line for each seed and the verdict, and writes benchmarks/claims/results/NAME.json, from which `--page` writes
docs/claims.md and its picture. A finished run in FOLDER is not repeated.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from benchmarks.claims.claim import Claim
from benchmarks.claims.page import number, write_page
from benchmarks.claims.trained import ROOT, run_of
from verizero.pipeline.report.intervals import over_seeds

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NOT_CLAIMS = {"__init__", "__main__", "claim", "page", "reading", "trained"}


def all_claims() -> dict[str, Claim]:
    """Return every claim by name: one a file of this folder."""
    names = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in NOT_CLAIMS)
    return {name: importlib.import_module(f"benchmarks.claims.{name}").CLAIM for name in names}


def main() -> None:
    """Run what the command line names."""
    known = all_claims()
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", choices=[*known, []], help="default: all")
    options.add_argument("--folder", type=Path, default=Path("runs/claims"))
    options.add_argument("--seeds", type=int, help="fewer than the claim has, for a try; writes no result")
    options.add_argument("--set", action="append", default=[], metavar="a.b=c", help="for a try; writes no result")
    options.add_argument("--page", action="store_true", help="write docs/claims.md from the results, and run nothing")
    asked = options.parse_args()
    if asked.page:
        write_page(ROOT / "docs" / "claims.md", known, RESULTS)
        return
    for name in asked.names or known:
        values = values_of(known[name], asked.folder, asked.seeds or known[name].seeds, tuple(asked.set))
        if asked.seeds is None and not asked.set:
            report(known[name], values, RESULTS)


def values_of(claim: Claim, folder: Path, seeds: int, changes: tuple[str, ...] = ()) -> list[float]:
    """Return the claim's statistic of each seed."""
    values = []
    for seed in range(seeds):
        runs = {arm.name: run_of(arm, seed, folder, changes) for arm in claim.arms}
        values.append(claim.value(runs))
        print(f"{claim.name} seed {seed}: {number(values[-1])}", flush=True)
    return values


def report(claim: Claim, values: list[float], results: Path) -> None:
    """Print the verdict, and write it into the folder `results`."""
    seen = over_seeds(values)
    outcome = claim.judge(seen)
    print(f"{claim.title}: {outcome}. {number(seen.value)} [{number(seen.low)}, {number(seen.high)}]; {claim.rule}")
    result = {"values": values, "mean": seen.value, "low": seen.low, "high": seen.high, "outcome": outcome}
    results.mkdir(exist_ok=True)
    (results / f"{claim.name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
