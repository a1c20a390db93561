"""Show a run in Prefect's UI: log lines, artifacts and events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.states import Completed

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.report.progress import Lines, Progress
from verizero.pipeline.report.result import result_markdown, round_markdown, round_samples
from verizero.pipeline.shown import in_markdown


class RunLog(StringIO):
    """A text stream whose lines go to the log of the flow run."""

    def __init__(self) -> None:
        super().__init__()
        self.logger = get_run_logger()

    def write(self, text: str) -> int:
        """Log the text unless it is blank."""
        if text.strip():
            self.logger.info(text.strip())
        return len(text)

    @staticmethod
    def lines() -> Progress:
        """Return a progress whose lines go to the log of the current run."""
        return Lines(RunLog())


class Listener:
    """Send a session's events to Prefect, and make artifacts after each round."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        # Automations match events by this id.
        resource = {"prefect.resource.id": f"verizero.run.{self.name}", "prefect.resource.name": self.name}
        emit_event(event, resource, payload={**fields, "folder": str(self.folder)})
        if event == "verizero.round.completed":
            done = int(fields["round"])
            text = round_markdown(self.folder, fields.get("causes", ()))
            show_markdown(f"{self.name}-rounds", text, f"{in_markdown(self.name)} after round {done}")
            answers = round_samples(self.folder, str(fields["stage"]), done)
            show_table(f"{self.name}-samples", answers, f"Answers sampled in round {done}")


def show_markdown(key: str, text: str, description: str) -> None:
    """Make a markdown artifact of the current run; a key used before gets a new version."""
    create_markdown_artifact(key=slug(key), markdown=text, description=description)


def show_table(key: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
    """Make a table of the rows in Markdown: cells of a table artifact are Markdown in one UI, and not in the other."""
    heads = list(rows[0]) if rows else []
    cells = [heads, ["---"] * len(heads), *([_cell(row[head]) for head in heads] for row in rows)]
    show_markdown(key, "\n".join(f"| {' | '.join(line)} |" for line in cells if line), description)


def show_result(config: RunConfig, folder: Path, summary: dict[str, Any]) -> State[None]:
    """Make an artifact of the results before and after by domain; return a state that names the page.

    The path is for the browser's address bar: no browser opens a file by a link of a server's page.
    """
    page = folder.resolve() / "report.html"
    show_markdown("report", result_markdown(summary, page), f"Result of {in_markdown(config.name)}")
    return Completed(message=f"Report: {page}")


def _cell(value: Any) -> str:
    return in_markdown(value) if isinstance(value, str) else str(value)


def slug(name: str) -> str:
    """Return the name as a key of Prefect: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
