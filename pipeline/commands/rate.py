"""How hard each training prompt is for a model: sampled several times, graded, its pass rate written beside the row."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.config.run import RunConfig
from pipeline.data.rows import row_of
from pipeline.errors import ConfigError, DataError
from pipeline.files import disk_errors
from pipeline.loop.metrics import report_failures
from pipeline.loop.sampled_groups import SAMPLED_AT_ONCE, sample_groups
from pipeline.report.progress import Progress
from pipeline.run.opening import opened
from pipeline.train.ranks import Ranks
from pipeline.types import Group

EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Rated:
    """What a pass over the prompts found."""

    path: Path
    rates: list[float]
    unrated: int
    """Prompts whose graders all failed."""

    def __str__(self) -> str:
        total = max(1, len(self.rates))
        never, always = sum(r == 0 for r in self.rates), sum(r == 1 for r in self.rates)
        lines = [f"{len(self.rates)} prompts rated in {self.path}, mean pass rate {sum(self.rates) / total:.3f}"]
        lines.append(f"  {never:6d} never right")
        for low, high in pairwise(EDGES):
            inside = sum(low < r <= high and r < 1 for r in self.rates)
            lines.append(f"  {inside:6d} above {low:g}" + (f", up to {high:g}" if high < 1 else ""))
        lines.append(f"  {always:6d} always right")
        if self.unrated:
            lines.append(f"  {self.unrated:6d} without a rate: their graders failed")
        return "\n".join(lines)


def rate(config: RunConfig, base_dir: Path, out: Path, samples: int, progress: Progress) -> Rated:
    """Sample each training prompt `samples` times from the recipe's model; write the rows with their pass rates.

    Rows that `out` holds already are not sampled again, so that a pass that was broken off goes on; a torn last line is
    cut off. Raises: ConfigError, DataError where `out` is of other prompts or another number of samples.
    """
    if samples < 1:
        raise ConfigError(f"samples must be >= 1, got {samples}; give -n 8, for example")
    known = _known(out, samples)
    with tempfile.TemporaryDirectory() as folder:
        with opened(config, base_dir, Path(folder), "auto", progress) as session:
            run, workers, recorder = session.run, session.workers, session.recorder
            train = run.data.train
            strangers = sorted(set(known) - {p.id for p in train})
            if strangers:
                raise DataError(f"{out} has the row {strangers[0]!r}, which this recipe has not; give another --out")
            todo = [p for p in train if p.id not in known]
            progress.begin("rate", len(train) - len(todo), len(train))
            workers.rollouts.publish(workers.backend, session.state.policy_version)
            with disk_errors(f"writing {out}"):
                out.parent.mkdir(parents=True, exist_ok=True)
            for start in range(0, len(todo), SAMPLED_AT_ONCE):
                recorder.where = f"rate prompts {start + 1} to {start + SAMPLED_AT_ONCE}"
                some = todo[start : start + SAMPLED_AT_ONCE]
                groups, tally = sample_groups(run, workers, session.setup, recorder, some, samples, "rate")
                fate = "they count for no pass rate"
                report_failures(recorder, session.setup, session.state, tally, groups, fate)
                _append(run.ranks, out, [rated_row(g, samples) for g in groups])
                progress.advance(len(train) - len(todo) + min(len(todo), start + SAMPLED_AT_ONCE), {})
    rows = list(_known(out, samples).values())
    rates = [r["pass_rate"] for r in rows if r["pass_rate"] is not None]
    return Rated(out, rates, len(rows) - len(rates))


def rated_row(group: Group, samples: int) -> dict[str, Any]:
    """The row with its pass rate, of the responses whose graders did not fail; null where all did."""
    graded = [m.verdict.is_correct for m in group.members if not m.verdict.is_infrastructure]
    found = {"pass_rate": sum(graded) / len(graded) if graded else None, "attempts": len(graded), "samples": samples}
    return {**row_of(group.prompt), **found}


def _append(ranks: Ranks, out: Path, rows: Sequence[dict[str, Any]]) -> None:
    if not ranks.is_first:
        return
    with disk_errors(f"writing {out}"), out.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _known(out: Path, samples: int) -> dict[str, dict[str, Any]]:
    """The rows that are rated already, by id; a last line that was torn is cut off."""
    if not out.exists():
        return {}
    content = out.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        out.write_bytes(whole)
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            found[str(row["id"])] = {"pass_rate": row["pass_rate"], "samples": row["samples"]}
        except (ValueError, KeyError, TypeError) as exc:
            raise DataError(f"{out} line {number} is no rated row ({exc}); give another --out") from exc
        if row["samples"] != samples:
            raise DataError(
                f"{out} line {number} is of {row['samples']} samples, and {samples} are asked for; give another --out"
            )
    return found
