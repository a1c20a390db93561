"""`verizero rate`: sample each training prompt, and write the rows with the share of right answers."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verizero.pipeline.commands.arguments import add_model, add_recipe, recipe_with_model
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.data.rows_of_source import row_of
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.host.disk import disk_errors
from verizero.pipeline.report.progress import Lines, Progress
from verizero.pipeline.shown import show
from verizero.pipeline.types import Group

if TYPE_CHECKING:
    from verizero.pipeline.run.session import Session

EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("rate", help="how often a model answers each training prompt right, written as rows")
    add_recipe(command)
    add_model(command)
    command.add_argument("-n", "--samples", type=int, default=8, help="responses a prompt; default: 8")
    command.add_argument(
        "--out", type=Path, default=Path("rated.jsonl"), help="where rows go, after those that it has; rated.jsonl"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Rate the prompts and print a summary."""
    from verizero.pipeline.models.load import quiet

    quiet()
    config, base_dir = recipe_with_model(arguments)
    show(rate(config, base_dir, arguments.out, arguments.samples, Lines()))


@dataclass(frozen=True, slots=True)
class Rated:
    """The pass rates of all prompts; as text, a histogram."""

    path: Path
    rates: list[float]
    unrated: int
    """Number of prompts whose graders failed for every response."""

    def __str__(self) -> str:
        total = max(1, len(self.rates))
        never, always = sum(r == 0 for r in self.rates), sum(r == 1 for r in self.rates)
        lines = [f"{len(self.rates)} prompts rated in {self.path}, mean pass rate {sum(self.rates) / total:.3f}"]
        lines.append(f"  {never:6d} never right")
        for low, high in pairwise(EDGES):
            # 0 and 1 have lines of their own; the bins between are open below.
            inside = sum(low < r <= high and r < 1 for r in self.rates)
            lines.append(f"  {inside:6d} above {low:g}" + (f", up to {high:g}" if high < 1 else ""))
        lines.append(f"  {always:6d} always right")
        if self.unrated:
            lines.append(f"  {self.unrated:6d} without a rate: their graders failed")
        return "\n".join(lines)


def rate(config: RunConfig, base_dir: Path, out: Path, samples: int, progress: Progress) -> Rated:
    """Sample each training prompt `samples` times from the recipe's model; append the rows with pass rates to `out`.

    Prompts whose rows `out` has already are not sampled again, so an interrupted command can be repeated.
    Raises: ConfigError; DataError where `out` is of other prompts or another number of samples.
    """
    from verizero.pipeline.loop.metrics import report_failures, require_verdicts
    from verizero.pipeline.loop.sampled_groups import SAMPLED_AT_ONCE, sample_groups

    if samples < 1:
        raise ConfigError(f"samples must be >= 1, got {samples}; give -n 8, for example")
    # Before the model is loaded, as an unfit file should be refused at once.
    known = _known(out, samples)
    with at_start(config, base_dir, progress) as session:
        run, workers, recorder = session.run, session.workers, session.recorder
        train = [p for p in run.data.train if p.verifier]
        strangers = sorted(set(known) - {p.id for p in train})
        if strangers:
            raise DataError(f"{out} has the row {strangers[0]!r}, which the recipe does not have; give another --out")
        todo = [p for p in train if p.id not in known]
        progress.begin("rate", len(train) - len(todo), len(train))
        with disk_errors(f"writing {out}"):
            out.parent.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(todo), SAMPLED_AT_ONCE):
            recorder.step_label = f"rate prompts {start + 1} to {start + SAMPLED_AT_ONCE}"
            # Written after each piece, so that an interruption loses one piece at most.
            some = todo[start : start + SAMPLED_AT_ONCE]
            groups, tally = sample_groups(run, workers, session.setup, recorder, some, samples, "rate")
            fate = "they count for no pass rate"
            report_failures(
                recorder, session.setup, (session.state.stage.name, session.state.rl_step), tally, groups, fate
            )
            require_verdicts(recorder.step_label, groups)
            if run.ranks.is_first:
                _append(out, [rated_row(g, samples) for g in groups])
            progress.advance(len(train) - len(todo) + min(len(todo), start + SAMPLED_AT_ONCE), {})
    rows = _known(out, samples).values()
    rates = [r["pass_rate"] for r in rows if r["pass_rate"] is not None]
    return Rated(out, rates, len(rows) - len(rates))


@contextmanager
def at_start(config: RunConfig, base_dir: Path, progress: Progress) -> Iterator[Session]:
    """Yield a session that samples from the model which the recipe starts from. Nothing that it writes is kept."""
    from verizero.pipeline.run.opening import open_run

    with tempfile.TemporaryDirectory() as folder, open_run(config, base_dir, Path(folder), "auto", progress) as session:
        session.workers.rollouts.publish(session.workers.backend, session.state.policy_version)
        yield session


def rated_row(group: Group, samples: int) -> dict[str, Any]:
    """Return the row with the pass rate of its graded responses; null where graders failed for all."""
    graded = [m.verdict.is_correct for m in group.members if not m.verdict.is_left_out]
    pass_rate = sum(graded) / len(graded) if graded else None
    return {**row_of(group.prompt), "pass_rate": pass_rate, "attempts": len(graded), "samples": samples}


def _append(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    with disk_errors(f"writing {out}"), out.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _known(out: Path, samples: int) -> dict[str, dict[str, Any]]:
    """Return the rated rows by id; cut off a last line that a killed command left incomplete."""
    if not out.exists():
        return {}
    content = out.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    # A killed command leaves half a line, to which the next row would be glued.
    if complete != content:
        out.write_bytes(complete)
    known: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            row = json.loads(line)
            known[str(row["id"])] = {"pass_rate": row["pass_rate"], "samples": row["samples"]}
        except (ValueError, KeyError, TypeError) as exc:
            raise DataError(f"{out} line {number} is no rated row ({exc}); give another --out") from exc
        if row["samples"] != samples:
            raise DataError(
                f"{out} line {number} has {row['samples']} samples, but {samples} are requested; give another --out"
            )
    return known
