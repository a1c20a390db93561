"""Numbers of a finished run, for the statistics of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from verizero.pipeline.files import read_jsonl


def rl_steps(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of each RL step."""
    rows = read_jsonl(run / "metrics.jsonl")
    return [r["metrics"] for r in rows if r["kind"] == "step" and r["stage_kind"] == "rl"]


def mean_of_steps(run: Path, *names: str) -> float:
    """Return the mean over RL steps of the sum of those metrics; a step without them is not counted."""
    return fmean(sum(m[name] for name in names) for m in rl_steps(run) if all(name in m for name in names))


def last_steps(run: Path, name: str) -> float:
    """Return the mean of a metric over the last quarter of the RL steps."""
    steps = rl_steps(run)
    return fmean(m[name] for m in steps[-max(1, len(steps) // 4) :])


def greatest_of_steps(run: Path, name: str) -> float:
    """Return the greatest value of a metric among RL steps."""
    return max(float(m[name]) for m in rl_steps(run))


def pass_1(run: Path, place: int) -> float:
    """Return the mean pass@1 over domains of an evaluation: 0 the first, -1 the last."""
    evaluations = [r for r in read_jsonl(run / "metrics.jsonl") if r["kind"] == "evaluation"]
    domains = evaluations[place]["domains"].values()
    return fmean(domain["pass@1"]["value"] for domain in domains)


def pass_1_less(arm: str, other: str) -> Callable[[Mapping[str, Path]], float]:
    """Return the statistic: the last pass@1 of one arm's run, less that of the other's."""

    def difference(runs: Mapping[str, Path]) -> float:
        return pass_1(runs[arm], -1) - pass_1(runs[other], -1)

    return difference
