"""The run as a flow: each stage a subflow, each phase a task named by its step, the report an artifact."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE

from verizero.flows.artifacts import Listener, show_result
from verizero.pipeline.config.recipes import Request, Resume
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.models.load import quiet
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.round import run_tags
from verizero.pipeline.run.data import RunData
from verizero.pipeline.run.opening import opened, prepare_run
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.session import Session
from verizero.pipeline.whole_run import finish, remaining, run_items

FOLDED = frozenset({"step", "train", "evaluate"})
"""Phases that are tasks with `prefect.phases: folded`, where a step is one task."""
PHASES = frozenset({"generate", "verify", "select", "update", "publish", "train", "evaluate"})
"""Phases that are tasks without folding."""


@dataclass
class FlowJob:
    """A run of the flow: its recipe, folder and data."""

    config: RunConfig
    base_dir: Path
    folder: Path
    resume: Resume
    progress: Progress
    data: Future[RunData]


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

    @task(name=phase, task_run_name="{where} " + phase, cache_policy=NO_CACHE, persist_result=False, retries=0)
    def run(where: str, opaque: OpaqueCall) -> None:
        opaque.make()

    def call(*arguments: Any) -> Any:
        opaque = OpaqueCall(function, arguments)
        begin = time.perf_counter()
        try:
            # The call reads the result from the object, so that Prefect neither hashes nor stores it.
            run(recorder.where, opaque)
        finally:
            beyond = time.perf_counter() - begin - opaque.seconds
            recorder.count("prefect", beyond)
            if phase == "step":  # the step has counted its total before the task ended
                recorder.count("total", beyond)
        return opaque.result

    return call


def run_job(job: FlowJob) -> dict[str, Any]:
    """Run the flow and return the run's summary."""
    config = job.config
    summary: dict[str, Any] = {}  # a result that the flow returned would be kept by Prefect

    @flow(name="train", flow_run_name=config.name, persist_result=False, validate_parameters=False)
    def train() -> None:
        summary.update(run_stages(job))

    with tags(*run_tags(config)):
        train()
    return summary


def run_stages(job: FlowJob) -> dict[str, Any]:
    """Run each stage as a subflow, and show the report as an artifact; return the summary. Called within a flow."""
    config = job.config
    # The data's errors are raised here, inside the flow, so that bad data makes the flow Failed in the UI.
    with opened(config, job.base_dir, job.folder, job.resume, job.progress, job.data.result) as session:
        session.recorder.listener = Listener(config.name, job.folder)
        for stage, items in remaining(session.run, session.state):
            run_stage(session, stage, items)
        session.recorder.where = "write the"
        summary: dict[str, Any] = as_task(session.recorder, "report", finish)(session)
    show_result(config, job.folder, summary)
    return summary


def run_in_flow(request: Request, folder: Path, resume: Resume, progress: Progress) -> dict[str, Any]:
    """Run the request in this process and return the summary. Called within a flow."""
    quiet()
    data: Future[RunData] = Future()
    data.set_result(prepare_run(request.config, request.base_dir, folder))
    return run_stages(FlowJob(request.config, request.base_dir, folder, resume, progress, data))


def run_stage(session: Session, stage: str, items: list[Any]) -> None:
    """Run a stage as a subflow."""
    tasks = FOLDED if session.run.recipe.prefect.phases == "folded" else PHASES

    def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return as_task(session.recorder, phase, function) if phase in tasks else function

    name = f"{session.run.recipe.name} {stage}"

    @flow(name=stage, flow_run_name=name, persist_result=False, validate_parameters=False)
    def run() -> None:
        run_items(session, items, wrap)

    run()
