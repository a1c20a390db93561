"""The files that a run has written, with the numbers of their lines, as rules read them. No model, no torch."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from verizero.pipeline.config.stages import RoundsConfig
from verizero.pipeline.config.yaml_reader import read_yaml
from verizero.pipeline.diagnosis.finding import Evidence
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.files import numbered_jsonl
from verizero.pipeline.report.files import require_run, undone
from verizero.pipeline.report.rows import (
    CollapseAlarm,
    EvaluationRow,
    RolloutRow,
    StepRow,
    metrics_row,
    rollout_row,
    section_of,
)

METRICS, ROLLOUTS, RECIPE, INFO = "metrics.jsonl", "rollouts.jsonl", "recipe.yaml", "run.json"
TRAIN = "data/train.jsonl"
MOST_BYTES = 50_000_000
"""Bytes of training rows that are read, half at either end of a larger file: a look at a run stays short."""
FEW = 5
"""Steps at either end that are compared: one step of a small batch says little."""


@dataclass(frozen=True, slots=True)
class Point:
    """One number of one step."""

    line: int
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation, and the line of metrics.jsonl that holds it."""

    line: int
    row: EvaluationRow

    def measure(self, domain: str, name: str = "pass@1") -> dict[str, float]:
        """Return value, low and high of a measure of a domain."""
        return dict(self.row.domains[domain][name])


@dataclass(frozen=True, slots=True)
class Sample:
    """One response that the run kept, and its line of rollouts.jsonl."""

    line: int
    row: RolloutRow


@dataclass(frozen=True)
class Reading:
    """The run's last stage of RL, and everything that rules compare it with."""

    recipe: dict[str, Any]
    """recipe.yaml; empty if the file is missing."""
    steps: tuple[tuple[int, StepRow], ...]
    """(line, row) of the last stage of RL."""
    evaluations: tuple[Evaluated, ...]
    samples: tuple[Sample, ...]
    """Responses of RL steps, in order; the run keeps some of each step."""
    held_out: tuple[Sample, ...] = ()
    """Responses of evaluations that the run keeps."""
    imitation: tuple[tuple[int, StepRow], ...] = ()
    """(line, row) of stages that learn from texts."""
    info: dict[str, Any] = field(default_factory=dict)
    """run.json; empty if the file is missing."""
    references: dict[str, str] = field(default_factory=dict)
    """Prompt id -> reference answer of the prompts in `samples` whose answer is a text or a number."""

    def series(self, name: str) -> list[Point]:
        """Return a metric of the steps that have it."""
        return [Point(line, row.step, row.metrics[name]) for line, row in self.steps if name in row.metrics]

    def early(self, name: str) -> float | None:
        """Return the mean of a metric over the first steps; None if there are fewer than `FEW`."""
        return _mean([p.value for p in self.series(name)[:FEW]])

    def late(self, name: str) -> float | None:
        """Return the mean of a metric over the last steps; None if there are fewer than `FEW`."""
        return _mean([p.value for p in self.series(name)[-FEW:]])

    def share(self, part: str, whole: str, late: bool = False) -> float | None:
        """Return the ratio of two counts over the first steps, or the last; None where nothing was counted."""
        pick = self.late if late else self.early
        top, bottom = pick(part), pick(whole)
        return None if top is None or not bottom else top / bottom

    def setting(self, *path: str, default: Any = None) -> Any:
        """Return a value of the recipe; `default` where it has none, or null."""
        value: Any = self.recipe
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return default if value is None else value

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that the run made about its data."""
        return tuple(map(str, self.info.get("data_notes") or ()))

    @property
    def section(self) -> str:
        """The section of the recipe that the stage is configured by."""
        return self.steps[-1][1].stage_kind or self.steps[-1][1].stage if self.steps else "rl"

    def asks_alike(self, domain: str) -> bool:
        """True if most training prompts of a domain have the form of a held-out one, so that both can be compared."""
        forms = {form(s.row.prompt) for s in self.held_out if s.row.domain == domain}
        own = [s for s in self.samples if s.row.domain == domain]
        return not own or sum(form(s.row.prompt) in forms for s in own) >= len(own) / 2

    def before_and_after(self) -> dict[str, tuple[Evaluated, Evaluated]]:
        """Return, by domain, the evaluation before the stage and the last one; only domains that have both."""
        if not self.steps or len(self.evaluations) < 2:
            return {}
        first = self.steps[0][0]
        before = [e for e in self.evaluations if e.line < first]
        last = self.evaluations[-1]
        if not before or last.line < first:
            return {}
        return {d: (before[-1], last) for d in last.row.domains if d in before[-1].row.domains}

    def correct(self, domain: str | None = None, late: bool = False) -> float | None:
        """Return the share of right training responses over the first steps, or the last, to compare with a pass@1.

        None where the run does not tell it: the verifier of training gives grades and never a full one, or the run
        was recorded without these shares and its rewards are not all 0 or 1.
        """
        pick = self.late if late else self.early
        share = pick("correct/sampled" if domain is None else f"correct/mean/{domain}")
        if share is not None:
            return share if share > 0 or not self._only_grades else None
        return pick("reward/sampled" if domain is None else f"reward/mean/{domain}") if self._all_or_nothing else None

    @property
    def _only_grades(self) -> bool:
        """True if a verdict of training was between wrong and right, and none was right."""
        scores = [s.row.score for s in self.samples]
        return any(0 < score < 1 for score in scores) and max(scores) < 1

    @property
    def _all_or_nothing(self) -> bool:
        """True if each reward is that of a verdict, and 0 or 1: their mean is then the share of right responses."""
        rows = [s.row for s in self.samples if s.row.reward is not None]
        return all(row.reward == row.score and row.score in (0.0, 1.0) for row in rows)

    @property
    def reward_range(self) -> float:
        """The difference of the highest and the lowest reward of the samples; 1 where all are equal."""
        rewards = [s.row.reward for s in self.samples if s.row.reward is not None]
        return (max(rewards) - min(rewards) if rewards else 0.0) or 1.0

    @property
    def has_learned(self) -> bool:
        """True if pass@1 of each domain has risen since before the stage, beyond both intervals."""
        pairs = self.before_and_after().items()
        return bool(pairs) and all(a.measure(d)["low"] > b.measure(d)["high"] for d, (b, a) in pairs)

    def is_ahead(self, gap: float) -> bool:
        """Return True unless held-out prompts are solved nearly as often as those of training, in each domain."""
        pairs = self.before_and_after().items()
        return not pairs or any(
            after.measure(d)["value"] < (self.correct(d, True) or 0.0) - gap for d, (_, after) in pairs
        )

    def lengths(self) -> tuple[float, float, tuple[Evidence, ...]] | None:
        """Return the tokens of a response that the last updates trained on, those that were sampled, and the lines.

        None where a run did not record what can be compared: the second is of exactly the responses of the update.
        """
        trained, name = self.late("response/length_mean"), "responses/tokens"
        sampled = self.share(name, "responses/trained", late=True)
        if sampled is None and self.late("groups/trained") == self.late("groups/sampled"):
            sampled, name = self.late("length/mean"), "length/mean"
        if trained is None or sampled is None:
            return None
        return trained, sampled, self.shown("response/length_mean", -1) + self.shown(name, -1)

    def shown_correct(self, domain: str, *places: int) -> tuple[Evidence, ...]:
        """Return evidence of the share of right responses of a domain, as `correct` reads it."""
        return self.shown(f"correct/mean/{domain}", *places) or self.shown(f"reward/mean/{domain}", *places)

    def shown(self, name: str, *places: int) -> tuple[Evidence, ...]:
        """Return evidence of a metric at some places of its series, by default the first and the last step."""
        points = self.series(name)
        chosen = [points[i] for i in (places or (0, -1)) if -len(points) <= i < len(points)]
        return tuple(
            Evidence(METRICS, p.line, f"step {p.step}: {name}={p.value:.4g}", name) for p in dict.fromkeys(chosen)
        )


def read(folder: Path, most_bytes: int | None = None) -> Reading:
    """Return what rules need of the run in `folder`.

    `most_bytes`: of a larger rollouts.jsonl only the beginning and the end are read; None: all of it.

    Raises: RunError if it holds no metrics.jsonl, or a recipe.yaml that cannot be read; DataError for a line that is no
    row, with its number.
    """
    require_run(folder)
    steps: list[tuple[int, StepRow]] = []
    imitation: list[tuple[int, StepRow]] = []
    evaluations: list[Evaluated] = []
    for number, line in numbered_jsonl(folder / METRICS):
        row = metrics_row(line, f"row {number} of {folder / METRICS}")
        if isinstance(row, StepRow):
            (steps if issubclass(section_of(row), RoundsConfig) else imitation).append((number, row))
        elif isinstance(row, EvaluationRow):
            evaluations.append(Evaluated(number, row))
        elif isinstance(row, CollapseAlarm) and row.to_step is not None:
            # The run has done these steps again: the rows that count follow the alarm.
            steps = [(n, r) for n, r in steps if not undone(r, row.stage, row.to_step)]
            evaluations = [e for e in evaluations if not undone(e.row, row.stage, row.to_step)]
    stage = steps[-1][1].stage if steps else ""
    last = tuple((n, r) for n, r in steps if r.stage == stage)
    samples = list(_samples(folder / ROLLOUTS, most_bytes))
    trained = tuple(s for s in samples if s.row.stage == stage)
    return Reading(
        _recipe(folder / RECIPE),
        last,
        tuple(evaluations),
        trained,
        tuple(s for s in samples if s.row.stage.startswith("evaluation/")),
        tuple(imitation),
        _info(folder / INFO),
        _references(folder / TRAIN, {s.row.prompt_id for s in trained}),
    )


def form(prompt: str) -> str:
    """Return a prompt with each digit as 0: prompts of one form differ in their numbers alone."""
    return re.sub(r"\d", "0", prompt)


def by_group(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the samples of each step's groups together."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.row.step, sample.row.prompt_id), []).append(sample)
    return list(groups.values())


def _samples(path: Path, most: int | None) -> Iterator[Sample]:
    for number, line in numbered_jsonl(path, most):
        yield Sample(number, rollout_row(line, f"row {number} of {path}"))


def _references(path: Path, ids: set[str]) -> dict[str, str]:
    """Return the answers of these rows, as far as they are texts or numbers and the file is read."""
    references: dict[str, str] = {}
    for _, row in numbered_jsonl(path, MOST_BYTES):
        if row.get("id") in ids and isinstance(row.get("answer"), str | int | float):
            references[row["id"]] = str(row["answer"])
    return references


def _info(path: Path) -> dict[str, Any]:
    try:
        info = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _recipe(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (yaml.YAMLError, UnicodeDecodeError, ConfigError) as exc:
        raise RunError(f"{path} is not YAML ({exc}); restore it, or delete it to diagnose without it") from exc
    return tree if isinstance(tree, dict) else {}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if len(values) >= FEW else None
