"""The flows for schedules and approvals: a campaign's next rounds, and the promotion of their model."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import FlowPauseTimeout
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Running
from pydantic import Field

from verizero.flows.artifacts import RunLog, show_markdown
from verizero.flows.forms import Overrides, Recipe, form, form_request, run_name, run_request
from verizero.pipeline.config.campaign import campaign_config, settings
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import in_markdown, one_line


@form("rl-rounds", run_name, settings())
def rl_rounds(
    campaign: str, recipe: Recipe, registry: str | None = None, overrides: Overrides = "", **limits: Any
) -> None:
    """Train the next rounds of a campaign, from its newest model and with the new files in its data folder.

    Give this deployment a schedule, e.g. one run every night. A killed run is continued by the next.

    Args:
        campaign: The campaign's folder under campaigns/; letters, digits and . _ - only. A new name begins a campaign.
        recipe: A recipe of configs/ or of your own folder.
        registry: Folder of a registry; after each run `promote` compares with its champion. Empty: no comparison.
        overrides: Other fields of the recipe, e.g. rl.group_size=16.
    """
    request = form_request(recipe, overrides=overrides)
    config = campaign_config(name=campaign, **limits)
    from verizero.pipeline.commands.campaign import fire

    say = get_run_logger().info
    with tags(campaign):
        outcome = fire(config, request, lambda r: run_request(r, "auto", RunLog.lines()), due(), say)
    show_markdown(
        f"{campaign}-campaign", f"{in_markdown(outcome.message)}\n", f"Campaign {in_markdown(campaign)}: {outcome.did}"
    )
    if outcome.run is not None and registry is not None and request.config.data.evaluation:
        parameters = {"run": str(outcome.run), "registry": str(Path(registry).resolve())}
        # Not waited for, and no subflow: its question may stay open for days, beyond the end of this run.
        run_deployment("promote/promote", parameters=parameters, timeout=0, as_subflow=False, tags=[campaign])


class Answer(RunInput):
    """The form of the question; its initial answer is no."""

    promote: bool = Field(False, description="Yes: it becomes the champion. No: the champion stays.")
    why: str = Field("", description="A reason for the registry's record; may stay empty.")


@form("promote", "{run}")
def promote(run: str, registry: str = "registry", answer_within_hours: float = 72.0) -> State[None]:
    """Compare a finished run with a registry's champion: promote it, keep it back, or ask you if neither is clear.

    Args:
        run: The folder of a finished run, e.g. runs/demo.
        registry: The folder of promoted versions; it is created if it does not exist.
        answer_within_hours: Hours that a question waits for your answer, above 0; then the champion stays.
    """
    if not 0 < answer_within_hours < math.inf:
        raise ConfigError(f"answer_within_hours must be above 0, got {answer_within_hours!r}; the default is 72")
    from verizero.pipeline.commands import promote as promotion

    folder = Path(registry)
    comparison = promotion.compare_with_champion(Path(run), folder)
    page = in_markdown(comparison.run / "report.html")
    text = f"{in_markdown(comparison.in_words)}\n\nIts page: {page}\n"
    show_markdown("promotion", text, in_markdown(comparison.in_words))
    is_better, decided_by = comparison.decides, comparison.decided_by or "a person"
    if is_better is None:
        # The UI's list and page of runs show a run's name, and of a pause no text.
        rename(f"Promote? {comparison.in_words}")
        form = Answer.with_initial_data(description=f"{text}\nPromote it all the same?", promote=False, why="")
        try:
            # The process stays and waits. Prefect takes whole seconds only.
            answer = pause_flow_run(wait_for_input=form, timeout=math.ceil(answer_within_hours * 3600))
            is_better, decided_by = answer.promote, f"a person{': ' + answer.why if answer.why else ''}"
        except FlowPauseTimeout:
            decided_by = f"default: nobody answered within {answer_within_hours:g} h"
            resume_unanswered()
        rename(run)
    if is_better:
        # A state with a message shows the decision in the UI's list of runs.
        return Completed(message=f"promoted as {promotion.promote(comparison, folder, decided_by)} by {decided_by}")
    promotion.keep_back(comparison, folder, decided_by)
    return Completed(message=f"kept back by {decided_by}; the champion stays")


def rename(name: str) -> None:
    """Give the current run another name in the UI."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), name=one_line(name))


def resume_unanswered() -> None:
    """Set the run to Running after a pause without an answer. Prefect marks such a run Failed; here it means no."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(context.flow_run.id, Running(), force=True)


def due() -> datetime | None:
    """Return the time at which a schedule wanted the current run; None if a person started it."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    return run.expected_start_time if run is not None and run.auto_scheduled else None
