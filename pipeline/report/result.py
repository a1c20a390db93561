"""Write a run's result as lines for a terminal, and as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.report.summary import gives_part
from verizero.pipeline.shown import in_markdown

MEASURES = ("pass@1", "score", "pass@k", "maj@k", "greedy", "reward")


def result_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the measures of every domain before and after, and the parts of the gain."""
    lines = []
    measures = _measures(summary)
    for domain, before, after in _rows(summary):
        shown = "  ".join(f"{measure_name(m, summary)} {_number(before, m)} -> {_number(after, m)}" for m in measures)
        lines.append(f"{domain:<12} {shown}")
    if not lines:
        lines.append("no evaluation: the recipe has no data.evaluation")
    if summary.get("sharpening"):
        lines.append(str(summary["sharpening"]))
    return [*lines, *_failures(summary)]


def result_markdown(summary: Mapping[str, Any], page: Path) -> str:
    """Return `result_lines` as a markdown table, with the path of the page."""
    measures = _measures(summary)
    head = ["domain", *(measure_name(m, summary) for m in measures)]
    rows = [
        [in_markdown(domain), *(f"{_number(before, m)} → {_number(after, m)}" for m in measures)]
        for domain, before, after in _rows(summary)
    ]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])
    notes = "\n\n".join(map(in_markdown, [summary.get("sharpening") or "", *_failures(summary)]))
    return f"{table}\n\n{notes}\n\nReport: {in_markdown(page)}\n"


def evaluation_markdown(domains: Mapping[str, Any]) -> str:
    """Return an evaluation as a Markdown table: each measure with its interval, by domain."""
    is_partial = any("score_by_prompt" in row for row in domains.values())
    measures = [m for m in MEASURES if any(m in row for row in domains.values()) and (m != "score" or is_partial)]
    head = ["domain", *measures]
    rows = [
        [in_markdown(domain), *(_estimate(row.get(m)) for m in measures)] for domain, row in sorted(domains.items())
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]) + "\n"


def _estimate(value: Mapping[str, float] | None) -> str:
    return "-" if value is None else f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _failures(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each domain and evaluation in which graders failed."""
    return [
        f"graders failed on {side['grader_failures']} of {side['num_responses']} answers of {domain} {when} RL; they "
        "stand in no measure"
        for domain, before, after in _rows(summary)
        for when, side in (("before", before), ("after", after))
        if side.get("grader_failures")
    ]


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    before, after = summary.get("before") or {}, summary.get("after") or {}
    return [(domain, before.get(domain, {}), after.get(domain, {})) for domain in sorted({*before, *after})]


def _measures(summary: Mapping[str, Any]) -> list[str]:
    """Return the measures that say something: the score where credit is partial, those of k where k is above 1."""
    is_partial = any(gives_part(before, after) for _, before, after in _rows(summary))
    left_out = {"score"} if not is_partial else set()
    left_out |= {"pass@k", "maj@k"} if summary.get("k") == 1 else set()
    present = {name for _, *sides in _rows(summary) for side in sides for name in side}
    if "reward" not in present:
        left_out.add("reward")
    elif "pass@1" not in present:
        return ["reward"]
    return [m for m in MEASURES if m not in left_out]


def measure_name(measure: str, summary: Mapping[str, Any]) -> str:
    """Return a measure's name for people, with its k."""
    if measure == "score":
        return "mean score"
    return measure.replace("@k", f"@{summary.get('k', 'k')}")


def _number(row: Mapping[str, Any], measure: str) -> str:
    value = row.get(measure)
    return "-" if value is None else f"{value:.3f}"
