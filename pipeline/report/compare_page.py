"""Write compare.html: runs of several recipes on one page, made from their files only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.report.curves import Chart, Series
from verizero.pipeline.report.intervals import Estimate, paired_over_seeds
from verizero.pipeline.report.page import rendered
from verizero.pipeline.report.plots import draw
from verizero.pipeline.report.run_files import read_run

AXES = {"steps": "RL step", "tokens": "generated tokens", "seconds": "seconds of RL"}
HEAD = ("recipe", "pass@1 before", "after", "gain", "against the first", "steps", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The results of one run: evaluations along each axis, and first and last pass@1 by prompt."""

    at: Mapping[str, tuple[float, ...]]
    pass_1: tuple[float, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]


def build_compare_page(folder: Path) -> dict[str, Any]:
    """Return the results of each recipe by name, and write them with curves to `folder`/compare.html.

    Per recipe: pass@1 "before" and "after" (means over seeds of the mean over all prompts), "gain" and "against_first"
    (paired over seeds and prompts, each {value, low, high}; None for the first recipe itself), "steps", "tokens" and
    "seconds" a run, and the number of its runs, "num_runs".
    """
    record = json.loads((folder / "compare.json").read_text())
    runs: dict[str, list[RunOutcome]] = {}
    for run in record["runs"]:
        runs.setdefault(run["run"][0], []).append(outcome_of(folder / run["folder"]))
    order = [name for name in record["order"] if name in runs]
    # A comparison that still runs has fewer seeds of later recipes: seeds are compared in pairs.
    rows = {name: summarize_runs(runs[name], runs[order[0]][: len(runs[name])]) for name in order}
    charts = [chart(axis, label, {name: runs[name] for name in order}) for axis, label in AXES.items()]
    page = rendered(
        "compare.html",
        head=HEAD,
        rows=[_cells(name, row) for name, row in rows.items()],
        explained=explained([row["num_runs"] for row in rows.values()]),
        figures=[(chart.title, draw(chart).svg) for chart in charts],
    )
    write_atomic(folder / "compare.html", page.encode())
    return rows


def outcome_of(folder: Path) -> RunOutcome:
    """Return the results of the run in `folder`, read from its files."""
    run = read_run(folder)
    # Tokens are totals so far in each row, seconds are of one step.
    tokens = [float(r.metrics.get("tokens/generated", 0.0)) for r in run.rl_steps]
    seconds = list(accumulate(float(r.time.get("total", 0.0)) for r in run.rl_steps))
    steps = [e.step for e in run.evaluations]
    by_prompt = [
        {f"{domain}/{p}": v for domain, row in e.domains.items() for p, v in row["by_prompt"]} for e in run.evaluations
    ]

    def until(totals: Sequence[float], step: int) -> float:
        return 0.0 if step == 0 else totals[step - 1]

    return RunOutcome(
        at={
            "steps": tuple(float(s) for s in steps),
            "tokens": tuple(until(tokens, s) for s in steps),
            "seconds": tuple(until(seconds, s) for s in steps),
        },
        pass_1=tuple(fmean(values.values()) for values in by_prompt),
        before=by_prompt[0],
        after=by_prompt[-1],
    )


def summarize_runs(runs: Sequence[RunOutcome], first: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return a recipe's row of the table. `first`: the first recipe's runs with the same seeds."""
    gain = paired_over_seeds([(r.before, r.after) for r in runs])
    # The first recipe is not compared with itself: that is 0 without any doubt.
    is_first = all(own is other for own, other in zip(runs, first, strict=True))
    against = None if is_first else paired_over_seeds([(f.after, r.after) for f, r in zip(first, runs, strict=True)])
    return {
        "before": fmean(fmean(r.before.values()) for r in runs),
        "after": fmean(fmean(r.after.values()) for r in runs),
        "gain": asdict(gain),
        "against_first": against and asdict(against),
        **{axis: fmean(r.at[axis][-1] for r in runs) for axis in AXES},
        "num_runs": len(runs),
    }


def chart(axis: str, label: str, runs: Mapping[str, Sequence[RunOutcome]]) -> Chart:
    """Return the chart of each recipe's pass@1 along an axis: the mean over its runs, interpolated linearly."""
    x = tuple(sorted({at for rs in runs.values() for r in rs for at in r.at[axis]}))
    series = []
    for color, (name, rs) in enumerate(runs.items()):
        lines = [[interpolated(r.at[axis], r.pass_1, at) for at in x] for r in rs]
        here = [[v for v in column if v is not None] for column in zip(*lines, strict=True)]
        # beyond the end of the shortest run a mean would jump, for it would be of fewer runs
        y = tuple(fmean(column) if len(column) == len(rs) else None for column in here)
        series.append(Series(name, y, color % 8))
    return Chart(f"compare-{axis}", f"pass@1 by {label}", "", x, tuple(series), x_label=label)


def interpolated(xs: Sequence[float], ys: Sequence[float], at: float) -> float | None:
    """Return the piecewise linear curve through the points at `at`; None outside. Of equal xs the last counts."""
    points = dict(zip(xs, ys, strict=True))
    value = float(np.interp(at, list(points), list(points.values()), math.nan, math.nan))
    return None if math.isnan(value) else value


def text_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table as Markdown, with an explanation of its brackets."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    lines += [f"| {' | '.join(_cells(name, row))} |" for name, row in rows.items()]
    return "\n".join([*lines, "", explained([row["num_runs"] for row in rows.values()])])


def explained(num_runs: Sequence[int]) -> str:
    """Return a sentence that explains the brackets, for recipes with these numbers of runs."""
    seeds = " to ".join(str(n) for n in sorted({min(num_runs), max(num_runs)}))
    prompts_alone = (
        "With one seed they speak of prompts alone: another seed may differ by more than they are wide; add --seeds."
    )
    if max(num_runs) == 1:
        return f"One run of each recipe. Brackets are 95% intervals paired over prompts. {prompts_alone}"
    return (
        f"Means of {seeds} seeds from the same start with the same prompts. Brackets are 95% intervals: Student's t "
        "over seeds, widened by what prompts differ beyond chance."
        + (f" {prompts_alone}" if min(num_runs) == 1 else "")
    )


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    def spread(key: str) -> str:
        if row[key] is None:
            return "–"
        e = Estimate(**row[key])
        return f"{e.value:+.3f} [{e.low:+.3f}, {e.high:+.3f}]"

    rates = [f"{row['before']:.3f}", f"{row['after']:.3f}", spread("gain"), spread("against_first")]
    return [name, *rates, f"{row['steps']:.0f}", f"{row['tokens']:,.0f}", f"{row['seconds']:.0f}"]
