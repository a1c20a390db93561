"""The tables of docs/think.md, printed from the files of a finished run of configs/think.yaml.

python benchmarks/think.py runs/think
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from verizero.pipeline.data.generators.countdown import DEEPER, SHOWN
from verizero.pipeline.report.files import read_rollouts, read_run
from verizero.pipeline.report.row_types import EvaluationRow, RolloutRow, StepRow

PARTS = 10
"""Rows of the table of lengths: equal parts of the RL steps."""
MEASURES = {"pass@1": (3, "pass@1"), "pass@k": (3, "pass@{k}"), "greedy": (3, "greedy"), "length": (1, "tokens")}
"""Measure of an evaluation -> its decimal places, and what it is called in the table."""
ATTEMPTS = {"1": (1, 1), "2": (2, 2), "3 to 4": (3, 4), "5 to 8": (5, 8), "9 or more": (9, 10**6)}
"""Column of the table of attempts -> the fewest and the most attempts that it counts."""


def main() -> None:
    """Parse the command line and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="a run's folder")
    print(tables(options.parse_args().folder))


def tables(folder: Path) -> str:
    """Return the tables of a run: before and after RL, pass@1 by depth, attempts, length over the RL steps."""
    run = read_run(folder)
    starts = [e for e in run.evaluations if e.step == 0]
    if not starts or not run.rl_steps:
        raise SystemExit(f"{folder} has no evaluation before RL, or no RL step; give the folder of a finished run")
    before, after = starts[-1], run.evaluations[-1]
    rollouts = [row for row in read_rollouts(folder) if row.stage.startswith("evaluation/")]
    tried = {
        name: [row for row in rollouts if row.step == evaluation.step]
        for name, evaluation in (("SFT", before), ("RL", after))
    }
    parts = [_measures(before, after), _depths(before, after), attempts(tried), _lengths(run.rl_steps)]
    return "\n\n".join("\n".join(part) for part in parts)


def _measures(before: EvaluationRow, after: EvaluationRow) -> list[str]:
    lines = ["| tasks | | after SFT | after RL |", "| --- | --- | --- | --- |"]
    for domain, called in ((SHOWN, "as deep as shown"), (DEEPER, "deeper")):
        for measure, (digits, name) in MEASURES.items():
            cells = [_cell(e.domains[domain][measure], digits) for e in (before, after)]
            lines.append(f"| {called} | {name.format(k=after.k)} | {' | '.join(cells)} |")
    return lines


def _cell(value: Mapping[str, float], digits: int) -> str:
    """Return a measure with its interval."""
    return f"{value['value']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def _depths(before: EvaluationRow, after: EvaluationRow) -> list[str]:
    rows = {"pass@1 after SFT": by_depth(before.domains), "pass@1 after RL": by_depth(after.domains)}
    depths = sorted(next(iter(rows.values())))
    lines = [f"| numbers | {' | '.join(map(str, depths))} |", f"| --- |{' --- |' * len(depths)}"]
    return lines + [f"| {name} | {' | '.join(f'{row[d]:.2f}' for d in depths)} |" for name, row in rows.items()]


def by_depth(domains: Mapping[str, Mapping[str, Any]]) -> dict[int, float]:
    """Return the mean pass@1 of the held-out tasks with each number of given numbers."""
    values: dict[int, list[float]] = defaultdict(list)
    for row in domains.values():
        for prompt_id, pass_1 in row["by_prompt"]:
            values[str(prompt_id).count("_") + 1].append(pass_1)
    return {depth: fmean(own) for depth, own in values.items()}


def attempts(responses: Mapping[str, Sequence[RolloutRow]]) -> list[str]:
    """Return the table of attempts: for each stage, the share of its responses with so many, and how many are right."""
    lines = [f"| attempts | {' | '.join(ATTEMPTS)} |", f"| --- |{' --- |' * len(ATTEMPTS)}"]
    for stage, rows in responses.items():
        counted = [(row.response.partition("</think>")[0].count(",") + 1, row.reward) for row in rows]
        parts = [[reward for n, reward in counted if fewest <= n <= most] for fewest, most in ATTEMPTS.values()]
        shares = [f"{len(part) / max(1, len(rows)):.2f}" for part in parts]
        right = [f"{fmean(reward or 0.0 for reward in part):.2f}" if part else "" for part in parts]
        lines += [f"| share after {stage} | {' | '.join(shares)} |", f"| right after {stage} | {' | '.join(right)} |"]
    return lines


def _lengths(steps: Sequence[StepRow]) -> list[str]:
    """Return the means over equal parts of the RL steps, of all sampled responses, before any group is dropped."""
    lines = ["| RL steps | tokens of a response | reward |", "| --- | --- | --- |"]
    ends = [len(steps) * part // PARTS for part in range(PARTS + 1)]
    for begin, end in pairwise(ends):
        if begin == end:
            continue
        own = [step.metrics for step in steps[begin:end]]
        length, reward = (fmean(m[key] for m in own) for key in ("length/mean", "reward/sampled"))
        lines.append(f"| {begin + 1} to {end} | {length:.1f} | {reward:.3f} |")
    return lines


if __name__ == "__main__":
    main()
