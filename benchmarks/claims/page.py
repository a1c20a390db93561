"""docs/claims.md: every claim with its test and verdict, failures as prominent as successes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.claims.claim import Claim

HEAD = """# Published claims, put to a small test

    python -m benchmarks.claims NAME          # train what the claim needs, and judge it
    python -m benchmarks.claims --page        # write this page from the results

A claim is one file in `benchmarks/claims/`: what was published, the test, the statistic, the rule and the number of
seeds, all committed before its first run. "Holds" and "fails" are about these small tests alone: models of 0.4M
parameters on the demo's tasks. "Not at this scale" means that the rule decides neither. Intervals are Student's t over
seeds, 95%.
"""


def write_page(path: Path, claims: Mapping[str, Claim], folder: Path) -> None:
    """Write the page. A claim without a result in `folder` keeps the verdict that the page has, or gets none."""
    old = path.read_text() if path.is_file() else ""
    sections = [section(claim, folder, old) for claim in claims.values()]
    verdicts = [f"| [{c.title}](#{anchor(c)}) | {verdict(c, folder, old)} |" for c in claims.values()]
    table = "\n".join(["| claim | verdict |", "| --- | --- |", *verdicts])
    path.write_text("\n".join([HEAD, table, "", *sections]).rstrip() + "\n")


def anchor(claim: Claim) -> str:
    """Return the name of the claim's section in a link."""
    return claim.name.replace("_", "-")


def verdict(claim: Claim, folder: Path, old: str) -> str:
    """Return what was found, in a line."""
    result = folder / f"{claim.name}.json"
    if result.is_file():
        saved = json.loads(result.read_text())
        return f"**{saved['outcome']}**: {saved['mean']:.3f} [{saved['low']:.3f}, {saved['high']:.3f}]"
    rows = [line for line in old.splitlines() if f"(#{anchor(claim)})" in line]
    return rows[0].split(" | ")[1].removesuffix(" |") if rows else "not run"


def section(claim: Claim, folder: Path, old: str) -> str:
    """Return the claim's part of the page."""
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
            f"- Verdict: {verdict(claim, folder, old)}",
            "",
        ]
    )
