"""Signs of a collapse of RL, found in the metrics of its last steps, and what a stage remembers to find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pipeline.config.guard import GuardConfig, turned
from pipeline.config.run import RunConfig
from pipeline.config.stages import RoundsConfig
from pipeline.run.state import RunState
from pipeline.types import StepMetrics

Measures = dict[str, float]
LIMITS = (
    ("entropy", "min_entropy", "times"),
    ("entropy", "max_entropy", "times"),
    ("length", "min_length", "times"),
    ("truncated", "max_truncated", "rise"),
    ("KL", "max_kl", "itself"),
    ("clip fraction", "max_clip_fraction", "rise"),
    ("groups without variance", "max_flat", "itself"),
    ("unanswered", "max_unanswered", "rise"),
)
"""Measure, the field of `guard` with its limit, and whether that is the limit, or times or above what was at first."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One measure past its limit."""

    measure: str
    value: float
    limit: float
    setting: str
    """The field of `guard` that set the limit."""

    def __str__(self) -> str:
        verb = "fell to" if self.setting.startswith("min_") else "rose to"
        return f"{self.measure} {verb} {self.value:.3g} (guard.{self.setting}: {self.limit:.3g})"


def measures(row: StepMetrics) -> Measures:
    """What is watched of a step's metrics; a measure that the step does not have is absent."""
    out = {name: row[key] for name, key in (("entropy", "entropy"), ("KL", "kl/k3")) if key in row}
    sampled = row.get("groups/sampled", 0.0)
    if sampled > 0:
        out["length"], out["truncated"] = row["length/mean"], row["truncated"]
        out["groups without variance"] = (row.get("groups/all_wrong", 0.0) + row.get("groups/equal", 0.0)) / sampled
        out["unanswered"] = row["verdict/no_answer"] + row["verdict/timeout"]
    if "clip_fraction/low" in row or "clip_fraction/high" in row:
        out["clip fraction"] = row.get("clip_fraction/low", 0.0) + row.get("clip_fraction/high", 0.0)
    return out


def signs(first: Sequence[Measures], last: Sequence[Measures], config: GuardConfig) -> list[Sign]:
    """The measures whose median over `last` is past its limit; relative limits are held against `first`.

    Medians, because one step may do anything: k3 of a single one has been seen at a thousand times its usual value.
    A measure that most of the steps do not have is not judged.
    """
    found = []
    for measure, setting, held_against in LIMITS:
        given: float | None = getattr(config, setting)
        begun, now = _median(first, measure), _median(last, measure)
        if given is None or begun is None or now is None:
            continue
        limit = {"itself": given, "times": given * begun, "rise": given + begun}[held_against]
        if now < limit if setting.startswith("min_") else now > limit:
            found.append(Sign(measure, now, limit, setting))
    return found


def _median(rows: Sequence[Measures], measure: str) -> float | None:
    values = [row[measure] for row in rows if measure in row]
    return median(values) if 2 * len(values) > len(rows) else None


def observe(memory: dict[str, Any], row: StepMetrics, config: GuardConfig) -> list[Sign]:
    """The signs after one more step, whose metrics join `memory`: plain values, kept in checkpoints.

    None before `window` steps are there. A stage that stands still at its beginning compares with itself.
    """
    seen = measures(row)
    first, last = memory.setdefault("first", []), memory.setdefault("last", [])
    if len(first) < config.window:
        first.append(seen)
    last.append(seen)
    del last[: -config.window]
    return signs(first, last, config) if len(last) == config.window else []


def settled(config: RunConfig, state: RunState) -> RunConfig:
    """A stage's recipe with its knob turned as often as the stage was rolled back."""
    times = num_roll_backs(state)
    if times == 0 or config.rl is None:
        return config
    rl, rollout = turned(config.rl, config.rollout, config.guard, times)
    return config.model_copy(update={"rl": rl, "rollout": rollout})


def num_roll_backs(state: RunState) -> int:
    """Of the present stage."""
    return int(state.guard.get("roll_backs", 0))


def note(state: RunState, config: RunConfig) -> list[int]:
    """Serials of checkpoints to be kept for a roll-back, once that with serial `state.serial` is written.

    They are the last one that a collapse seen at the next step would go back to, and all since.
    """
    if not keeps_checkpoints(config):
        return []
    known = [*state.guard.get("checkpoints", []), [state.serial, state.rl_step]]
    oldest = state.rl_step - config.guard.window - lateness(config)
    before = [i for i, (_, step) in enumerate(known) if step <= oldest]
    state.guard["checkpoints"] = known[before[-1] if before else 0 :]
    return [serial for serial, _ in state.guard["checkpoints"]]


def keeps_checkpoints(config: RunConfig) -> bool:
    """In a stage of this recipe the guard may want to go back, or to name what is worth going on from."""
    section = getattr(config, config.stages[0].kind)
    return config.guard.action in ("stop", "roll_back") and isinstance(section, RoundsConfig)


def lateness(config: RunConfig) -> int:
    """How many steps later than the next one a policy's own responses may be those of a step."""
    return config.rollout.max_staleness + config.rollout.publish_every - 1


def good_serials(state: RunState, config: RunConfig) -> list[int]:
    """Serials of checkpoints whose policy answered before the steps that showed a collapse, the newest first.

    The policy of a checkpoint at step k wrote the responses of step k + 1, or so much later as responses may be old, so
    that step is not in the window; where the stage is not older than that, it is its beginning.
    """
    newest = max(state.stage_start, state.rl_step - config.guard.window - 1 - lateness(config))
    return [serial for serial, step in reversed(state.guard.get("checkpoints", [])) if step <= newest]
