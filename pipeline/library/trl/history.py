"""The log of a run as a script of TRL reads it, and TRL's callbacks, which are called while it grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.library.trl.schedule import Schedule
from verizero.pipeline.report.row_types import EvaluationRow, StepRow
from verizero.pipeline.run.callbacks import STOP, Event, Stop

NAMES = {
    "loss/total": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "reward/sampled": "reward",
    "kl/k3": "kl",
    "entropy": "entropy",
    "length/mean": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "clip_fraction/low": "clip_ratio/low_mean",
    "clip_fraction/high": "clip_ratio/high_mean",
}
"""Name of a metric here -> its name in TRL. `reward/part/f` becomes `rewards/f/mean`; others keep their names."""
PART = "reward/part/"
HELD_OUT = {"length": "completions/mean_length", "truncated": "completions/clipped_ratio"}
"""Held-out measure -> its name in TRL, behind `eval_`."""
CALLED = frozenset({"on_init_end", "on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_train_end"})
"""Methods of callbacks that are called."""


class TrainOutput(NamedTuple):
    """The result of `train`."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class History:
    """The rows of `state.log_history`, made of the rows of a run's metrics in their order."""

    def __init__(self, args: GRPOConfig, schedule: Schedule) -> None:
        every = args.logging_steps * schedule.total_updates if args.logging_steps < 1 else args.logging_steps
        self.batches = max(1, round(every / schedule.updates))
        """Batches of which a row has the means."""
        self.is_on, self.logs_first, self.schedule = args.logging_strategy != "no", args.logging_first_step, schedule
        self._waiting: list[Mapping[str, float]] = []

    def after_step(self, row: StepRow) -> dict[str, Any] | None:
        """Return the row of the log that ends with this step; None if none does."""
        self._waiting.append(row.metrics)
        is_due = row.step % self.batches == 0 or row.step == self.schedule.steps or (row.step == 1 and self.logs_first)
        if not (self.is_on and is_due):
            return None
        rows, self._waiting = self._waiting, []
        return {**_means(rows), **self._at(row.step)}

    def after_evaluation(self, row: EvaluationRow) -> dict[str, Any]:
        """Return the row of the log of an evaluation."""
        return {**held_out_of(row), **self._at(row.step)}

    def _at(self, step: int) -> dict[str, Any]:
        return {"step": step * self.schedule.updates, "epoch": step / self.schedule.steps_per_epoch}


def held_out_of(row: EvaluationRow) -> dict[str, float]:
    """Return the measures of an evaluation, behind `eval_` and, of several data sets, the name of each."""
    made = {}
    for domain, measures in row.domains.items():
        prefix = "eval_" if len(row.domains) == 1 else f"eval_{domain}_"
        for name, measure in measures.items():
            value = measure.get("value") if isinstance(measure, Mapping) else measure
            if isinstance(value, int | float):
                made[prefix + HELD_OUT.get(name, name)] = float(value)
    return made


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over the rows that have it."""
    made = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        shown = f"rewards/{name.removeprefix(PART)}/mean" if name.startswith(PART) else NAMES.get(name, name)
        made[shown] = sum(values) / len(values)
    return made


class Watchers:
    """TRL's callbacks, called with the events of a run; and the log that they see."""

    def __init__(self, callbacks: Sequence[Any], args: GRPOConfig, state: Any, schedule: Schedule) -> None:
        """`state`: transformers' TrainerState. Raises: ConfigError for a callback with a method that is not called."""
        from transformers import TrainerControl

        made = [c() if isinstance(c, type) else c for c in callbacks]
        self.watchers = [c for c in made if any(hasattr(c, name) for name in CALLED)]
        self.functions: list[Callable[[Event], Stop | None]] = [c for c in made if c not in self.watchers]
        """Callbacks of this project's form, f(event)."""
        for watcher in self.watchers:
            _require_called(watcher)
        self.args, self.state, self.history = args, state, History(args, schedule)
        self.control = TrainerControl()
        self.tell("on_init_end")

    def tell(self, name: str, **more: Any) -> None:
        """Call this method of each callback. Raises: ConfigError if one asks for what is not done here."""
        if name == "on_train_begin":
            self.control.should_training_stop = False
        for watcher in self.watchers:
            if (method := getattr(watcher, name, None)) is not None:
                self.control = method(self.args, self.state, self.control, **more) or self.control
        for wish, argument in {"save": "save_steps", "evaluate": "eval_steps", "epoch_stop": "max_steps"}.items():
            if getattr(self.control, f"should_{wish}"):
                raise ConfigError(f"a callback set control.should_{wish}, which is not followed here; set {argument}")

    def __call__(self, event: Event) -> Stop | None:
        """Tell the callbacks of a step or an evaluation; return STOP if one wants training to stop."""
        self.add(event.row, self.tell)
        return STOP if self.control.should_training_stop else None

    def add(self, row: Any, tell: Callable[..., None] = lambda *_, **__: None) -> None:
        """Add a row of the run's metrics to the state."""
        if isinstance(row, EvaluationRow):
            logged = self.history.after_evaluation(row)
            self.state.log_history.append(logged)
            tell("on_evaluate", metrics=logged)
        elif isinstance(row, StepRow):
            logs = self.history.after_step(row)
            at = self.history._at(row.step)
            self.state.global_step, self.state.epoch = at["step"], at["epoch"]
            tell("on_step_end")
            if logs is not None:
                self.state.log_history.append(logs)
                tell("on_log", logs=logs)


def _require_called(watcher: Any) -> None:
    from transformers import TrainerCallback

    for kind in type(watcher).__mro__:
        own = () if kind is TrainerCallback else vars(kind)
        for name in own:
            if name.startswith("on_") and name not in CALLED:
                raise ConfigError(
                    f"callback {type(watcher).__name__} has {name}, which is not called here: callbacks are called "
                    f"after a batch and after an evaluation, by {', '.join(sorted(CALLED))}"
                )
