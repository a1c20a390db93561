"""Numbers of a finished run, for the statistics of claims."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def mean_of_steps(run: Path, *names: str) -> float:
    """Return the mean over RL steps of the sum of those metrics; a step without them is not counted."""
    steps = [r["metrics"] for r in rows(run) if r["kind"] == "step" and r["stage_kind"] == "rl"]
    return fmean(sum(m[name] for name in names) for m in steps if all(name in m for name in names))


def pass_1(run: Path, place: int) -> float:
    """Return the mean pass@1 over domains of an evaluation: 0 the first, -1 the last."""
    evaluations = [r for r in rows(run) if r["kind"] == "evaluation"]
    domains = evaluations[place]["domains"].values()
    return fmean(domain["pass@1"]["value"] for domain in domains)
