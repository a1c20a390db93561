"""The flows that go on by schedule and ask a person: a campaign's next rounds, and the promotion of what came."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import FlowPauseTimeout
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from prefect.logging import get_run_logger
from prefect.states import Completed, Running
from pydantic import Field

from flows.forms import Recipe, asked, run_name
from flows.process_lifetime import settle
from flows.artifacts import RunLog, show_markdown
from pipeline.config.campaign import campaign_config
from pipeline.errors import ConfigError


@flow(name="rl-rounds", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def rl_rounds(
    campaign: str,
    recipe: Recipe,
    rounds: int = 1,
    max_rounds: int | None = None,
    max_tokens: int | None = None,
    max_hours: float | None = None,
    target: float | None = None,
    patience: int | None = None,
    registry: str | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006  (a form shows a default; nobody changes it)
) -> None:
    """The next rounds of a campaign: from its newest model, with the data dropped into its folder since.

    Give this deployment a schedule to have a firing every night. One that was killed is gone on with by the next.

    Args:
        campaign: The campaign's folder under campaigns/; letters, digits and . _ - only. It is begun when it is new.
        recipe: One of those in configs/ and of your own folder.
        rounds: RL rounds of one firing, 1 or more.
        max_rounds: Of all firings, 1 or more; then the campaign is over. Empty: no limit.
        max_tokens: Generated in RL by all firings, 1 or more. Empty: no limit.
        max_hours: Of training in all, above 0, looked at between firings. Empty: no limit.
        target: Held-out pass@1 that is enough, above 0 and at most 1 (mean of domains). Empty: none.
        patience: Over after so many firings without a better pass@1, 1 or more. Empty: never.
        registry: A folder: after each firing `promote` compares with its champion. Empty: not.
        overrides: Any other field of the recipe by its dotted name, e.g. {"rl.group_size": 16}.
    """
    settle()
    request = asked(recipe, overrides=overrides)
    limits = {"max_rounds": max_rounds, "max_tokens": max_tokens, "max_hours": max_hours, "target": target}
    config = campaign_config(name=campaign, rounds=rounds, patience=patience, **limits)
    from flows.train import run_request
    from pipeline.models.load import quiet
    from pipeline.commands.campaign import fire

    quiet()
    say = get_run_logger().info
    with tags(campaign):
        outcome = fire(config, request, lambda r: run_request(r, "auto", RunLog.lines()), due(), say)
    show_markdown(f"{campaign}-campaign", f"{outcome.said}\n", f"Campaign {campaign}: {outcome.did}")
    if outcome.run is not None and registry is not None and request.config.data.evaluation:
        own = {"run": str(outcome.run), "registry": str(Path(registry).resolve())}
        run_deployment("promote/verizero", parameters=own, timeout=0, as_subflow=False, tags=[campaign])


class Answer(RunInput):
    """What a person is asked; left as it is, nothing is promoted."""

    promote: bool = Field(False, description="Yes: it becomes the champion. No: the champion stays.")
    why: str = Field("", description="For the registry's record; may stay empty.")


@flow(name="promote", flow_run_name="{run}", persist_result=False, validate_parameters=False)
def promote(run: str, registry: str = "registry", answer_within_hours: float = 72.0) -> State[None]:
    """A finished run against the champion of a registry: better is promoted, worse kept back, between asks you.

    Args:
        run: The folder of a finished run, e.g. runs/demo.
        registry: The folder of promoted versions; begun when it is new.
        answer_within_hours: How long a question waits, above 0; then the champion stays.
    """
    settle()
    if not 0 < answer_within_hours < math.inf:
        raise ConfigError(f"answer_within_hours must be above 0, got {answer_within_hours!r}; the default is 72")
    from pipeline.commands import promote as promotion

    folder = Path(registry)
    found = promotion.compare_with_champion(Path(run), folder)
    said = f"{found.in_words}.\n\n{promotion.both_curves(found)}\n"
    show_markdown("promotion", said, found.in_words)
    decided_by, yes = "interval" if found.verdict != "first" else "first", found.verdict in ("first", "better")
    if found.verdict == "between":
        asked_for = Answer.with_initial_data(description=f"{said}\nPromote it all the same?", promote=False, why="")
        try:
            answer = pause_flow_run(wait_for_input=asked_for, timeout=math.ceil(answer_within_hours * 3600))
            yes, decided_by = answer.promote, f"a person{': ' + answer.why if answer.why else ''}"
        except FlowPauseTimeout:
            decided_by = f"default: nobody answered within {answer_within_hours:g} h"
            go_on()
    if yes:
        return Completed(message=f"promoted as {promotion.promote(found, folder, decided_by)} by {decided_by}")
    promotion.keep_back(found, folder, decided_by)
    return Completed(message=f"kept back by {decided_by}; the champion stays")


def go_on() -> None:
    """Take the present run out of a pause that nobody ended, which the server calls a failure; here it is an answer."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(context.flow_run.id, Running(), force=True)


def due() -> datetime | None:
    """When the schedule wanted the present run; None where a person started it."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    return run.expected_start_time if run is not None and run.auto_scheduled else None
