"""A requested run, within a flow: in the flow's process, or by a group of ranks, for which this one loads no torch."""

from __future__ import annotations

import json
from typing import Any

from verizero.flows.artifacts import show_result
from verizero.pipeline.config.recipes import Request, Resume, run_folder
from verizero.pipeline.launch import launch
from verizero.pipeline.report.progress import Progress


def run_request(request: Request, resume: Resume, progress: Progress) -> dict[str, Any]:
    """Run the request in this process or as a group of ranks, and return the summary. Called within a flow.

    A group of ranks has processes of its own, so the flow shows its log and its result, but no stages or phases.
    """
    config, folder = request.config, run_folder(request.config)
    summary: dict[str, Any]
    if config.launch.kind == "none":
        from verizero.flows.train import CurrentFlow
        from verizero.pipeline.whole_run import train

        summary = train(config, request.base_dir, folder, resume, progress, CurrentFlow())
    else:
        launch(config.launch, request.train_arguments(resume), folder)
        summary = json.loads((folder / "summary.json").read_text())
    show_result(config, folder, summary)
    return summary
