"""Charts as SVG text, the same bytes for the same numbers. The one importer of matplotlib.

Colours are CSS variables with fallbacks that read on white and on black alike, so one picture serves the page, which
sets the variables for light and dark, and any viewer that knows nothing of them. The ground is transparent, text is
text (no outlines), and nothing refers to anything outside the picture.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

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
INK, RULE = "#808080", "#9a9a9a"
_SENTINELS = {
    "#010101": f"var(--plot-ink, {INK})",
    "#010102": f"var(--plot-rule, {RULE})",
    **{f"#0102{i:02d}": f"var(--series-{i + 1}, {color})" for i, color in enumerate(FALLBACKS)},
}
"""Colours passed to matplotlib, which knows no CSS variables, and the text that replaces them in the SVG."""
_STYLE: dict[str, Any] = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "font.size": 10.0,
    "text.color": "#010101",
    "axes.edgecolor": "#010102",
    "axes.labelcolor": "#010101",
    "xtick.color": "#010102",
    "ytick.color": "#010102",
    "xtick.labelcolor": "#010101",
    "ytick.labelcolor": "#010101",
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": "#010102",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 5),
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn chart, and where its axes lie: x and y limits, and left, top, right, bottom as shares of the picture."""

    svg: str
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]
    box: tuple[float, float, float, float]


def draw(chart: Chart) -> Plot:
    """`chart` as an SVG element. Equal charts give equal bytes; every id in it begins with the chart's name."""
    # Imported here because it takes half a second, which a process that draws nothing need not pay.
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a person's own matplotlibrc must not change a report
        # The salt makes matplotlib's ids the same each time; by default they are random.
        matplotlib.rcParams.update(_STYLE | {"svg.hashsalt": chart.name})
        named = [_legend_label(s.label) for s in chart.series if s.style != "dashed"]
        columns = _columns(named)
        top = TOP + (LEGEND_ROW * -(-len(named) // columns) if len(named) > 1 else 0)
        height = max(HEIGHT, top + MIN_AXES_HEIGHT + BOTTOM)
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        figure.patch.set_alpha(0)
        axes = figure.add_axes(
            (LEFT / WIDTH, BOTTOM / height, (WIDTH - LEFT - RIGHT) / WIDTH, (height - BOTTOM - top) / height)
        )
        axes.patch.set_alpha(0)
        _fill(axes, chart)
        _style_axes(axes, chart)
        if len(named) > 1:
            _legend(axes, columns)
        out = io.StringIO()
        # Without metadata: a date would change the bytes of equal charts.
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        x_limits, y_limits = axes.get_xlim(), axes.get_ylim()
    box = (LEFT / WIDTH, top / height, 1 - RIGHT / WIDTH, 1 - BOTTOM / height)
    return Plot(_clean(out.getvalue(), chart, height), x_limits, y_limits, box)


def _fill(axes: Any, chart: Chart) -> None:
    stacked = [s for s in chart.series if s.style == "area"]
    floor = [0.0] * len(chart.x)
    for series in stacked:
        top = [a + (b or 0.0) for a, b in zip(floor, series.y, strict=True)]
        axes.fill_between(
            chart.x, floor, top, color=_color(series), alpha=0.8, linewidth=0, label=_legend_label(series.label)
        )
        floor = top
    for x in chart.marks:
        axes.axvline(x, color="#010101", linewidth=1.0, linestyle=(0, (1, 2.5)))
    for series in chart.series:
        if series.style != "area":
            _line(axes, chart, series)


def _line(axes: Any, chart: Chart, series: Series) -> None:
    y, color = _gaps(series.y), _color(series)
    if series.low is not None and series.high is not None:
        axes.fill_between(chart.x, _gaps(series.low), _gaps(series.high), color=color, alpha=0.18, linewidth=0)
    marker = "o" if chart.ticks is not None or len(chart.x) == 1 else None
    if series.style == "noisy" and len(chart.x) > 8:
        axes.plot(chart.x, y, color=color, linewidth=0.8, alpha=0.4)
        half_width = max(1, round(SMOOTHING * len(chart.x)))
        axes.plot(
            chart.x, _gaps(tuple(moving_average(series.y, half_width))), color=color, label=_legend_label(series.label)
        )
    elif series.style == "dashed":
        axes.plot(chart.x, y, color=color, linewidth=1.2, linestyle=(0, (4, 2.5)), alpha=0.75)
    else:
        axes.plot(chart.x, y, color=color, marker=marker, markersize=4, label=_legend_label(series.label))


def _style_axes(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.margins(x=0.015 if chart.ticks is None else 0.04)
    if any(s.style == "area" for s in chart.series):
        axes.set_ylim(bottom=0)
    if chart.y_limits is not None:
        axes.set_ylim(chart.y_limits[0], chart.y_limits[1] + 0.02 * (chart.y_limits[1] - chart.y_limits[0]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if not 1e-3 < max(map(abs, axes.get_ylim())) < 1e5:  # else matplotlib writes "1e-4" once, across the legend
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    if chart.ticks is None:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    else:
        every = -(-len(chart.x) // 6)
        # Counted from the end: the last evaluation is the one that people look for.
        shown = range((len(chart.x) - 1) % every, len(chart.x), every)
        axes.set_xticks([chart.x[i] for i in shown], [_short_label(chart.ticks[i]) for i in shown])
    axes.set_xlabel(one_line(chart.x_label), fontsize=9, labelpad=2)


def _legend(axes: Any, columns: int) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=0.9,
        handletextpad=0.4,
        columnspacing=0.6,
        borderaxespad=0.0,
        borderpad=0.2,
    )


def _columns(labels: list[str]) -> int:
    """Return how many legend columns fit, filled downwards: 20 points an entry, 4.6 a letter of its longest."""
    for columns in range(len(labels), 1, -1):
        rows = -(-len(labels) // columns)
        heads = (labels[i : i + rows] for i in range(0, len(labels), rows))
        if sum(20 + 4.6 * max(map(len, column)) for column in heads) <= WIDTH - LEFT - RIGHT:
            return columns
    return 1


def _clean(text: str, chart: Chart, height: float) -> str:
    """The `<svg>` element alone: variables for colours, the reader's fonts, no id but those that it refers to."""
    text = text[text.index("<svg") :].strip()
    # Set aside: what follows is about markup, and a label may look like it.
    labels = iter(re.findall(r">([^<]*)</text>", text))
    text = re.sub(r">[^<]*</text>", "></text>", text)
    for sentinel, name in _SENTINELS.items():
        text = text.replace(sentinel, name)
    text = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font: \1 system-ui, sans-serif", text)
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns:xlink="[^"]*"', "", text).replace("xlink:href", "href")
    # Several charts share one page, so ids that remain get the chart's name in front.
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda m: m.group(0) if m.group(1) in used else "", text)
    prefix = re.sub(r"\W", "_", chart.name)
    for name in sorted(used):
        text = re.sub(rf'(id="|url\(#|href="#){re.escape(name)}(?=["\)])', rf"\g<1>{prefix}-{name}", text)
    label = in_html(f"{chart.title} ({chart.unit})" if chart.unit else chart.title)
    size = f'viewBox="0 0 {WIDTH:g} {height:g}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return opening + re.sub("></text>", lambda _: f">{next(labels)}</text>", text[text.index(">") + 1 :])


def _color(series: Series) -> str:
    return f"#0102{series.color % len(FALLBACKS):02d}"


def _gaps(values: tuple[float | None, ...]) -> list[float]:
    return [float("nan") if v is None else v for v in values]


def _legend_label(label: str) -> str:
    """A label for the legend, at most 24 letters; a leading underscore would hide it from matplotlib."""
    label = one_line(label)
    short = label if len(label) <= 24 else label[:23] + "…"
    return f"\u200b{short}" if short.startswith("_") else short


def _short_label(label: str) -> str:
    """An evaluation's label in a few letters: "after round 3" -> "round 3", "before training" -> "base"."""
    short = one_line(label).removeprefix("after ")
    return "base" if short.startswith("before") else short[:14]
