"""The flows that people start from a form. Their docstrings are the help texts of the form's fields."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from verizero.flows.artifacts import RunLog, show_markdown, show_table
from verizero.flows.process_lifetime import bind_lifetime
from verizero.flows.requests import run_request
from verizero.pipeline.config.recipes import Request, Resume, recipe_names, request_of
from verizero.pipeline.shown import block_in_markdown, in_markdown

OWN_RECIPES = "VERIZERO_RECIPES"
"""Variable with the user's folder of recipes."""

if TYPE_CHECKING:
    # A type checker cannot evaluate the list below; at run time it makes the form's menu.
    Recipe = str
else:
    Recipe = Literal[tuple(recipe_names(Path(os.environ[OWN_RECIPES]) if OWN_RECIPES in os.environ else None))]


def run_name() -> str:
    """Return the run's name in the UI: the requested folder, the campaign's, or the recipe's."""
    fields = flow_run.parameters
    return str(fields.get("folder") or fields.get("campaign") or fields.get("recipe") or flow_run.flow_name)


@flow(name="train", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def train(
    recipe: Recipe,
    rounds: int | None = None,
    stages: list[str] | None = None,
    resume: Resume = "auto",
    folder: str | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006  (a form shows a default; nobody changes it)
) -> None:
    """Run all stages of a recipe: data, SFT, rounds of RL, evaluation, report.

    Args:
        recipe: A recipe of configs/ or of your own folder.
        rounds: RL rounds, 1 or more. Empty: as the recipe says.
        stages: Only these stages of the recipe, by name, in this order. Empty: all.
        resume: auto: continue the run in this folder from its newest checkpoint, or begin a new one. never: fail if
            there is a run in it. must: fail if there is none. changed: as auto, also with a verifier that changed.
        folder: The run's folder in runs/, which becomes its name here too, in place of the name above; letters, digits
            and . _ - only. Empty: the recipe's name. A finished run in that folder is not repeated.
        overrides: Any other field of the recipe by its dotted name, e.g. {"rl.group_size": 16}. docs/recipes.md lists
            all, with bounds.
    """
    bind_lifetime()
    request = form_request(recipe, rounds=rounds, stages=stages, run_name=folder, overrides=overrides)
    _train(request, resume)


@flow(name="sft", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def sft(
    recipe: Recipe,
    resume: Resume = "auto",
    folder: str | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006
) -> None:
    """Run supervised fine-tuning alone, with the evaluation before and after it.

    Args:
        recipe: A recipe of configs/ or of your own folder; it must have a section `sft`.
        resume: auto: continue the run in this folder from its newest checkpoint, or begin a new one. never: fail if
            there is a run in it. must: fail if there is none. changed: as auto, also with a verifier that changed.
        folder: The run's folder in runs/, which becomes its name here too, in place of the name above; letters, digits
            and . _ - only. Empty: the recipe's name and -sft.
        overrides: Any other field of the recipe by its dotted name, e.g. {"sft.steps": 200}.
    """
    bind_lifetime()
    first = form_request(recipe, overrides=overrides)
    name = folder or f"{first.config.name}-sft"
    _train(form_request(recipe, stages=["sft"], run_name=name, overrides=overrides), resume)


@flow(name="evaluate", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def evaluate(
    recipe: Recipe,
    model: str | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006
) -> None:
    """Evaluate a model on a recipe's held-out prompts; nothing is trained, and only the artifact is kept.

    Args:
        recipe: A recipe of configs/ or of your own folder; its section data.evaluation has the prompts.
        model: A Hugging Face folder, e.g. runs/demo/model. Empty: the recipe's own model.
        overrides: Any other field of the recipe by its dotted name, e.g. {"evaluation.k": 16}.
    """
    bind_lifetime()
    # A recipe has one of the two; naming a folder must switch off a model created from scratch.
    chosen = {"model.path": model, "model.create": None} if model else {}
    request = form_request(recipe, overrides={**overrides, **chosen})
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


@flow(name="compare", flow_run_name="{folder}", persist_result=False, validate_parameters=False)
def compare(
    recipes: list[Recipe],
    seeds: int = 3,
    start: str | None = None,
    tokens: int | None = None,
    folder: str = "runs/compare",
    overrides: dict[str, Any] = {},  # noqa: B006
) -> None:
    """Compare recipes: the same start, the same prompts, the same budget of tokens, and one page with the results.

    Args:
        recipes: Two or more recipes that differ in their algorithm only.
        seeds: Runs of each recipe, 1 or more.
        start: A Hugging Face folder that all runs start from. Empty: a model trained by SFT, once a seed.
        tokens: Tokens that each run generates, 1 or more. Empty: as many as its rounds take.
        folder: The folder for the runs and the page.
        overrides: Any other field by its dotted name, changed in each recipe.
    """
    bind_lifetime()
    requests = [form_request(recipe, overrides=overrides) for recipe in recipes]
    from verizero.pipeline.commands.compare import compare as run_compare
    from verizero.pipeline.report.compare_page import text_table

    rows = run_compare(
        [r.path for r in requests],
        Path(folder),
        overrides=requests[0].overrides if requests else (),
        seeds=seeds,
        start=None if start is None else Path(start),
        max_tokens=tokens,
        say=get_run_logger().info,
    )
    page = Path(folder).resolve() / "compare.html"
    show_markdown(
        "compare", f"{block_in_markdown(text_table(rows))}\nPage: {in_markdown(page)}\n", "Results of the runs"
    )


@flow(name="verify-dataset", flow_run_name="{rows}", persist_result=False, validate_parameters=False)
def verify_dataset(rows: str, verifier: str | None = None, save: str | None = None, batch: int = 64) -> None:
    """Grade the responses of a file of lines {id, verifier, reference, response}.

    Args:
        rows: A JSONL file on the machine that runs this.
        verifier: The verifier of rows that name none: a name, or file.py:function.
        save: The file for the verdicts, one line a row. Empty: NAME.verdicts.jsonl in the folder of the rows.
        batch: Rows graded together, 1 or more.
    """
    bind_lifetime()
    from verizero.pipeline.commands.verifiers.verify import verify_file

    out = Path(save) if save else Path(rows).with_suffix(".verdicts.jsonl")
    counts, first = verify_file(Path(rows), out, verifier, batch)
    show_table(
        "verdicts",
        first,
        f"The first {len(first)} of {counts.rows + counts.bad_lines} lines; all are in {in_markdown(out)}",
    )
    result = f"{counts.rows} rows, {counts.correct} right, {counts.infrastructure} not gradable"
    show_markdown(
        "dataset", f"{result}, {counts.bad_lines} lines that are no rows.\n\nVerdicts: {in_markdown(out)}\n", result
    )


@flow(name="audit-verifier", flow_run_name="{rows}", persist_result=False, validate_parameters=False)
def audit_verifier(rows: str, verifier: str | None = None, second: str | None = None, save: str | None = None) -> None:
    """Find false positives and negatives of a verifier on labelled rows, also by rewriting and by probes.

    Args:
        rows: A JSONL file of labelled rows on the machine that runs this.
        verifier: The verifier of rows that name none: a name, or file.py:function.
        second: Another verifier for a second opinion: a name, or file.py:function.
        save: A JSONL file for disagreements and wrong verdicts. Empty: none is written.
    """
    bind_lifetime()
    from verizero.pipeline.commands.verifiers.audit import audit, save_cases
    from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, good_rows
    from verizero.pipeline.errors import GradingError

    report = audit(good_rows(Path(rows), Defaults(verifier=verifier) if verifier else None), second=second)
    if save:
        save_cases(report, Path(save))
    show_markdown("audit", block_in_markdown(report), "Result of the audit")
    if not report.passed:
        raise GradingError(
            f"the audit of {verifier or 'the verifiers'} on {rows} found {len(report.errors)} errors, "
            f"{len(report.changed)} verdicts changed by rewriting and {len(report.rewarded)} rewarded probes; see its "
            "artifact"
        )


def form_request(recipe: str, **fields: Any) -> Request:
    """Return the recipe with the form's fields. Raises: ConfigError, in the first second of the run."""
    user_folder = os.environ.get(OWN_RECIPES)
    return request_of(recipe, user_folder=Path(user_folder) if user_folder else None, **fields)


def _train(request: Request, resume: Resume) -> None:
    if resume == "never" and flow_run.run_count > 1:
        resume = "auto"  # a retry continues the run that its first try began
    run_request(request, resume, RunLog.lines())
