"""The flows that people start from a form. Their docstrings are the help texts of the form's fields."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from prefect import Flow, flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from verizero.flows.artifacts import RunLog, show_markdown, show_result
from verizero.flows.process_lifetime import own_process, stop_if_suspended
from verizero.pipeline.config.recipes import Request, Resume, recipe_names, request_of, run_folder, with_model
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.host.disk import locked
from verizero.pipeline.launch import launch
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.shown import in_markdown

OWN_RECIPES = "VERIZERO_RECIPES"
"""Variable with the user's folder of recipes."""
NUMBERS = (int, float, int | None, float | None)
Overrides = str | dict[str, Any]
"""A text with a.b=c for the form; values by dotted name for other programs."""
P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    # A type checker cannot evaluate the list below; at run time it makes the form's menu.
    Recipe = str
else:
    Recipe = Literal[tuple(recipe_names(Path(os.environ[OWN_RECIPES]) if OWN_RECIPES in os.environ else None))]


def form(
    name: str, run_name: str | Callable[[], str], settings: Mapping[str, FieldInfo] = {}
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Return a decorator that makes a flow of a deployment, in a process of its own. A number may come as a text.

    `settings`: further fields of the form, which the function takes by their names.
    The flow raises ConfigError for what is no number.
    """

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        own = _with_fields(signature(function, eval_str=True), settings)
        numbers = {n: TypeAdapter(p.annotation) for n, p in own.parameters.items() if p.annotation in NUMBERS}

        @wraps(function)
        def run(*arguments: P.args, **more: P.kwargs) -> R:
            with own_process():
                fields = own.bind(*arguments, **more).arguments
                for field in numbers.keys() & fields.keys():
                    value = fields[field]
                    try:
                        number = numbers[field].validate_python(value)
                    except ValidationError as exc:
                        raise ConfigError(f"{field} must be a number, got {value!r}: {exc.errors()[0]['msg']}") from exc
                    # The checks that follow refuse true and false.
                    fields[field] = value if isinstance(value, bool) else number
                return function(**fields)  # type: ignore[call-arg]

        run.__signature__ = own  # type: ignore[attr-defined]
        lines = [f"    {name}: {field.description}" for name, field in settings.items()]
        run.__doc__ = "\n".join([cleandoc(function.__doc__ or ""), *lines])
        return flow(name=name, flow_run_name=run_name, persist_result=False, validate_parameters=False)(run)

    return decorate


def _with_fields(own: Signature, settings: Mapping[str, FieldInfo]) -> Signature:
    """Return the signature with parameters in place of its last one, which takes the rest by name."""
    if not settings:
        return own
    parameters = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    num_needed = sum(p.default is Parameter.empty for p in parameters)
    more = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=field.default, annotation=field.annotation)
        for name, field in settings.items()
    ]
    return own.replace(parameters=[*parameters[:num_needed], *more, *parameters[num_needed:]])


def run_name() -> str:
    """Return the run's name in the UI: the requested folder, the campaign's, or the recipe's."""
    fields = flow_run.parameters
    return str(fields.get("folder") or fields.get("campaign") or fields.get("recipe") or flow_run.flow_name)


@form("train", run_name)
def train(
    recipe: Recipe,
    rounds: int | None = None,
    stages: list[str] | None = None,
    resume: Resume = "auto",
    folder: str | None = None,
    overrides: Overrides = "",
) -> State[None]:
    """Run all stages of a recipe: data, SFT, rounds of RL, evaluation, report.

    Args:
        recipe: A recipe of configs/ or of your own folder.
        rounds: RL rounds, 1 or more. Empty: as the recipe says.
        stages: Only these stages of the recipe, by name, in this order. Empty: all.
        resume: auto: continue the run in this folder from its newest checkpoint, or begin a new one. never: fail if
            there is a run in it. must: fail if there is none. changed: as auto, also with a verifier that changed.
        folder: The run's folder in runs/, which becomes its name here too, in place of the name above; letters, digits
            and . _ - only. Empty: the recipe's name. A finished run in that folder is not repeated.
        overrides: Other fields of the recipe, e.g. rl.group_size=16 rl.rounds=4; also a line with a remedy, as it is.
            docs/recipes.md lists all, with bounds.
    """
    request = form_request(recipe, rounds=rounds, stages=stages, run_name=folder, overrides=overrides)
    context = FlowRunContext.get()
    if context is not None and context.flow_run and context.flow_run.total_run_time:
        # After Retry or Resume the flow continues the run that it began, once the process of before has ended.
        resume = "auto" if resume == "never" else resume
        with locked(run_folder(request.config), wait=True):
            pass
    return run_request(request, resume, RunLog.lines())


@form("evaluate", run_name)
def evaluate(recipe: Recipe, model: str | None = None, overrides: Overrides = "") -> None:
    """Evaluate a model on a recipe's held-out prompts; nothing is trained, and only the artifact is kept.

    Args:
        recipe: A recipe of configs/ or of your own folder; its section data.evaluation has the prompts.
        model: A Hugging Face folder, e.g. runs/demo/model. Empty: the recipe's own model.
        overrides: Other fields of the recipe, e.g. evaluation.k=16.
    """
    request = form_request(recipe, overrides=overrides)
    request = request.with_overrides(*with_model(model)) if model else request
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.report.result import evaluation_markdown
    from verizero.pipeline.whole_run import evaluate_model

    quiet()
    domains = evaluate_model(request.config, request.base_dir, RunLog.lines())
    show_markdown(
        "evaluation",
        evaluation_markdown(domains),
        f"{in_markdown(model or recipe)} on the held-out prompts of {in_markdown(recipe)}",
    )


def form_request(recipe: str, **fields: Any) -> Request:
    """Return the recipe with the form's fields. Raises: ConfigError, in the first second of the run."""
    user_folder = os.environ.get(OWN_RECIPES)
    return request_of(recipe, user_folder=Path(user_folder) if user_folder else None, **fields)


def run_request(request: Request, resume: Resume, progress: Progress) -> State[None]:
    """Run the request in this process or as a group of ranks, and show its result. Called within a flow.

    A group of ranks has processes of its own, so the flow shows its log and its result, but no stages or phases.
    """
    config, folder = request.config, run_folder(request.config)
    summary: dict[str, Any]
    if config.launch.kind == "none":
        from verizero.flows.train import CurrentFlow
        from verizero.pipeline.whole_run import train

        summary = train(config, request.base_dir, folder, resume, progress, CurrentFlow())
    else:
        launch(config.launch, request.train_arguments(resume), folder, look=stop_if_suspended)
        summary = json.loads((folder / "summary.json").read_text())
    return show_result(config, folder, summary)
