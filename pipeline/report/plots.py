"""Charts as SVG text, the same bytes for the same numbers.

Colours are CSS variables with fallbacks that read on white and on black alike, so one picture serves the page, which
sets the variables for light and dark, and any viewer that knows nothing of them. The ground is transparent, text is
text (no outlines), and nothing refers to anything outside the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from verizero.pipeline.report.curves import SMOOTHING, Chart, Series, moving_average
from verizero.pipeline.shown import in_html, one_line

WIDTH, HEIGHT = 350.0, 215.0
"""Size of the view box in points. A chart is scaled to its place; its text is readable from 330 px up."""
LEFT, RIGHT, BOTTOM, TOP = 42.0, 10.0, 38.0, 8.0
"""Margins around the axes, in points; each row of the legend adds LEGEND_ROW above."""
LEGEND_ROW = 16.0
MIN_AXES_HEIGHT = 110.0
"""Height left for the axes: under a longer legend the picture grows."""
FALLBACKS = ("#2a78d6", "#eb6834", "#1a9c6b", "#b58900", "#7a5fd0", "#d6498f", "#5f7f95", "#8a6d5a")
"""Series colours where no style sheet sets --series-1 … --series-8: at least 3:1 on white and on black."""
INK, RULE = "var(--plot-ink, #808080)", "var(--plot-rule, #9a9a9a)"


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn chart, and where its axes lie: x and y limits, and left, top, right, bottom as shares of the picture."""

    svg: str
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]
    box: tuple[float, float, float, float]


def draw(chart: Chart) -> Plot:
    """Return `chart` as an SVG element, with the place of its axes."""
    named = [s for s in chart.series if s.style != "dashed"]
    columns = _columns([_short(s.label) for s in named])
    top = TOP + (LEGEND_ROW * -(-len(named) // columns) if len(named) > 1 else 0)
    height = max(HEIGHT, top + MIN_AXES_HEIGHT + BOTTOM)
    axes = _Axes(chart, top, height - BOTTOM)
    parts = [*axes.rules(), *axes.curves(), *(_legend(named, columns) if len(named) > 1 else ())]
    label = in_html(f"{chart.title} ({chart.unit})" if chart.unit else chart.title)
    size = f'viewBox="0 0 {WIDTH:g} {height:g}" font-family="system-ui, sans-serif" font-size="10"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'
    box = (LEFT / WIDTH, top / height, 1 - RIGHT / WIDTH, 1 - BOTTOM / height)
    return Plot(svg, axes.x_limits, axes.y_limits, box)


class _Axes:
    """The axes of a chart between `top` and `bottom`, in points from above."""

    def __init__(self, chart: Chart, top: float, bottom: float) -> None:
        self.chart, self.top, self.bottom = chart, top, bottom
        self.tops: list[list[float]] = []
        """The sums of all areas up to each."""
        for series in (s for s in chart.series if s.style == "area"):
            below = self.tops[-1] if self.tops else [0.0] * len(chart.x)
            self.tops.append([a + (b or 0.0) for a, b in zip(below, series.y, strict=True)])
        lines = [v for s in chart.series if s.style != "area" for v in (*s.y, *(s.low or ()), *(s.high or ()))]
        values = [v for v in (*lines, *(v for area in self.tops for v in area)) if v is not None]
        self.x_limits = _widened(min(chart.x), max(chart.x), 0.015 if chart.ticks is None else 0.04)
        low, high = _widened(min(values, default=0.0), max(values, default=1.0), 0.05)
        if chart.y_limits is not None:
            low, high = chart.y_limits[0], chart.y_limits[1] + 0.02 * (chart.y_limits[1] - chart.y_limits[0])
        self.y_limits = (0.0 if self.tops else low, high)

    def place(self, x: float, y: float) -> str:
        """Return the place of two values as SVG writes it."""
        share_x, share_y = ((v - a) / (b - a) for v, (a, b) in ((x, self.x_limits), (y, self.y_limits)))
        return f"{LEFT + share_x * (WIDTH - RIGHT - LEFT):.2f} {self.bottom + share_y * (self.top - self.bottom):.2f}"

    def rules(self) -> Iterator[str]:
        """Yield the lines of values, the axis with its ticks, their labels, and the marks."""
        right, bottom = WIDTH - RIGHT, f"{self.bottom:g}"
        for value in ticks(*self.y_limits, 6):
            y = self.place(self.x_limits[0], value).split()[1]
            yield f'<path d="M {LEFT:g} {y} H {right:g}" style="stroke:{RULE};stroke-width:.6;opacity:.3"/>'
            yield _text(LEFT - 4, float(y) + 3.5, f"{value:.6g}", "end")
        yield f'<path d="M {LEFT:g} {bottom} H {right:g}" style="stroke:{RULE};stroke-width:.8"/>'
        for value, label in self._x_labels():
            x = self.place(value, self.y_limits[0]).split()[0]
            yield f'<path d="M {x} {bottom} v 3" style="stroke:{RULE};stroke-width:.8"/>'
            yield _text(float(x), self.bottom + 13, label, "middle")
        yield _text((LEFT + right) / 2, self.bottom + 28, self.chart.x_label, "middle")
        for value in self.chart.marks:
            ends = f"M {self.place(value, self.y_limits[0])} L {self.place(value, self.y_limits[1])}"
            yield f'<path d="{ends}" style="stroke:{INK};stroke-dasharray:1 2.5"/>'

    def _x_labels(self) -> list[tuple[float, str]]:
        x, names = self.chart.x, self.chart.ticks
        if names is None:
            return [(value, f"{value:.6g}") for value in ticks(*self.x_limits, 7, whole=True)]
        every = -(-len(x) // 6)
        # Counted from the end: the last evaluation is the one that people look for.
        return [(x[i], _short_evaluation(names[i])) for i in range((len(x) - 1) % every, len(x), every)]

    def curves(self) -> Iterator[str]:
        """Yield the areas, each on those before, and then the lines."""
        chart, floor = self.chart, [0.0] * len(self.chart.x)
        for series, top in zip((s for s in chart.series if s.style == "area"), self.tops, strict=True):
            yield from self._between(floor, top, f"fill:{_color(series)};opacity:.8")
            floor = top
        for series in (s for s in chart.series if s.style != "area"):
            stroke = f"fill:none;stroke:{_color(series)}"
            if series.low is not None and series.high is not None:
                yield from self._between(series.low, series.high, f"fill:{_color(series)};opacity:.18")
            if series.style == "noisy" and len(chart.x) > 8:
                yield self._line(series.y, f"{stroke};stroke-width:.8;opacity:.4")
                half_width = max(1, round(SMOOTHING * len(chart.x)))
                yield self._line(moving_average(series.y, half_width), f"{stroke};stroke-width:1.7")
            elif series.style == "dashed":
                yield self._line(series.y, f"{stroke};stroke-width:1.2;stroke-dasharray:4 2.5;opacity:.75")
            else:
                yield self._line(series.y, f"{stroke};stroke-width:1.7")
                if chart.ticks is not None or len(chart.x) == 1:
                    dots = (self.place(x, y).split() for x, y in zip(chart.x, series.y, strict=True) if y is not None)
                    yield from (f'<circle cx="{x}" cy="{y}" r="2" style="fill:{_color(series)}"/>' for x, y in dots)

    def _line(self, y: Sequence[float | None], style: str) -> str:
        runs = (" L ".join(self.place(self.chart.x[i], y[i] or 0.0) for i in run) for run in _runs(y))
        return f'<path d="{" ".join(f"M {run}" for run in runs)}" style="{style};stroke-linecap:round"/>'

    def _between(self, low: Sequence[float | None], high: Sequence[float | None], style: str) -> Iterator[str]:
        for run in _runs([None if a is None else b for a, b in zip(low, high, strict=True)]):
            ends = [*((i, low) for i in run), *((i, high) for i in reversed(run))]
            outline = " L ".join(self.place(self.chart.x[i], y[i] or 0.0) for i, y in ends)
            yield f'<path d="M {outline} Z" style="{style}"/>'


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return at most `most` + 1 round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= least)
    step = max(1.0, step) if whole else step
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _legend(named: Sequence[Series], columns: int) -> Iterator[str]:
    """Yield the names of the series above the axes, in columns that are filled downwards."""
    rows, x = -(-len(named) // columns), LEFT
    for begin in range(0, len(named), rows):
        column = named[begin : begin + rows]
        for row, series in enumerate(column):
            y = TOP + LEGEND_ROW * row
            yield f'<rect x="{x:g}" y="{y:g}" width="9" height="4" rx="1" style="fill:{_color(series)}"/>'
            yield _text(x + 13, y + 5.5, _short(series.label), "start")
        x += _width([_short(s.label) for s in column])


def _columns(labels: list[str]) -> int:
    """Return how many columns of the legend fit."""
    for columns in range(len(labels), 1, -1):
        rows = -(-len(labels) // columns)
        widths = (_width(labels[i : i + rows]) for i in range(0, len(labels), rows))
        if sum(widths) <= WIDTH - LEFT - RIGHT:
            return columns
    return 1


def _width(labels: Sequence[str]) -> float:
    """Return the points of a column of the legend: 22 an entry, and 4.6 a letter of its longest."""
    return 22 + 4.6 * max(map(len, labels))


def _widened(low: float, high: float, share: float) -> tuple[float, float]:
    """Return limits beyond both ends by a share of what is between them, or where they are equal of their size."""
    room = share * (high - low) or 0.05 * abs(high) or 0.05
    return low - room, high + room


def _runs(values: Sequence[float | None]) -> Iterator[list[int]]:
    """Yield the indices of neighbouring values that are there."""
    for is_there, indices in groupby(range(len(values)), lambda i: values[i] is not None):
        if is_there:
            yield list(indices)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" style="fill:{INK}">{in_html(one_line(text))}</text>'


def _color(series: Series) -> str:
    index = series.color % len(FALLBACKS)
    return f"var(--series-{index + 1}, {FALLBACKS[index]})"


def _short(label: str) -> str:
    """Return a label for the legend, at most 24 letters."""
    label = one_line(label)
    return label if len(label) <= 24 else label[:23] + "…"


def _short_evaluation(label: str) -> str:
    """An evaluation's label in a few letters: "after round 3" -> "round 3", "before training" -> "base"."""
    short = one_line(label).removeprefix("after ")
    return "base" if short.startswith("before") else short[:14]
