"""Detection of a collapse of RL in the metrics of its last steps, and the checkpoints to return to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from verizero.pipeline.config.guard import RATE_AFTER_ROLL_BACK, GuardConfig
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import RoundsConfig
from verizero.pipeline.report.row_types import Numbers
from verizero.pipeline.run.state import RunState

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
"""Measure, name of its limit in `guard.limits`, and how that is meant: itself, times or above the first value."""
MAX_ALL_RIGHT = 0.5
"""Above this share of groups that are all right, a fall of the entropy is the end of learning, and no collapse."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One measure past its limit."""

    measure: str
    value: float
    limit: float
    setting: str
    """The name of the limit in `guard.limits`."""

    def __str__(self) -> str:
        verb = "fell to" if self.setting.startswith("min_") else "rose to"
        return f"{self.measure} {verb} {self.value:.3g} (guard.limits.{self.setting}: {self.limit:.3g})"


def measures(row: Numbers) -> Measures:
    """Return the measures that the guard watches, out of a step's metrics. Those that the step lacks are absent."""
    out = {name: row[key] for name, key in (("entropy", "entropy"), ("KL", "kl/k3")) if key in row}
    sampled = row.get("groups/sampled", 0.0)
    if sampled > 0:
        out["length"], out["truncated"] = row["length/mean"], row["truncated"]
        out["groups without variance"] = (row.get("groups/all_wrong", 0.0) + row.get("groups/equal", 0.0)) / sampled
        out["solved"] = row.get("groups/all_right", 0.0) / sampled
        out["unanswered"] = row["verdict/no_answer"] + row["verdict/timeout"]
    if "clip_fraction/low" in row or "clip_fraction/high" in row:
        out["clip fraction"] = row.get("clip_fraction/low", 0.0) + row.get("clip_fraction/high", 0.0)
    return out


def signs(first: Sequence[Measures], last: Sequence[Measures], config: GuardConfig) -> list[Sign]:
    """Return the measures whose median over `last` is past its limit. Relative limits refer to the medians of `first`.

    Medians, because a single step may be wild: its k3 has been seen at a thousand times the usual value.
    A measure that most of the steps lack is not checked.
    """
    past_limit = []
    for measure, setting, meaning in LIMITS:
        number = config.limit_of(setting)
        at_first, now = _median(first, measure), _median(last, measure)
        if number is None or at_first is None or now is None:
            continue
        if setting == "min_entropy" and (_median(last, "solved") or 0.0) > MAX_ALL_RIGHT:
            continue
        limit = {"itself": number, "times": number * at_first, "rise": number + at_first}[meaning]
        # False for NaN on either side: a median of NaN gives no sign, and bad updates are refused elsewhere.
        if now < limit if setting.startswith("min_") else now > limit:
            past_limit.append(Sign(measure, now, limit, setting))
    return past_limit


def _median(rows: Sequence[Measures], measure: str) -> float | None:
    values = [row[measure] for row in rows if measure in row]
    # A few values would make a median of outliers.
    return median(values) if 2 * len(values) > len(rows) else None


def observe(memory: dict[str, Any], row: Numbers, config: GuardConfig) -> list[Sign]:
    """Add a step's metrics to `memory` (plain values, kept in checkpoints) and return the signs of a collapse.

    There are no signs before `window` steps are done.
    """
    seen = measures(row)
    first, last = memory.setdefault("first", []), memory.setdefault("last", [])
    if len(first) < config.window:
        first.append(seen)
    last.append(seen)
    del last[: -config.window]
    return signs(first, last, config) if len(last) == config.window else []


def with_lower_rate(config: RunConfig, state: RunState) -> RunConfig:
    """Return a stage's recipe, its learning rate halved once for each time that the stage was rolled back."""
    times = num_roll_backs(state)
    (stage,) = config.stages
    section = config.section_of(stage)
    if times == 0 or not isinstance(section, RlConfig):
        return config
    rate = section.optimizer.rate * RATE_AFTER_ROLL_BACK**times
    optimizer = section.optimizer.model_copy(update={"learning_rate": rate})
    return config.model_copy(update={stage.kind: section.model_copy(update={"optimizer": optimizer})})


def num_roll_backs(state: RunState) -> int:
    """Return how often the present stage was rolled back."""
    return int(state.stage.guard.get("roll_backs", 0))


def note_checkpoint(state: RunState, config: RunConfig) -> list[int]:
    """Note the checkpoint that is written now; return the numbers of those that a rollback may need.

    They are the checkpoint that a collapse seen at the next step would return to, and all since.
    """
    if not keeps_checkpoints(config):
        return []
    known = [*state.stage.guard.get("checkpoints", []), [state.next_checkpoint, state.rl_step]]
    # The newest checkpoint up to this step is the one that a collapse seen next would return to.
    oldest = state.rl_step - config.guard.window - config.rollout.max_staleness
    before = [i for i, (_, step) in enumerate(known) if step <= oldest]
    state.stage.guard["checkpoints"] = known[before[-1] if before else 0 :]
    return [number for number, _ in state.stage.guard["checkpoints"]]


def keeps_checkpoints(config: RunConfig) -> bool:
    """True if the guard may roll back in this stage, or name a checkpoint to restart from."""
    return config.guard.action in ("stop", "roll_back") and bool(config.sections_of(RoundsConfig))


def good_checkpoints(state: RunState, config: RunConfig) -> list[int]:
    """Return the numbers of the checkpoints from before the steps that showed a collapse, newest first.

    A checkpoint is good if all that its policy sampled was trained on before those steps, the window. If none of the
    stage is as old, the stage's first one is good.
    """
    newest = max(state.stage.first_rl_step, state.rl_step - config.guard.window - 1 - config.rollout.max_staleness)
    return [number for number, step in reversed(state.stage.guard.get("checkpoints", [])) if step <= newest]
