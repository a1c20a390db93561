"""`verizero rate`: sample each training prompt, and write the rows with the share of right answers.

`verizero check` rates a few prompts so, and says whether they are too hard or too easy (`look`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.finding import Checked, Finding
from verizero.pipeline.commands.arguments import add_model, add_recipe, recipe_with_model
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.recipes import without_trackers
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.data.prompts import spread
from verizero.pipeline.data.rows_of_source import row_of
from verizero.pipeline.errors import ConfigError, DataError, IsolationError
from verizero.pipeline.host.disk import disk_errors
from verizero.pipeline.report.progress import Lines, Progress
from verizero.pipeline.shown import show
from verizero.pipeline.types import Group, Prompt

if TYPE_CHECKING:
    from verizero.pipeline.checks.before.parts import LocalParts
    from verizero.pipeline.run.session import Session, StageSetup

EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)
NAME = "pass rates"
NUM_PROMPTS, SAMPLES, BUDGET_S = 16, 4, 20.0
"""Prompts and answers that a check samples, and the seconds that these may take."""
MOST_GIB, MOST_CUT = 4.0, 0.1
"""Weights that a check loads; share of answers that are cut for lack of time, above which rates tell nothing."""
READ = ("name", "seed", "output", "model", "data", "rollout", "scoring", "sandbox")
"""Sections of a recipe on which a pass rate depends."""


def add(commands: Any) -> None:
    command = commands.add_parser("rate", help="how often a model answers each training prompt right, written as rows")
    add_recipe(command)
    add_model(command)
    command.add_argument("-n", "--samples", type=int, default=8, help="responses a prompt; default: 8")
    command.add_argument(
        "--out", type=Path, default=Path("rated.jsonl"), help="the file that rows are added to; default: rated.jsonl"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Rate the prompts and print a summary."""
    from verizero.pipeline.models.load import quiet

    quiet()
    config, base_dir = recipe_with_model(arguments)
    show(f"{arguments.out}: {rate(config, base_dir, arguments.out, arguments.samples, Lines())}")


@dataclass(frozen=True, slots=True)
class Rated:
    """The pass rates of some prompts; as text, a histogram."""

    rates: list[float]
    unrated: int
    """Number of prompts whose graders failed for every response."""

    @property
    def head(self) -> str:
        """The number of prompts that were rated and the mean of their rates, and how many have none."""
        lost = f"; {self.unrated} without a rate: their graders failed" if self.unrated else ""
        return f"{len(self.rates)} prompts rated, mean pass rate {sum(self.rates) / max(1, len(self.rates)):.3f}{lost}"

    def __str__(self) -> str:
        never, always = sum(r == 0 for r in self.rates), sum(r == 1 for r in self.rates)
        lines = [self.head, f"  {never:6d} never right"]
        for low, high in pairwise(EDGES):
            # 0 and 1 have lines of their own; the bins between are open below.
            inside = sum(low < r <= high and r < 1 for r in self.rates)
            lines.append(f"  {inside:6d} above {low:g}" + (f", up to {high:g}" if high < 1 else ""))
        lines.append(f"  {always:6d} always right")
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
                with disk_errors(f"writing {out}"), out.open("a", encoding="utf-8") as file:
                    rows = (json.dumps(rated_row(g, samples), ensure_ascii=False) for g in groups)
                    file.write("".join(f"{row}\n" for row in rows))
            progress.advance(len(train) - len(todo) + min(len(todo), start + SAMPLED_AT_ONCE), {})
    return _rated([row["pass_rate"] for row in _known(out, samples).values()])


def _rated(rates: Sequence[float | None]) -> Rated:
    known = [rate for rate in rates if rate is not None]
    return Rated(known, len(rates) - len(known))


@contextmanager
def at_start(config: RunConfig, base_dir: Path, progress: Progress) -> Iterator[Session]:
    """Yield a session that samples from the model which the recipe starts from. Nothing that it writes is kept."""
    from verizero.pipeline.run.opening import open_run

    config = without_trackers(config)
    with tempfile.TemporaryDirectory() as folder, open_run(config, base_dir, Path(folder), "auto", progress) as session:
        session.workers.rollouts.publish(session.workers.backend, session.state.policy_version)
        yield session


def rated_row(group: Group, samples: int) -> dict[str, Any]:
    """Return the row with the pass rate of its graded responses; null where graders failed for all."""
    attempts = sum(not m.verdict.is_left_out for m in group.members)
    return {**row_of(group.prompt), "pass_rate": pass_rate(group), "attempts": attempts, "samples": samples}


def pass_rate(group: Group) -> float | None:
    """Return the share of right ones among the graded responses; None if graders failed for all."""
    graded = [m.verdict.is_correct for m in group.members if not m.verdict.is_left_out]
    return sum(graded) / len(graded) if graded else None


def setup_within(session: Session, prompts: Sequence[Prompt], samples: int, seconds: float) -> StageSetup:
    """Return the stage's setup; with shorter responses where `samples` to each prompt would take more seconds."""
    from verizero.pipeline.run.algorithm import PROBE_TOKENS, seconds_per_token

    setup, how = session.setup, session.setup.config.rollout
    of_token = seconds_per_token(session.workers.rollouts.generation, prompts, samples, how.max_response_tokens)
    limit = max(PROBE_TOKENS, int(seconds / max(of_token, 1e-6)))
    if limit >= how.max_response_tokens:
        return setup
    rollout = how.model_copy(update={"max_response_tokens": limit})
    return replace(setup, config=setup.config.model_copy(update={"rollout": rollout}))


def look(recipe: LocalParts) -> Checked:
    """Rate a few training prompts, where the model is at hand, and find that all are too hard or too easy."""
    from verizero.pipeline.checks.before.parts import with_fewer_rows
    from verizero.pipeline.checks.before.references import failing
    from verizero.pipeline.loop.sampled_groups import sample_groups

    reason = _why_not(recipe)
    if reason is not None:
        return Checked(NAME, False, reason)
    config = with_fewer_rows(recipe.config).model_dump(mode="json")
    config["data"] |= {"evaluation": [], "demonstrations": []}
    config["model"] |= {"quantize": None}
    config["rollout"] |= {"engine": "torch", "max_staleness": 0}
    config["scoring"] |= {"components": [], "overlap": False}
    # A stage that only samples needs no optimiser, reference or critic.
    sampling = {"stages": ["sample"], "sample": {}, "report": {"trackers": []}}
    sampling |= {"train": {"device": config["train"]["device"]}}
    alone = parse({name: config[name] for name in READ} | sampling, base=recipe.base_dir)
    # Of those that the run trains on: without held-out prompts, none is left out for being one of them.
    known = {p.id: p for p in recipe.train}
    with at_start(alone, recipe.base_dir, Progress()) as session:
        prompts = spread([p for p in session.run.data.train if p.verifier and p.id in known], NUM_PROMPTS)
        setup = setup_within(session, prompts, SAMPLES, BUDGET_S)
        groups, _ = sample_groups(session.run, session.workers, setup, session.recorder, prompts, SAMPLES, "before")
    rated, limit = _rated(list(map(pass_rate, groups))), setup.config.rollout.max_response_tokens
    num, cut = len(prompts) * SAMPLES, sum(m.rollout.was_cut for g in groups for m in g.members)
    result = f"{rated.head}; {cut} of {num} answers cut off at {limit} tokens"
    is_short = limit < recipe.config.rollout.max_response_tokens and cut > MOST_CUT * num
    broken = []
    for key in dict.fromkeys(p.verifier for p in prompts):
        graded = [(known[g.prompt.id], m.verdict) for g in groups if g.prompt.verifier == key for m in g.members]
        if failed := [(p, v) for p, v in graded if v.is_infrastructure]:
            broken.append(failing(recipe, key, failed, len(graded), "sampled responses"))
    asked = [known[p.id] for p in prompts]
    return Checked(NAME, True, result, (*broken, *(() if is_short else judged(recipe, rated, asked))))


def judged(recipe: LocalParts, rated: Rated, prompts: Sequence[Prompt]) -> tuple[Finding, ...]:
    """Return what the rates of some of the recipe's prompts mean where none has a signal: too hard, or too easy."""
    if not rated.rates or set(rated.rates) not in ({0.0}, {1.0}):
        return ()
    num, right = len(rated.rates), rated.rates[0] == 1
    if right:
        sentence = f"All answers to {num} prompts are right: these prompts teach nothing any more."
        remedy = "take harder prompts; `verizero rate` tells the pass rate of each"
    else:
        sentence = f"All answers to {num} prompts are wrong, so there is nothing to learn from."
        remedy = (
            "see with `verizero try` whether they end and are read; then train on easier prompts first, by SFT before "
            "RL, or with larger groups (group_size)"
        )
    shown = tuple(recipe.evidence(p, f"{p.question!r:.60}") for p in prompts[:3])
    # The rate that so many answers leave possible, at 95 %, is 1 - 0.05 ** (1 / n).
    cause = "too_easy" if right else "too_hard"
    return (Finding(0.05 ** (1 / (num * SAMPLES)), sentence, shown, remedy, CAUSES[cause].explains, cause=cause),)


def _why_not(recipe: LocalParts) -> str | None:
    """Return the reason for which a check does not sample; None if it does."""
    from verizero.pipeline.checks.before.parts import is_local
    from verizero.pipeline.checks.before.references import grader_of
    from verizero.pipeline.run.build import first_model_path

    if recipe.is_made_here:
        return "the model is made in this run"
    if recipe.config.begins_with_texts:
        return f"stage {recipe.config.stages[0].name} trains the model before any stage samples from it"
    if recipe.model.tokenizer is None:
        return recipe.model.no_tokenizer
    if not is_local(recipe.config):
        return f"{recipe.config.model.path} is no folder of this machine; `verizero rate` samples from it"
    folder = Path(first_model_path(recipe.config))
    gib = sum(f.stat().st_size for pattern in ("*.safetensors", "*.bin") for f in folder.glob(pattern)) / 2**30
    if gib > MOST_GIB:
        return f"the model has {gib:.0f} GiB of weights, which take too long to load; `verizero rate` has the time"
    graded = {p.verifier: p for p in recipe.train if p.verifier}
    if not graded:
        return "no row is graded" if recipe.train else recipe.why_none
    if any(p.environment is not None for p in recipe.train):
        return "prompts are played with an environment; `verizero try` plays some"
    for name, prompt in graded.items():
        try:
            if grader_of(recipe, prompt, only_cheap=True) is None:
                return f"{name} needs a model or a service; `verizero rate` asks it"
        except (IsolationError, ConfigError) as exc:
            return f"{name}: {exc}"
    return None


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
