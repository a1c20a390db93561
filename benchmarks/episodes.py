"""The table of the recipes of episodes: held-out pass@1 before and after RL, with intervals, over several seeds.

    python benchmarks/episodes.py                       guess, calculator, files, sql and repair; about 5 minutes a run
    python benchmarks/episodes.py guess --seeds 5
    python benchmarks/episodes.py --deaf                an arm each whose answers tell nothing, which must gain less
    python benchmarks/episodes.py agent --set evaluation.limit=20

Writes FOLDER/episodes.md. A finished run is not repeated, so the same command resumes where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("guess", "calculator", "files", "sql", "repair")


@dataclass(frozen=True)
class Arm:
    """One run."""

    name: str
    seed: int
    is_deaf: bool

    @property
    def label(self) -> str:
        """The run's name."""
        return f"{self.name}{'-deaf' if self.is_deaf else ''}-{self.seed}"

    def overrides(self, folder: Path) -> list[str]:
        """Return the changes of the recipe."""
        changes = [f"name={self.label}", f"seed={self.seed}", f"output={folder}", "report.trackers=[]"]
        if self.is_deaf:
            choice = f"{{path: {ROOT / 'benchmarks' / 'deaf.py'}:deaf, params: {{name: {self.name}}}}}"
            changes += [f"data.{split}.0.environment={choice}" for split in ("train", "evaluation")]
        return changes


def main() -> None:
    """Parse the command line, run what is missing, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", default=NAMES, help="recipes in configs/episodes")
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--deaf", action="store_true", help="add the deaf arms")
    options.add_argument("--set", action="append", default=[], metavar="a.b=c")
    options.add_argument("--folder", type=Path, default=ROOT / "runs" / "episodes")
    asked = options.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    deaf = [False, True] if asked.deaf else [False]
    arms = [Arm(name, seed, d) for seed in range(asked.seeds) for name in asked.names for d in deaf]
    for arm in arms:
        run(arm, folder, asked.set)
        table = "\n".join([*HEAD, *rows(arms, folder)])
        (folder / "episodes.md").write_text(table + "\n")
    print(table)


def run(arm: Arm, folder: Path, changes: list[str]) -> None:
    """Train, unless that is done; the output goes to a log next to the run."""
    if (folder / arm.label / "summary.json").is_file():
        return
    recipe = ROOT / "configs" / "episodes" / f"{arm.name}.yaml"
    sets = [word for change in (*arm.overrides(folder), *changes) for word in ("--set", change)]
    begun = time.monotonic()
    with (folder / f"{arm.label}.log").open("w") as log:
        command = [sys.executable, "-m", "verizero.pipeline.cli", "train", str(recipe), "--no-prefect", *sets]
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=True)
    (folder / arm.label / "seconds").write_text(str(time.monotonic() - begun))
    print(f"{arm.label}: {time.monotonic() - begun:.0f} s", flush=True)


HEAD = [
    "| run | after SFT | after RL | outside the intervals | greedy | calls wrong | minutes |",
    "|---|---|---|---|---|---|---|",
]


def rows(arms: list[Arm], folder: Path) -> Iterator[str]:
    """Yield a line of the table for each run that is done."""
    for arm in arms:
        path = folder / arm.label
        if not (path / "summary.json").is_file():
            continue
        evaluations = [e for e in lines(path / "metrics.jsonl") if e["kind"] == "evaluation"]
        before = next(e for e in evaluations if e["label"] == "after sft")["domains"]
        after = evaluations[-1]["domains"]
        (domain,) = after
        first, last = before[domain]["pass@1"], after[domain]["pass@1"]
        greedy = f"{before[domain]['greedy']['value']:.2f} -> {after[domain]['greedy']['value']:.2f}"
        steps = [s["metrics"] for s in lines(path / "metrics.jsonl") if s["kind"] == "step" and s["stage_kind"] == "rl"]
        wrong = sum(v for k, v in steps[-1].items() if k.startswith("tools/") and k.endswith("/wrong"))
        minutes = float((path / "seconds").read_text()) / 60
        gains = "yes" if last["low"] > first["high"] else "no"
        yield (
            f"| {arm.label} | {interval(first)} | {interval(last)} | {gains} | {greedy} | {wrong:.0f} | {minutes:.1f} |"
        )


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def interval(measure: dict[str, float]) -> str:
    """Return an estimate with its interval of 95 %."""
    return f"{measure['value']:.3f} ({measure['low']:.3f} to {measure['high']:.3f})"


if __name__ == "__main__":
    main()
