"""The charts of a run as plain numbers, for the plots and for the values that the page shows at the pointer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Literal

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.report.row_types import EvaluationRow, StepRow, kind_of, section_of
from verizero.pipeline.report.run_files import RunFiles
from verizero.pipeline.report.summary import RL_PHASES, phases_of

MAX_POINTS = 360
"""Maximum of points in a curve; longer curves are shown as means of equal buckets."""
SMOOTHING = 0.04
"""Half-width of the moving average drawn over a noisy curve, as a share of its points."""
Style = Literal["line", "noisy", "dashed", "area"]


@dataclass(frozen=True, slots=True)
class Series:
    """One named curve; None where nothing was measured. `color` indexes the palette."""

    label: str
    y: tuple[float | None, ...]
    color: int = 0
    style: Style = "line"
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over a common x axis."""

    name: str
    title: str
    caption: str
    x: tuple[float, ...]
    series: tuple[Series, ...]
    x_label: str = "RL step"
    ticks: tuple[str, ...] | None = None
    """Labels of the x values, where they are not numbers."""
    unit: str = ""
    y_limits: tuple[float, float] | None = None
    marks: tuple[float, ...] = ()
    """x values where something changed (the reference moved)."""


def build_charts(run: RunFiles) -> list[Chart]:
    """Return the charts for which this run has numbers, in reading order, with at most MAX_POINTS points."""
    rows = run.rl_steps
    clipped = {"clip_fraction/low": "low", "clip_fraction/high": "high"}
    charts = [
        _rewards(rows),
        pass_chart(run.evaluations),
        _of_steps(rows, "kl", "KL to the reference", {"kl/k3": "KL (k3)"}, unit="nats a token", marks=True),
        _of_steps(rows, "distill", "KL to the teacher", {"distill/kl": "KL(policy || teacher)"}, unit="nats a token"),
        _of_steps(rows, "entropy", "Entropy", {"entropy": "entropy"}, unit="nats a token"),
        _of_steps(rows, "clip_fraction", "Clip fraction", clipped, unit="share of tokens"),
        _of_steps(rows, "length", "Response length", {"length/mean": "mean length"}, unit="tokens", style="noisy"),
        _groups(rows),
        _phases(rows),
        *_machine(rows),
        *_losses(run.steps),
    ]
    return [thin(chart) for chart in charts if chart is not None]


def thin(chart: Chart, max_points: int = MAX_POINTS) -> Chart:
    """Return `chart` with at most `max_points` points, each a mean of neighbours; the caption says so."""
    if len(chart.x) <= max_points:
        return chart
    width = math.ceil(len(chart.x) / max_points)

    def means(values: Sequence[float | None]) -> tuple[float | None, ...]:
        buckets = ([v for v in values[i : i + width] if v is not None] for i in range(0, len(values), width))
        return tuple(fmean(b) if b else None for b in buckets)

    return replace(
        chart,
        x=tuple(fmean(chart.x[i : i + width]) for i in range(0, len(chart.x), width)),
        series=tuple(
            replace(s, y=means(s.y), low=s.low and means(s.low), high=s.high and means(s.high)) for s in chart.series
        ),
        caption=f"{chart.caption} Each point is the mean of {width} steps.".strip(),
    )


def moving_average(values: Sequence[float | None], half_width: int) -> list[float | None]:
    """The centred mean of up to 2 * half_width + 1 values around each; None where all of them are missing."""
    out: list[float | None] = []
    for i in range(len(values)):
        # At the ends the window shrinks, so the curve reaches the first and the last step.
        near = [v for v in values[max(0, i - half_width) : i + half_width + 1] if v is not None]
        out.append(fmean(near) if near else None)
    return out


def _rewards(rows: list[StepRow]) -> Chart | None:
    domains = sorted({k.removeprefix("reward/mean/") for r in rows for k in r.metrics if k.startswith("reward/mean/")})
    names = {f"reward/mean/{d}": d for d in domains}
    if len(domains) < 2:
        # Older runs and stages of pairs lack some of these; the first that exists is drawn.
        names = {_first(rows, "reward/sampled", "reward/mean", *names): "mean reward"}
    caption = "Mean over everything sampled, before groups are dropped. Faint: each step; strong: moving average."
    return _of_steps(rows, "reward", "Reward", names, style="noisy", caption=caption)


def pass_chart(rows: list[EvaluationRow]) -> Chart | None:
    """Return held-out pass@1 with its intervals, and pass@k, of each domain over the evaluations; None without any."""
    domains = sorted({d for row in rows for d in row.domains})
    if not domains:
        return None
    k = rows[-1].k
    series = []
    for color, domain in enumerate(domains):
        of_1 = [row.domains.get(domain, {}).get("pass@1", {}) for row in rows]
        of_k = [row.domains.get(domain, {}).get("pass@k", {}) for row in rows]
        ends = [tuple(e.get(side) for e in of_1) for side in ("low", "high")]
        name = domain if len(domains) > 1 else "pass@1"
        series.append(Series(name, tuple(e.get("value") for e in of_1), color, "line", *ends))
        if k > 1 and any(of_k):
            label = f"{domain} pass@{k}" if len(domains) > 1 else f"pass@{k}"
            series.append(Series(label, tuple(e.get("value") for e in of_k), color, "dashed"))
    dashed = f" Dashed: pass@{k}." if any(s.style == "dashed" for s in series) else ""
    return Chart(
        name="pass",
        title="Held-out pass@1",
        caption=f"Band: 95% interval over prompts.{dashed}",
        x=tuple(float(i) for i in range(len(rows))),
        series=tuple(series),
        x_label="evaluation",
        ticks=tuple(row.label for row in rows),
        y_limits=(0.0, 1.0),
    )


def _groups(rows: list[StepRow]) -> Chart | None:
    names = {
        "groups/kept": "kept",
        "groups/all_right": "all right",
        "groups/all_wrong": "all wrong",
        "groups/equal": "equal",
        "groups/infrastructure": "grader failed",
    }
    chart = _of_steps(rows, "groups", "Groups sampled", names, unit="groups", style="area")
    return chart and replace(chart, caption="Groups whose rewards differ train; the others teach nothing.")


def _phases(rows: list[StepRow]) -> Chart | None:
    timed = [row for row in rows if row.time]
    seen = [p for p in RL_PHASES if any(p in row.time for row in timed)]
    if not seen:
        return None
    series = [
        Series(phase, tuple(float(row.time.get(phase, 0.0)) for row in timed), i, "area")
        for i, phase in enumerate(seen)
    ]
    if all("total" in row.time for row in timed):
        # Rounded parts may exceed the rounded total, hence the max below.
        rest = (row.time["total"] - sum(phases_of(row.time).values()) for row in timed)
        series.append(Series("other", tuple(max(0.0, v) for v in rest), len(seen), "area"))
    return Chart(
        name="phases",
        title="Time per phase",
        caption="Seconds of each RL step, stacked.",
        x=tuple(float(row.step) for row in timed),
        series=tuple(series),
        unit="s",
    )


def _machine(rows: list[StepRow]) -> list[Chart | None]:
    """Return the charts of speed and of GPU memory."""
    speeds = [replace(row, metrics=row.speed or {}) for row in rows]
    peaks = [replace(row, metrics=row.memory or {}) for row in rows]
    rates = {f"{phase}/tokens_per_s": phase for phase in ("generate", "update")}
    share = "The model's own forward and backward, as a share of what the GPUs' data sheets promise."
    held = "The most that torch held on the GPU of the first rank in each phase."
    return [
        _of_steps(speeds, "speed", "Speed", rates, unit="tokens a second, all ranks", style="noisy"),
        _of_steps(speeds, "mfu", "MFU of the update", {"update/mfu": "MFU"}, style="noisy", caption=share),
        _of_steps(peaks, "memory", "GPU memory", {p: p for p in RL_PHASES}, unit="GiB at the peak", caption=held),
    ]


def _losses(steps: list[StepRow]) -> list[Chart | None]:
    stages = {row.stage: row for row in steps if not issubclass(section_of(row), RlConfig)}
    charts = []
    for stage, last in stages.items():
        kind = kind_of(last)
        title = f"{section_of(last).title or kind} loss"
        rows = [row for row in steps if row.stage == stage]
        chart = _of_steps(rows, f"loss_{stage}", title if stage == kind else f"{title}: {stage}", {"loss": "loss"})
        charts.append(chart and replace(chart, x_label=f"{stage} step", unit="nats a token"))
    return charts


def _of_steps(
    rows: list[StepRow],
    name: str,
    title: str,
    metrics: dict[str, str],
    unit: str = "",
    style: Style = "line",
    caption: str = "",
    marks: bool = False,
) -> Chart | None:
    """One series for each metric that some step has; None where none has any."""
    present = {m: label for m, label in metrics.items() if any(m in row.metrics for row in rows)}
    if not present:
        return None
    series = tuple(
        # The colour is the metric's place among all, so that a name keeps its colour from run to run.
        Series(present[m], tuple(_number(row.metrics.get(m)) for row in rows), color, style)
        for color, m in enumerate(metrics)
        if m in present
    )
    moved = _changes(rows, "reference/version") if marks else ()
    note = f"{caption} Dotted: the reference moved.".strip() if moved else caption
    return Chart(name, title, note, tuple(float(row.step) for row in rows), series, unit=unit, marks=moved)


def _changes(rows: list[StepRow], metric: str) -> tuple[float, ...]:
    moved = (b.step for a, b in pairwise(rows) if a.metrics.get(metric) != b.metrics.get(metric))
    steps = tuple(float(x) for x in moved)
    return steps if len(steps) <= 40 else ()  # more lines than that would hide the curve


def _first(rows: list[StepRow], *metrics: str) -> str:
    return next((m for m in metrics if any(m in row.metrics for row in rows)), metrics[0])


def _number(value: object) -> float | None:
    # Beyond, the limits of a chart would not be finite.
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None
