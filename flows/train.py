"""The run in Prefect: the run a flow, each stage a subflow, each phase a task, the report an artifact.

The order of a run's parts is in `pipeline/whole_run.py`, which calls the methods here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Completed, Paused

from verizero.flows.artifacts import Listener, show_result
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.report.result import run_tags
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.session import Session

TASKS = frozenset({"generate", "verify", "select", "update", "publish", "train", "evaluate"})
"""Phases that are tasks."""


class OpaqueCall:
    """A call whose arguments and result Prefect does not see: it would walk through every container among them."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.result: Any = None
        self.seconds = 0.0
        """Time that the function itself took."""

    def make(self) -> None:
        """Call the function."""
        begin = time.perf_counter()
        try:
            self.result = self.function(*self.arguments)
        finally:
            self.seconds = time.perf_counter() - begin


def as_task(recorder: Recorder, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as a task, named by the recorder's current step and the phase. Never retried: it has effects.

    Seconds that the task takes besides the function are counted as a phase of its own, "prefect".
    """

    @task(name=phase, task_run_name="{step_label} " + phase, cache_policy=NO_CACHE, persist_result=False, retries=0)
    def run(step_label: str, opaque: OpaqueCall) -> None:
        opaque.make()

    def call(*arguments: Any) -> Any:
        opaque = OpaqueCall(function, arguments)
        begin = time.perf_counter()
        try:
            # The call reads the result from the object, so that Prefect neither hashes nor stores it.
            run(recorder.step_label, opaque)
        finally:
            recorder.add_seconds("prefect", time.perf_counter() - begin - opaque.seconds)
        return opaque.result

    return call


class CurrentFlow:
    """Shows a run within the flow that calls it, which shows the result itself."""

    def run(self, config: RunConfig, folder: Path, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call the function; stages and tasks inherit the run's tags."""
        with tags(*run_tags(config)):
            return function()

    def stage(self, session: Session, stage: str, function: Callable[[PhaseWrapper], None]) -> None:
        """Call the function as a subflow, with phases as tasks, and make artifacts of the run's events."""
        config, recorder = session.run.recipe, session.recorder
        recorder.listener = Listener(config.name, session.run.folder)

        def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
            return as_task(recorder, phase, function) if phase in TASKS else function

        run_id: UUID | None = None
        state: State[Any] = Paused(name="Suspended")

        def run() -> None:
            nonlocal run_id, state
            run_id = UUID(flow_run.id)
            function(wrap)
            state = Completed()

        # Retry finds the stage's earlier run by this name; with one name for all it would take the first stage's.
        run.__qualname__ = stage
        own = flow(name=stage, flow_run_name=f"{config.name} {stage}", persist_result=False, validate_parameters=False)
        try:
            own(run)()
        except Pause:
            # Prefect leaves a stage of a suspended run Running. Resume continues this one unless it is complete.
            if run_id is not None:
                with get_client(sync_client=True) as client:
                    client.set_flow_run_state(run_id, state, force=True)
            raise

    def report(self, session: Session, function: Callable[[Session], dict[str, Any]]) -> dict[str, Any]:
        """Call the function as a task."""
        session.recorder.step_label = "write the"
        summary: dict[str, Any] = as_task(session.recorder, "report", function)(session)
        return summary


class NewFlow(CurrentFlow):
    """Shows a run as a flow of its own."""

    def run(self, config: RunConfig, folder: Path, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call the function as a flow, and show the report as an artifact."""
        summary: dict[str, Any] = {}  # a result that the flow returned would be kept by Prefect

        @flow(name="train", flow_run_name=config.name, persist_result=False, validate_parameters=False)
        def train() -> State[None]:
            summary.update(function())
            return show_result(config, folder, summary)

        with tags(*run_tags(config)):
            train()
        return summary
