"""The flows that people start from a form, and what each field of the form means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from flows.process_lifetime import settle
from flows.artifacts import RunLog, show_markdown, show_table
from pipeline.config.recipes import Request, asked_for, recipe_names

OWN_RECIPES = "VERIZERO_RECIPES"
"""Names the user's folder of recipes."""

if TYPE_CHECKING:
    Recipe = str
else:
    Recipe = Literal[tuple(recipe_names(Path(os.environ[OWN_RECIPES]) if OWN_RECIPES in os.environ else None))]
Resume = Literal["auto", "never", "must"]


def run_name() -> str:
    """What a run is called in the UI: the name asked for, else the recipe's."""
    given = flow_run.parameters
    return str(given.get("run_name") or given.get("campaign") or given.get("recipe") or flow_run.flow_name)


@flow(name="train", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def train(
    recipe: Recipe,
    rounds: int | None = None,
    stages: list[str] | None = None,
    resume: Resume = "auto",
    run_name: str | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006  (a form shows a default; nobody changes it)
) -> None:
    """All stages of a recipe: data, SFT, rounds of RL, evaluation, report.

    Args:
        recipe: One of those in configs/ and of your own folder.
        rounds: RL rounds, 1 or more. Empty: as many as the recipe has.
        stages: Only these stages of the recipe, by name, in this order. Empty: all.
        resume: auto: go on from the newest checkpoint of this run name, or begin. never: refuse a name that holds a
            run. must: refuse a name that holds none.
        run_name: The run's folder; letters, digits and . _ - only. Empty: the recipe's name. A run that is done under
            that name is not run again.
        overrides: Any other field of the recipe by its dotted name, e.g. {"rl.group_size": 16}. docs/recipes.md has
            all, with bounds.
    """
    settle()
    request = asked(recipe, rounds=rounds, stages=stages, run_name=run_name, overrides=overrides)
    _train(request, resume)


@flow(name="sft", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def sft(
    recipe: Recipe,
    resume: Resume = "auto",
    run_name: str | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006
) -> None:
    """Supervised fine-tuning alone, with the evaluation before and after it.

    Args:
        recipe: One of those in configs/ and of your own folder; it must have a section `sft`.
        resume: auto: go on from the newest checkpoint of this run name, or begin. never: refuse a name that holds a
            run. must: refuse a name that holds none.
        run_name: The run's folder; letters, digits and . _ - only. Empty: the recipe's name with -sft.
        overrides: Any other field of the recipe by its dotted name, e.g. {"sft.steps": 200}.
    """
    settle()
    first = asked(recipe, overrides=overrides)
    name = run_name or f"{first.config.name}-sft"
    _train(asked(recipe, stages=["sft"], run_name=name, overrides=overrides), resume)


@flow(name="evaluate", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def evaluate(
    recipe: Recipe,
    model: str | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006
) -> None:
    """A model on a recipe's held-out prompts; nothing is trained and nothing kept but the artifact.

    Args:
        recipe: One of those in configs/ and of your own folder; its section data.evaluation is asked.
        model: A Hugging Face folder, e.g. runs/demo/model. Empty: the recipe's own model.
        overrides: Any other field of the recipe by its dotted name, e.g. {"evaluation.k": 16}.
    """
    settle()
    chosen = {"model.path": model, "model.create": None} if model else {}
    request = asked(recipe, overrides={**overrides, **chosen})
    from pipeline.models.load import quiet
    from pipeline.report.result import evaluation_markdown
    from pipeline.stages.train import evaluate_model

    quiet()
    domains = evaluate_model(request.config, request.base_dir, RunLog.lines())
    show_markdown("evaluation", evaluation_markdown(domains), f"{model or recipe} on the prompts of {recipe}")


@flow(name="compare", flow_run_name="{folder}", persist_result=False, validate_parameters=False)
def compare(
    recipes: list[Recipe],
    seeds: int = 3,
    start: str | None = None,
    tokens: int | None = None,
    folder: str = "runs/compare",
    overrides: dict[str, Any] = {},  # noqa: B006
) -> None:
    """Recipes side by side: the same start, the same prompts, the same budget of tokens, and one page of what came.

    Args:
        recipes: Two or more that differ in their algorithm only.
        seeds: Runs of each recipe, 1 or more.
        start: A Hugging Face folder that all start from. Empty: made by SFT, once a seed.
        tokens: Generated tokens of each run, 1 or more. Empty: as many as its rounds take.
        folder: Where the runs and the page go.
        overrides: Any other field, of each recipe, by its dotted name.
    """
    settle()
    requests = [asked(recipe, overrides=overrides) for recipe in recipes]
    from pipeline.report.compare_page import text_table
    from pipeline.commands.compare import compare as run_compare

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
    show_markdown("compare", f"```\n{text_table(rows)}\n```\n\nPage: `{page}`\n", "What the runs reached")


@flow(name="verify-dataset", flow_run_name="{rows}", persist_result=False, validate_parameters=False)
def verify_dataset(rows: str, verifier: str | None = None, save: str | None = None, batch: int = 64) -> None:
    """Grade the responses of a file, line by line: {id, verifier, reference, response}.

    Args:
        rows: A JSONL file on the machine that runs this.
        verifier: For rows that name none: a name, or file.py:function.
        save: Where the verdicts go, one line a row. Empty: beside the rows, as NAME.verdicts.jsonl.
        batch: Rows graded together, 1 or more.
    """
    settle()
    from pipeline.scoring.verify import verify_file

    out = Path(save) if save else Path(rows).with_suffix(".verdicts.jsonl")
    counts, first = verify_file(Path(rows), out, verifier, batch)
    show_table("verdicts", first, f"The first {len(first)} of {counts.rows + counts.bad_lines} lines; all: {out}")
    said = f"{counts.rows} rows, {counts.correct} right, {counts.infrastructure} not gradable"
    show_markdown("dataset", f"{said}, {counts.bad_lines} lines that are no rows.\n\nVerdicts: `{out}`\n", said)


@flow(name="audit-verifier", flow_run_name="{rows}", persist_result=False, validate_parameters=False)
def audit_verifier(rows: str, verifier: str | None = None, second: str | None = None, save: str | None = None) -> None:
    """False positives and negatives of a verifier on labelled rows, rewritings that must not matter, and probes.

    Args:
        rows: A JSONL file of labelled rows on the machine that runs this.
        verifier: For rows that name none: a name, or file.py:function.
        second: A second verifier for a second opinion: a name, or file.py:function.
        save: Where disagreements and wrong verdicts go as JSONL. Empty: nowhere.
    """
    settle()
    from pipeline.errors import GradingError
    from pipeline.scoring.audit import audit, save_cases
    from pipeline.scoring.rows import Defaults, good_rows

    report = audit(good_rows(Path(rows), Defaults(verifier=verifier) if verifier else None), second=second)
    if save:
        save_cases(report, Path(save))
    show_markdown("audit", f"```\n{report}\n```\n", "What the audit found")
    if not report.passed:
        raise GradingError(
            f"the audit of {verifier or 'the verifiers'} on {rows} found {len(report.errors)} errors, "
            f"{len(report.changed)} verdicts changed by rewriting and {len(report.rewarded)} rewarded probes; see its "
            "artifact"
        )


def asked(recipe: str, **fields: Any) -> Request:
    """What the form asks for. Raises: ConfigError, in the first second of the run."""
    own = os.environ.get(OWN_RECIPES)
    return asked_for(recipe, own=Path(own) if own else None, **fields)


def _train(request: Request, resume: Resume) -> None:
    from flows.train import run_request
    from pipeline.models.load import quiet

    quiet()
    if resume == "never" and flow_run.run_count > 1:
        resume = "auto"  # a retry goes on from what its own first try left
    run_request(request, resume, RunLog.lines())
