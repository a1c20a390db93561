"""`verizero.try_out` and `verizero.evaluate`: look at a model's answers, or measure it, before or after training."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from verizero.pipeline.api.given import Data
from verizero.pipeline.api.train import asked_run
from verizero.pipeline.api.trained import TrainedRun
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import override_texts
from verizero.pipeline.models.load import quiet as without_bars
from verizero.pipeline.report.progress import Progress, for_terminal
from verizero.pipeline.report.result import evaluation_lines
from verizero.pipeline.shown import show


def try_out(
    model: str | Path | dict[str, Any],
    data: Data | None = None,
    *,
    prompts: int = 4,
    samples: int = 4,
    **arguments: Any,
) -> None:
    """Show some training prompts as the model gets them, its answers, and what each is worth. Nothing is trained.

    model, data, arguments: as for `train`. prompts, samples: how many prompts, and how many answers to each.

    Raises: ConfigError, DataError as `train` does before training.
    """
    from verizero.pipeline.commands.try_out import try_out as texts_of

    without_bars()
    with asked_run(model, data, arguments, quiet=False) as asked:
        config = load_recipe(asked.path, asked.overrides)
        for text in texts_of(config, asked.path.resolve().parent, prompts, samples, asked.progress):
            show(text)


def evaluate(
    model: str | Path | dict[str, Any] | TrainedRun, data: Data | None = None, *, quiet: bool = False, **arguments: Any
) -> Measured:
    """Return pass@1, pass@k and further measures with their 95% intervals, by domain. Nothing is trained.

    model: a run or its folder, for the trained model on the run's held-out prompts; or model and data as for `train`,
        for all rows of `data`; or a recipe, for the model that it starts from on its held-out prompts.
    quiet: True: no output. arguments: as for `train`; `**{"evaluation.k": 8}` samples eight answers to each prompt.

    Raises: ConfigError, DataError before anything is sampled; else what the engine or the graders raise.
    """
    from verizero.pipeline.commands.eval import held_out_of_run
    from verizero.pipeline.whole_run import evaluate_model

    without_bars()
    if data is None and isinstance(model, str | Path) and (Path(model) / "run.json").is_file():
        model = TrainedRun(model)
    if isinstance(model, TrainedRun):
        progress: Progress = Progress() if quiet else for_terminal()
        with closing(progress):
            config, base = held_out_of_run(model.folder, model.model.resolve(), override_texts("fields", arguments))
            return Measured(evaluate_model(config, base, progress), config.evaluation.k)
    if data is not None:
        arguments = {"evaluation": data, "evaluation.limit": None} | arguments
    with asked_run(model, data, arguments, quiet) as asked:
        config = load_recipe(asked.path, asked.overrides)
        if data is not None:  # nothing trains, and the rows would be compared with themselves
            config = config.model_copy(update={"data": config.data.model_copy(update={"train": ()})})
        measured = evaluate_model(config, asked.path.resolve().parent, asked.progress)
        return Measured(measured, config.evaluation.k)


class Measured(dict[str, dict[str, Any]]):
    """Domain -> measure -> {"value", "low", "high"}; prints as a table."""

    def __init__(self, domains: dict[str, dict[str, Any]], k: int) -> None:
        super().__init__(domains)
        self._lines = evaluation_lines(domains, k)

    def __repr__(self) -> str:
        return "\n".join(self._lines)
