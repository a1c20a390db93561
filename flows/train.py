"""The run as a flow: each stage a subflow, each phase a task named by its step, the report an artifact."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, tags, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from flows.artifacts import Listener, show_link
from pipeline.config.recipes import Request
from pipeline.config.run import RunConfig
from pipeline.launch import launch
from pipeline.report.progress import Progress
from pipeline.report.result import result_markdown
from pipeline.report.round import run_tags
from pipeline.run.data import RunData
from pipeline.run.opening import Resume, opened, prepare_run
from pipeline.run.recorder import Recorder
from pipeline.run.session import Session
from pipeline.stages.train import finish, remaining, run_folder, run_items

FOLDED = frozenset({"step", "train", "evaluate"})
"""The phases that are tasks if the phases of a step are folded into one."""
PHASES = frozenset({"generate", "verify", "select", "update", "publish", "train", "evaluate"})
"""The phases that are tasks otherwise."""


@dataclass
class Job:
    """What one run of the flow is asked to do."""

    config: RunConfig
    base_dir: Path
    folder: Path
    resume: Resume
    progress: Progress
    data: Future[RunData]


class Box:
    """Carries a call into a task and its result out of it. Opaque: Prefect walks through containers it is given."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.result: Any = None
        self.seconds = 0.0
        """That the function itself took."""

    def open(self) -> None:
        """Do the call."""
        begin = time.perf_counter()
        try:
            self.result = self.function(*self.arguments)
        finally:
            self.seconds = time.perf_counter() - begin


def as_task(recorder: Recorder, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as a task named by the recorder's present step and the phase. Never retried: it has effects.

    What the call takes beyond the function itself is counted as a phase of its own, "prefect".
    """

    @task(name=phase, task_run_name="{where} " + phase, cache_policy=NO_CACHE, persist_result=False, retries=0)
    def run(where: str, box: Box) -> None:
        box.open()

    def call(*arguments: Any) -> Any:
        box = Box(function, arguments)
        begin = time.perf_counter()
        try:
            run(recorder.where, box)
        finally:
            beyond = time.perf_counter() - begin - box.seconds
            recorder.count("prefect", beyond)
            if phase == "step":  # its total was taken within
                recorder.count("total", beyond)
        return box.result

    return call


def run_job(job: Job) -> dict[str, Any]:
    """Run the flow; the summary."""
    config = job.config
    box: dict[str, Any] = {}

    @flow(name="train", flow_run_name=config.name, persist_result=False, validate_parameters=False)
    def train() -> None:
        box["summary"] = run_stages(job)

    with tags(*run_tags(config)):
        train()
    summary: dict[str, Any] = box["summary"]
    return summary


def run_stages(job: Job) -> dict[str, Any]:
    """Within a flow: each stage as a subflow, then the report as an artifact; the summary."""
    config = job.config
    data = job.data.result()
    with opened(config, job.base_dir, job.folder, job.resume, job.progress, data) as session:
        session.recorder.listener = Listener(config.name, job.folder)
        for stage, items in remaining(session.run, session.state):
            run_stage(session, stage, items)
        session.recorder.where = "write the"
        summary: dict[str, Any] = as_task(session.recorder, "report", finish)(session)
    show_result(config, job.folder, summary)
    return summary


def run_request(request: Request, resume: Resume, progress: Progress) -> dict[str, Any]:
    """Within a flow: the run as its recipe has it, in this process or as a group of ranks; the summary.

    Of a group, whose processes are their own, the flow shows what comes at the end, and its log.
    """
    config, folder = request.config, run_folder(request.config)
    if config.launch.kind == "none":
        data: Future[RunData] = Future()
        data.set_result(prepare_run(config, request.base_dir, folder))
        with tags(*run_tags(config)):  # its subflows and tasks have them
            return run_stages(Job(config, request.base_dir, folder, resume, progress, data))
    launch(config.launch, request.words(resume), folder)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    show_result(config, folder, summary)
    return summary


def show_result(config: RunConfig, folder: Path, summary: dict[str, Any]) -> None:
    """The report's artifacts: before and after by domain, and a link to the page."""
    page = folder / "report.html"
    create_markdown_artifact(
        key="report", markdown=result_markdown(summary, page), description=f"Result of {config.name}"
    )
    show_link(f"{config.name}-page", page, f"Report of {config.name}")


def run_stage(session: Session, stage: str, items: list[Any]) -> None:
    """One stage as a subflow."""
    folded, recorder = session.run.recipe.prefect.phases == "folded", session.recorder

    def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        is_task = phase in FOLDED if folded else phase in PHASES
        return as_task(recorder, phase, function) if is_task else function

    name = f"{session.run.recipe.name} {stage}"

    @flow(name=stage, flow_run_name=name, persist_result=False, validate_parameters=False)
    def run() -> None:
        run_items(session, items, wrap)

    run()
