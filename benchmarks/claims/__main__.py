"""Puts published claims to the test.

    python -m benchmarks.claims [NAMES] --folder runs/claims        all of them: hours

Prints a line for each seed and the verdict, which benchmarks/claims/claims.md is to show, and writes
benchmarks/claims/results/NAME.json. A finished run in FOLDER is not repeated.
"""

import argparse
import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from benchmarks.claims.claims import CLAIMS, DEMO, Claim
from verizero.pipeline.errors import DataError
from verizero.pipeline.report.intervals import Estimate, over_seeds

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "claims" / "results"


def main() -> None:
    """Run what the command line names."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", choices=[*CLAIMS, []], help="default: all")
    options.add_argument("--folder", type=Path, default=Path("runs/claims"))
    options.add_argument("--seeds", type=int, help="fewer than the claim has, for a try; writes no result")
    options.add_argument("--set", action="append", default=[], metavar="a.b=c", help="for a try; writes no result")
    asked = options.parse_args()
    for name in asked.names or CLAIMS:
        values = values_of(CLAIMS[name], asked.folder, asked.seeds or CLAIMS[name].seeds, tuple(asked.set))
        if asked.seeds is None and not asked.set:
            report(CLAIMS[name], values, RESULTS)


def values_of(claim: Claim, folder: Path, seeds: int, changes: tuple[str, ...] = ()) -> list[float]:
    """Return the claim's statistic of each seed."""
    values = []
    for seed in range(seeds):
        runs = {arm: run_of(claim.recipe, own, seed, folder, changes) for arm, own in claim.arms.items()}
        values.append(claim.value(runs))
        print(f"{claim.name} seed {seed}: {number(values[-1])}", flush=True)
    return values


def run_of(recipe: str, own: tuple[str, ...], seed: int, folder: Path, changes: tuple[str, ...] = ()) -> Path:
    """Return the folder of an arm's run with that seed, trained now unless it is there; `changes` come last.

    Arms of several claims that train alike share a run. All begin with the model that the demo's SFT makes once a seed.
    """
    words = "\n".join([recipe, *sorted(own)])
    place, name = (folder / "arms").resolve(), f"{hashlib.sha256(words.encode()).hexdigest()[:12]}-seed{seed}"
    if not (place / name / "summary.json").is_file():
        start = start_of(seed, folder, changes)
        usual = ("stages=[rl]", f"model.path={start}", "model.create=null", "evaluation.before_training=true")
        train(recipe, (f"name={name}", f"output={place}", f"seed={seed}", *usual, *own, *changes))
    return place / name


def start_of(seed: int, folder: Path, changes: tuple[str, ...] = ()) -> Path:
    """Return the model after SFT with that seed."""
    place = (folder / "starts").resolve()
    if not (place / f"seed{seed}" / "model").is_dir():
        train(DEMO, (f"name=seed{seed}", f"output={place}", f"seed={seed}", "stages=[sft]", *changes))
    return place / f"seed{seed}" / "model"


def train(recipe: str, changes: tuple[str, ...]) -> None:
    """Train a recipe in a process of its own. Raises: CalledProcessError if it fails."""
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "verizero.pipeline.cli", "train", str(ROOT / recipe), "--no-prefect", *words]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def number(x: float) -> str:
    """Return a number with three decimals, or in scientific notation where those would be 0."""
    return f"{x:.3f}" if x == 0 or abs(x) >= 5e-4 else f"{x:.1e}"


def report(claim: Claim, values: list[float], results: Path) -> None:
    """Print the verdict, and write it into the folder `results`."""
    try:
        seen = over_seeds(values)
        ends: list[float | None] = [seen.low, seen.high]
        interval = f"[{number(seen.low)}, {number(seen.high)}]"
    except DataError as exc:
        seen, ends, interval = Estimate(fmean(values), -math.inf, math.inf), [None, None], str(exc)
    outcome = claim.judge(seen)
    print(f"{claim.title}: {outcome}. {number(seen.value)} {interval}")
    result = {"values": values, "mean": seen.value, "low": ends[0], "high": ends[1], "outcome": outcome}
    results.mkdir(exist_ok=True)
    (results / f"{claim.name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
