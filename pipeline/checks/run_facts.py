"""The facts of a run that rules look at: its steps, evaluations, responses and recipe, each with its line."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.checks.finding import Evidence
from verizero.pipeline.config.stages import RoundsConfig
from verizero.pipeline.config.yaml_reader import read_mapping
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.host.disk import numbered_jsonl
from verizero.pipeline.report.row_types import EvaluationRow, RolloutRow, StepRow, rollout_row, section_of
from verizero.pipeline.report.run_files import read_run

METRICS, ROLLOUTS, RECIPE, INFO = "metrics.jsonl", "rollouts.jsonl", "recipe.yaml", "run.json"
COLD_TEMPERATURE = 0.4
MIN_RISE = 3.0
"""Standard errors by which a reward has risen that is no noise."""
NUM_COMPARED = 5
"""Steps at the start and at the end whose means are compared: a single step is too noisy."""


@dataclass(frozen=True, slots=True)
class Point:
    """The value of a metric at a step."""

    line: int
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class EvaluationLine:
    """An evaluation and its line in metrics.jsonl."""

    line: int
    row: EvaluationRow

    def measure(self, domain: str, name: str = "pass@1") -> dict[str, float]:
        """Return value, low and high of a measure of a domain."""
        return dict(self.row.domains[domain][name])


@dataclass(frozen=True, slots=True)
class Sample:
    """A response in rollouts.jsonl and its line."""

    line: int
    row: RolloutRow


@dataclass(frozen=True)
class RunFacts:
    """All that rules look at: the steps of the run's last RL stage, evaluations, responses, the recipe."""

    recipe: dict[str, Any]
    """recipe.yaml; empty if the file is missing."""
    steps: tuple[tuple[int, StepRow], ...]
    """(line, row) of the last stage of RL."""
    evaluations: tuple[EvaluationLine, ...]
    samples: tuple[Sample, ...]
    """Responses of that stage, in order; a run saves some of each step."""
    held_out: tuple[Sample, ...] = ()
    """Responses of evaluations; a run saves some of them."""
    imitation: tuple[tuple[int, StepRow], ...] = ()
    """(line, row) of stages in which the policy learns from texts. Losses of reward models and preferences differ."""
    info: dict[str, Any] = field(default_factory=dict)
    """run.json; empty if the file is missing."""

    def series(self, name: str) -> list[Point]:
        """Return a metric's points, of the steps that have it."""
        return [Point(line, row.step, row.metrics[name]) for line, row in self.steps if name in row.metrics]

    def mean_at_start(self, name: str) -> float | None:
        """Return a metric's mean over the first `NUM_COMPARED` steps; None if there are fewer."""
        return self._mean(name, slice(NUM_COMPARED))

    def mean_at_end(self, name: str) -> float | None:
        """Return a metric's mean over the last `NUM_COMPARED` steps; None if there are fewer."""
        return self._mean(name, slice(-NUM_COMPARED, None))

    def _mean(self, name: str, which: slice) -> float | None:
        values = [p.value for p in self.series(name)[which]]
        return statistics.fmean(values) if len(values) == NUM_COMPARED else None

    def change(self, name: str) -> float:
        """Return `gain` in standard errors; of a metric that never varies, in ten-thousandths."""
        first, last = self._thirds(name)
        if not first:
            return 0.0
        error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / len(first))
        return self.gain(name) / max(error, 1e-4)

    def gain(self, name: str) -> float:
        """Return a metric's mean over the last third of its steps less that over the first; 0 of fewer than 6 steps."""
        first, last = self._thirds(name)
        return statistics.fmean(last) - statistics.fmean(first) if first else 0.0

    def _thirds(self, name: str) -> tuple[list[float], list[float]]:
        """Return a metric's values in the first and the last third of its steps; empty if these are below two."""
        values = [p.value for p in self.series(name)]
        third = len(values) // 3
        return (values[:third], values[-third:]) if third >= 2 else ([], [])

    def share(self, part: str, whole: str, at_end: bool = False) -> float | None:
        """Return count `part` over count `whole`, in the first or last steps; None if either is missing."""
        mean = self.mean_at_end if at_end else self.mean_at_start
        part_mean, whole_mean = mean(part), mean(whole)
        return None if part_mean is None or not whole_mean else part_mean / whole_mean

    def setting(self, *path: str, default: Any = None) -> Any:
        """Return a value of the recipe; `default` if it is missing or null."""
        value: Any = self.recipe
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return default if value is None else value

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes about the data in run.json."""
        return tuple(map(str, self.info.get("data_notes") or ()))

    @property
    def section(self) -> str:
        """Name of the stage's section in the recipe."""
        return self.steps[-1][1].stage_kind or self.steps[-1][1].stage if self.steps else "rl"

    def has_comparable_prompts(self, domain: str) -> bool:
        """True if most training prompts of a domain look like held-out ones, so that accuracies compare."""
        held_out_forms = {prompt_form(s.row.prompt) for s in self.held_out if s.row.domain == domain}
        training = [s for s in self.samples if s.row.domain == domain]
        return not training or sum(prompt_form(s.row.prompt) in held_out_forms for s in training) >= len(training) / 2

    def before_and_after(self) -> dict[str, tuple[EvaluationLine, EvaluationLine]]:
        """Return domain -> (the evaluation before the stage, the last one), for domains with a pass@1 in both."""
        return self._with_measure("pass@1")

    def _with_measure(self, name: str) -> dict[str, tuple[EvaluationLine, EvaluationLine]]:
        if not self.steps or len(self.evaluations) < 2:
            return {}
        first = self.steps[0][0]
        before = [e for e in self.evaluations if e.line < first]
        last = self.evaluations[-1]
        if not before or last.line < first:
            return {}
        first_row, last_row = before[-1].row.domains, last.row.domains
        return {d: (before[-1], last) for d in last_row if name in last_row[d] and name in first_row.get(d, {})}

    def share_right(self, domain: str | None = None, at_end: bool = False) -> float | None:
        """Return the share of right training responses in the first or last steps, to compare with a pass@1.

        None if it is not known: the training verifier gives partial scores and never the full one, or the run has no
        such metric and its rewards are not all 0 or 1.
        """
        mean = self.mean_at_end if at_end else self.mean_at_start
        share = mean("correct/sampled" if domain is None else f"correct/mean/{domain}")
        if share is not None:
            return share if share > 0 or not self._only_grades else None
        return mean("reward/sampled" if domain is None else f"reward/mean/{domain}") if self._all_or_nothing else None

    @property
    def _only_grades(self) -> bool:
        """True if some training scores are between 0 and 1, and none is 1."""
        scores = [s.row.score for s in self.samples]
        return any(0 < score < 1 for score in scores) and max(scores) < 1

    @property
    def _all_or_nothing(self) -> bool:
        """True if all rewards are scores of verdicts, and 0 or 1: then their mean is the share of right responses."""
        rows = [s.row for s in self.samples if s.row.reward is not None]
        return bool(rows) and all(row.reward == row.score and row.score in (0.0, 1.0) for row in rows)

    @property
    def reward_range(self) -> float:
        """Highest less lowest reward of the samples; 1 if all are equal."""
        rewards = [s.row.reward for s in self.samples if s.row.reward is not None]
        return (max(rewards) - min(rewards) if rewards else 0.0) or 1.0

    @property
    def is_cold(self) -> bool:
        """True if responses were sampled at a temperature at which they are nearly all alike, whatever is known."""
        return (self.mean_at_start("temperature") or 1.0) < COLD_TEMPERATURE

    @property
    def has_learned(self) -> bool:
        """True if pass@1 of every domain has risen in the stage, and its intervals do not overlap.

        Where nothing tells which response is right, the mean reward; without any evaluation, that of training.
        """
        name = "pass@1" if (pairs := self._with_measure("pass@1")) else "reward"
        pairs = pairs or self._with_measure(name)
        if not pairs:
            return self.change("reward/sampled") >= MIN_RISE
        return bool(pairs) and all(
            a.measure(d, name)["low"] > b.measure(d, name)["high"] for d, (b, a) in pairs.items()
        )

    @property
    def without_cause(self) -> str:
        """The sentence about a run in which no cause is found. It has learned or not: pass@1 or the reward tells."""
        for name in ("pass@1", "reward"):
            if pairs := self._with_measure(name).items():
                measures = [(b.measure(d, name)["value"], a.measure(d, name)["value"], d) for d, (b, a) in pairs]
                return (
                    f"No cause was found; {name} "
                    + ", ".join(f"{b:.2f} -> {a:.2f} on {d}" for b, a, d in measures)
                    + "."
                )
        rewards = [p.value for p in self.series("reward/sampled")]
        if not (size := min(NUM_COMPARED, len(rewards) // 2)):
            return "No cause was found."
        first, last = statistics.fmean(rewards[:size]), statistics.fmean(rewards[-size:])
        return f"No cause was found; the reward went from {first:.2f} to {last:.2f}."

    def training_is_ahead(self, gap: float) -> bool:
        """True if training prompts are solved more often than held-out ones, by more than `gap`, in some domain."""
        pairs = self.before_and_after().items()
        return not pairs or any(
            after.measure(d)["value"] < (self.share_right(d, at_end=True) or 0.0) - gap for d, (_, after) in pairs
        )

    def evidence_of_right(self, domain: str, *indices: int) -> tuple[Evidence, ...]:
        """Return evidence for `share_right` of a domain, at some indices of its series."""
        return self.evidence(f"correct/mean/{domain}", *indices) or self.evidence(f"reward/mean/{domain}", *indices)

    def evidence(self, name: str, *indices: int) -> tuple[Evidence, ...]:
        """Return evidence: a metric at some indices of its series, by default the first and the last."""
        points = self.series(name)
        chosen = [points[i] for i in (indices or (0, -1)) if -len(points) <= i < len(points)]
        return tuple(
            Evidence(METRICS, p.line, f"step {p.step}: {name}={p.value:.4g}", name) for p in dict.fromkeys(chosen)
        )


def read(folder: Path, max_bytes: int | None = None) -> RunFacts:
    """Return the facts of the run in `folder`: of its last stage of RL, without steps that a roll-back undid.

    `max_bytes`: of a larger rollouts.jsonl only the beginning and the end are read; None: all of it.

    Raises: RunError if there is no metrics.jsonl, or another file cannot be read; DataError with the number of a line
    that is no row.
    """
    run = read_run(folder)
    sections = [(line, row, section_of(row)) for line, row in zip(run.step_lines, run.steps, strict=True)]
    rounds = [(line, row) for line, row, section in sections if issubclass(section, RoundsConfig)]
    stage = rounds[-1][1].stage if rounds else ""
    path = folder / ROLLOUTS
    samples = [Sample(n, rollout_row(row, f"row {n} of {path}")) for n, row in numbered_jsonl(path, max_bytes)]
    trained = tuple(s for s in samples if s.row.stage == stage)
    return RunFacts(
        _recipe(folder / RECIPE),
        tuple((line, row) for line, row in rounds if row.stage == stage),
        tuple(map(EvaluationLine, run.evaluation_lines, run.evaluations)),
        trained,
        tuple(s for s in samples if s.row.stage.startswith("evaluation/")),
        tuple(
            (line, row)
            for line, row, section in sections
            if not issubclass(section, RoundsConfig) and section.trains_policy and not section.learns_from_responses
        ),
        run.info,
    )


def prompt_form(prompt: str) -> str:
    """Return a prompt with 0 for each digit: prompts of one form differ only in numbers."""
    return re.sub(r"\d", "0", prompt)


def by_group(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the samples, in a list for each group of a step."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.row.step, sample.row.prompt_id), []).append(sample)
    return list(groups.values())


def _recipe(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_mapping(path)
    except ConfigError as exc:
        raise RunError(f"{exc}; restore it, or delete it to diagnose without it") from exc
