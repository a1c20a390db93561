"""Write compare.html: runs of several recipes on one page, made from their files only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from verizero.pipeline.files import write_atomic
from verizero.pipeline.report.curves import Chart, Series
from verizero.pipeline.report.files import read_run
from verizero.pipeline.report.intervals import Estimate, paired_over_seeds
from verizero.pipeline.report.plots import draw
from verizero.pipeline.shown import in_html

HERE = Path(__file__).parent
AXES = {"steps": "RL step", "tokens": "generated tokens", "seconds": "seconds of RL"}
HEAD = (
    "recipe",
    "pass@1 before",
    "after",
    "gain",
    "against the first",
    "steps",
    "tokens",
    "seconds",
    "peak memory, MiB",
    "length at the end",
    "entropy at the end",
)
END_METRICS = {"length": "length/mean", "entropy": "entropy"}
"""Column -> metric that is averaged over the last quarter of the RL steps."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The results of one run: evaluations along each axis, first and last pass@1 by prompt, and its cost."""

    at: Mapping[str, tuple[float, ...]]
    pass_1: tuple[float, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]
    peak_memory_mib: float
    end: Mapping[str, float]
    """The columns of END_METRICS that the run has."""


def build_compare_page(folder: Path) -> dict[str, Any]:
    """Return the results of each recipe by name, and write them with curves to `folder`/compare.html.

    Per recipe: pass@1 "before" and "after" (means over seeds of the mean over all prompts), "gain" and "against_first"
    (paired over seeds and prompts, each {value, low, high}; None for the first recipe itself), "steps", "tokens",
    "seconds" and "peak_memory_mib" a run, and the number of its runs, "num_runs".
    """
    record = json.loads((folder / "compare.json").read_text())
    runs: dict[str, list[RunOutcome]] = {}
    for run in record["runs"]:
        runs.setdefault(run["run"][0], []).append(outcome_of(folder / run["folder"], run["peak_memory_mib"]))
    order = [name for name in record["order"] if name in runs]
    # A comparison that still runs has fewer seeds of later recipes: seeds are compared in pairs.
    rows = {name: summarize_runs(runs[name], runs[order[0]][: len(runs[name])]) for name in order}
    charts = [chart(axis, label, {name: runs[name] for name in order}) for axis, label in AXES.items()]
    write_atomic(folder / "compare.html", _page(rows, charts).encode())
    return rows


def outcome_of(folder: Path, peak_memory_mib: float) -> RunOutcome:
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
        peak_memory_mib=peak_memory_mib,
        end=end_metrics([r.metrics for r in run.rl_steps]),
    )


def end_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the columns of END_METRICS, over steps of the last quarter that have the metric."""
    last = steps[-max(1, len(steps) // 4) :]
    known = {name: [m[key] for m in last if key in m] for name, key in END_METRICS.items()}
    return {name: fmean(values) for name, values in known.items() if values}


def summarize_runs(runs: Sequence[RunOutcome], first: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return a recipe's row of the table. `first`: the first recipe's runs with the same seeds."""
    gain = paired_over_seeds([(r.before, r.after) for r in runs])
    # The first recipe is not compared with itself: that is 0 without any doubt.
    is_first = all(own is other for own, other in zip(runs, first, strict=True))
    against = None if is_first else paired_over_seeds([(f.after, r.after) for f, r in zip(first, runs, strict=True)])
    return {
        "before": fmean(fmean(r.before.values()) for r in runs),
        "after": fmean(fmean(r.after.values()) for r in runs),
        "gain": gain.as_dict(),
        "against_first": against and against.as_dict(),
        **{axis: fmean(r.at[axis][-1] for r in runs) for axis in AXES},
        "peak_memory_mib": fmean(r.peak_memory_mib for r in runs),
        **{name: fmean(r.end[name] for r in runs) for name in END_METRICS if all(name in r.end for r in runs)},
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
    if at in points:
        return points[at]
    left, right = (max((p for p in points if p < at), default=None), min((p for p in points if p > at), default=None))
    if left is None or right is None:
        return None
    share = (at - left) / (right - left)
    return points[left] + share * (points[right] - points[left])


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

    return [
        name,
        f"{row['before']:.3f}",
        f"{row['after']:.3f}",
        spread("gain"),
        spread("against_first"),
        f"{row['steps']:.0f}",
        f"{row['tokens']:,.0f}",
        f"{row['seconds']:.0f}",
        f"{row['peak_memory_mib']:.0f}",
        *(f"{row[name]:.3g}" if name in row else "–" for name in END_METRICS),
    ]


def _page(rows: Mapping[str, Mapping[str, Any]], charts: Sequence[Chart]) -> str:
    head = "".join(f"<th>{in_html(h)}</th>" for h in HEAD)
    body = "".join(f"<tr>{''.join(f'<td>{in_html(c)}</td>' for c in _cells(n, r))}</tr>" for n, r in rows.items())
    figures = "".join(f"<figure><figcaption>{in_html(c.title)}</figcaption>{draw(c).svg}</figure>" for c in charts)
    style = (HERE / "report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Recipes compared</title><style>{style}</style></head><body><main><h1>Recipes compared</h1>"
        f"<p>{in_html(explained([r['num_runs'] for r in rows.values()]))}</p>"
        f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{figures}</main></body></html>\n"
    )
