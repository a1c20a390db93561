"""docs/claims.md: every claim with its test, verdict and picture, failures as prominent as successes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.claims.claim import Claim

HEAD = """# Published claims, put to a small test

    python -m benchmarks.claims NAME          # train what the claim needs, and judge it
    python -m benchmarks.claims --page        # write this page from the results

A claim is one file in `benchmarks/claims/`: what was published, the test, the statistic, the rule and the number of
seeds, all committed before its first run. Its result is in `benchmarks/claims/results/`. "Holds" and "fails" are about
these small tests alone: models of 0.4M parameters on the demo's tasks. "Not at this scale" means that the rule decides
neither. Intervals are Student's t over seeds, 95%.
"""
PICTURE = "![The statistic of each claim: a dot for each seed, a line for the interval.](claims.svg)"
COLOURS = {"holds": "#2a7f3f", "fails": "#b3261e", "not at this scale": "#6b6b6b"}


def write_page(path: Path, claims: Mapping[str, Claim], results: Path) -> None:
    """Write the page, and the picture next to it, from the files of `results`."""
    seen = {name: json.loads(f.read_text()) for name in claims if (f := results / f"{name}.json").is_file()}
    sections = [section(claim, seen.get(claim.name)) for claim in claims.values()]
    verdicts = [f"| [{c.title}](#{anchor(c)}) | {verdict(seen.get(c.name))} |" for c in claims.values()]
    table = "\n".join(["| claim | verdict |", "| --- | --- |", *verdicts])
    picture = []
    if seen:
        draw(path.with_suffix(".svg"), {claims[name].title: result for name, result in seen.items()})
        picture = [PICTURE, ""]
    path.write_text("\n".join([HEAD, table, "", *picture, *sections]).rstrip() + "\n")


def anchor(claim: Claim) -> str:
    """Return the name of the claim's section in a link."""
    return claim.name.replace("_", "-")


def number(x: float) -> str:
    """Return a number with three decimals, or in scientific notation where those would be 0."""
    return f"{x:.3f}" if x == 0 or abs(x) >= 5e-4 else f"{x:.1e}"


def verdict(result: Mapping[str, Any] | None) -> str:
    """Return what was observed, in a line."""
    if result is None:
        return "not run"
    mean, low, high = (number(result[key]) for key in ("mean", "low", "high"))
    return f"**{result['outcome']}**: {mean} [{low}, {high}]"


def section(claim: Claim, result: Mapping[str, Any] | None) -> str:
    """Return the claim's part of the page."""
    each = [] if result is None else [f"- Each seed: {', '.join(map(number, result['values']))}"]
    return "\n".join(
        [
            f"## {claim.name.replace('_', ' ')}",
            "",
            f"**{claim.title}.**",
            "",
            f"- Source: {claim.source}",
            f"- Published: {claim.published}",
            f"- Test: {claim.test}",
            f"- Statistic: {claim.statistic}",
            f"- Rule: {claim.rule}; {claim.seeds} seeds",
            f"- Verdict: {verdict(result)}",
            *each,
            "",
        ]
    )


def draw(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a picture of all results: a row each with a scale of its own, on which 0 is marked."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "claims", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(7.5, 0.8 * len(results) + 0.2), layout="constrained")
        rows = figure.subplots(len(results), 1, squeeze=False)[:, 0]
        for axes, (title, result) in zip(rows, results.items(), strict=True):
            colour = COLOURS[result["outcome"]]
            axes.axvline(0, color="#999999", linewidth=1)
            axes.plot([result["low"], result["high"]], [0, 0], color=colour, linewidth=3, alpha=0.4)
            axes.plot(result["values"], [0] * len(result["values"]), "o", color=colour, markersize=4)
            axes.set_title(f"{title}: {result['outcome']}", loc="left", fontsize=9, color=colour)
            axes.set_yticks([])
            axes.spines[["left", "right", "top"]].set_visible(False)
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None, "Creator": None})
