"""Write report.html: a self-contained page about a run, made from its files only."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verizero.pipeline.config.recipes import SETTINGS
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.report.curves import Chart, build_charts
from verizero.pipeline.report.plots import Plot, draw
from verizero.pipeline.report.row_types import alarm_line
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.report.samples import MAX_SAMPLES, SampleChoice, choose_samples
from verizero.pipeline.report.summary import RL_PHASES, gives_part, summarize
from verizero.pipeline.shown import visible

HERE = Path(__file__).parent
MEASURES = (
    ("pass@1", "pass@1", "interval"),
    ("score", "mean score", "score_interval"),
    ("pass@k", "pass@{k}", ""),
    ("maj@k", "maj@{k}", ""),
    ("greedy", "greedy", ""),
    ("reward", "mean reward", ""),
    ("length", "length, tokens", ""),
    ("truncated", "truncated", ""),
)
"""(measure, its label, the key of the interval of its change)."""
MAX_ALARMS = 50
"""Maximum of listed alarms: graders that fail for days raise the same alarm a thousand times."""


@dataclass(frozen=True, slots=True)
class Card:
    """A cause of a diagnosis, as the page shows it."""

    cause: str
    level: str
    confidence: float
    sentence: str
    evidence: tuple[str, ...]
    remedy: str
    chart: Chart | None
    """The curve of the metric that shows the cause; None if texts show it."""

    @property
    def remedy_parts(self) -> tuple[str, str]:
        """The options of a command line with which the remedy begins, and the words after them."""
        match = SETTINGS.match(self.remedy)
        return (match[0].strip(), self.remedy[match.end() :].strip(" ,;")) if match else ("", self.remedy)


def build_page(run_dir: Path, cards: Sequence[Card] | None = None, without_cause: str = "") -> Path:
    """The path of `report.html` in `run_dir`, written from the run's files; the same files give the same bytes.

    The page asks nothing of any network and says so to the browser (its content policy allows this one script only).
    Text of a model is data to it: escaped in the markup, and set as text nodes by the script. `cards`: the causes that
    a diagnosis of the same files has found; None: nobody looked. `without_cause`: its sentence where there are none.

    Raises: RunError if `run_dir` is no run, or cannot be written.
    """
    folder = Path(run_dir)
    run = read_run(folder)
    summary = summarize(run)
    charts = [(chart, draw(chart)) for chart in build_charts(run)]
    causes = [(card, draw(card.chart) if card.chart else None) for card in cards or ()]
    hovers = [*charts, *((card.chart, plot) for card, plot in causes if card.chart and plot)]
    chosen = choose_samples(folder)
    start = run.info.get("start")  # the file that the policy was made from, where it is a GGUF file
    script = (HERE / "report.js").read_text(encoding="utf-8")
    phases = [name for name in (*RL_PHASES, "other") if name in summary["seconds"]]
    total = sum(v for name, v in summary["seconds"].items() if name not in (*RL_PHASES, "other", "graders"))
    page = rendered(
        "report.html",
        run=run,
        summary=summary,
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        result=result_line(summary),
        sharpening=_first_upper(summary["sharpening"]) + ".",
        start=start if isinstance(start, Mapping) and start.get("file") else None,
        facts={
            "RL steps": f"{summary['steps']:,}",
            "distinct prompts seen in RL": f"{summary['distinct_prompts_seen']:,}",
            "parameters": f"{run.info['num_parameters']:,}" if isinstance(run.info.get("num_parameters"), int) else "",
            "recorded time": _duration(total) if total else "",  # in it "rl" is the sum of the phases of RL
            "seed": str(run.info.get("seed", "")),
        },
        alarms=list(map(alarm_line, run.alarms[-MAX_ALARMS:])),
        cards=None if cards is None else [(card, plot and plot.svg) for card, plot in causes],
        without_cause=without_cause,
        measures=MEASURES,
        heads=_heads(summary),
        shown=lambda row, name: _is_shown(row, name, summary["k"]),
        notes_of=lambda row: _notes(row, summary),
        charts=charts,
        sample_note=_sample_note(chosen),
        colors={name: f"var(--series-{i})" for i, name in enumerate(phases, start=1)},
        times=list(_times(summary, phases)),
        environment=list(_environment(run.info)),
        data=embed({"charts": [_hover(*pair) for pair in hovers], "groups": chosen.groups}),
    )
    return write_atomic(folder / "report.html", page.encode("utf-8", "replace"))


def rendered(template: str, **values: Any) -> str:
    """Return a page of this folder. Texts that are filled in are made visible, and escaped; `style` is report.css."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "markup": Markup,
        "fixed": lambda value, digits: f"{value:.{digits}f}",
        "signed": lambda value, digits: f"{value:+.{digits}f}",
        "percent": lambda value: f"{value:.1%}",
    }
    style = (HERE / "report.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=style, **values)


def embed(value: object) -> str:
    """Return `value` as JSON for a script element: no character in it can end or open markup."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # JSON reads these escapes as the same characters, and HTML sees no tag or entity.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def result_line(summary: Mapping[str, Any]) -> str:
    """Return the result of the run in one line: pass@1, and the mean reward where nothing tells what is right."""
    both = {d: row for d, row in summary["domains"].items() if "pass@1" in row["before"]}
    rewarded = {d: row for d, row in summary["domains"].items() if "reward" in row["before"] and d not in both}
    if not both and not rewarded:
        return "No held-out evaluation yet"
    labels = " → ".join(str(summary[side]) for side in ("before_label", "after_label") if summary[side])
    lines = []
    for name, digits, rows in (("pass@1", 2, both), ("mean reward", 3, rewarded)):
        measure = "reward" if rows is rewarded else name
        rates = []
        for domain, row in rows.items():
            sides = [row["before"], *([row.get("after", {})] if summary["after"] else [])]
            if all(measure in side for side in sides):
                numbers = " → ".join(f"{side[measure]:.{digits}f}" for side in sides)
                rates.append(f"{numbers} on {domain}{_score(*sides)}")
        lines += [f"{name} {', '.join(rates)}"] if rows else []
    return f"Held-out {'; '.join(lines)} ({labels})"


def _score(*sides: Mapping[str, Any]) -> str:
    """Return the mean score where credit is partial."""
    scores = " → ".join(f"{side['score']:.2f}" for side in sides if "score" in side)
    return f" (mean score {scores})" if gives_part(*sides) else ""


def _heads(summary: Mapping[str, Any]) -> list[str]:
    return [str(summary["before_label"] or "before"), str(summary["after_label"] or "after"), "change"]


def _is_shown(row: Mapping[str, Any], name: str, k: int) -> bool:
    """True if a domain has the measure, and it says more than another."""
    before, after = row["before"], row.get("after", {})
    if name == "score" and not gives_part(before, after):
        return False
    if name in ("pass@k", "maj@k") and before.get("k", k) == 1:
        return False  # rows of older runs have pass@1 once more
    return name in before or name in after


def _notes(row: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Return what a person must know of the numbers of a domain."""
    sides = row["before"], row.get("after", {})
    lost = [
        f"{side['grader_failures']:,} of {side['num_responses']:,} answers ({head})"
        for side, head in zip(sides, _heads(summary), strict=False)
        if side.get("grader_failures")
    ]
    failed = [f"Graders failed on {' and '.join(lost)}; those count in no measure."] if lost else []
    return [*failed, *dict.fromkeys(note for side in sides for note in side.get("notes", []))]


def _hover(chart: Chart, plot: Plot) -> dict[str, Any]:
    def short(values: Sequence[float | None] | None) -> list[float | None] | None:
        return None if values is None else [None if v is None else float(f"{v:.5g}") for v in values]

    return {
        "name": visible(chart.name),
        "x": short(chart.x),
        "x_label": chart.x_label,
        "ticks": chart.ticks,
        "x_limits": plot.x_limits,
        "box": plot.box,
        "series": [
            {"label": s.label, "color": s.color, "y": short(s.y), "low": short(s.low), "high": short(s.high)}
            for s in chart.series
        ],
    }


def _sample_note(chosen: SampleChoice) -> str:
    if not chosen.num_samples:
        return "No sampled answer is recorded in this run."
    if chosen.num_shown == chosen.num_samples:
        return f"All {chosen.num_samples:,} answers recorded in rollouts.jsonl are on this page."
    return (
        f"{chosen.num_shown:,} of the {chosen.num_samples:,} answers recorded in rollouts.jsonl are on this page: "
        f"{len(chosen.groups):,} of {chosen.num_groups:,} groups, evenly spaced over each stage, "
        f"at most {MAX_SAMPLES:,} answers."
    )


def _times(summary: Mapping[str, Any], phases: Sequence[str]) -> Iterator[tuple[str, float, str]]:
    """Yield (what, seconds, share of RL) of the table of time."""
    seconds, shares = summary["seconds"], summary["shares"]
    yield from ((name, seconds[name], "") for name in seconds if name not in (*phases, "rl", "graders"))
    if "rl" in seconds:
        yield "RL, all steps", seconds["rl"], "100%" if shares else ""
    for name in phases:
        yield name, seconds[name], f"{shares[name]:.1%}" if name in shares else ""
        if name == "verify" and "graders" in seconds:
            yield "graders at work (beside generate too)", seconds["graders"], ""


def _environment(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the facts of run.json, the isolation of programs first."""
    isolation = info.get("isolation")
    level = isolation.get("level") if isinstance(isolation, Mapping) else isolation
    yield "isolation level", "no program is run by this recipe" if level is None else str(level)
    yield from _entries({name: value for name, value in info.items() if name != "isolation"})
    if isinstance(isolation, Mapping):
        yield from _entries({"isolation": {name: value for name, value in isolation.items() if name != "level"}})


def _entries(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _entries(value, f"{prefix}{name} · ")
        elif value not in (None, "", []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield prefix + str(name).replace("_", " "), text


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _first_upper(text: str) -> str:
    # "pass@1 …" keeps its lower case: it is a name.
    return text if text.startswith("pass@") else text[:1].upper() + text[1:]
