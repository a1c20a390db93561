"""What a run shows in the UI beside its states: log lines, artifacts, events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.events import emit_event
from prefect.logging import get_run_logger

from pipeline.report.progress import Lines, Progress
from pipeline.report.round import round_markdown, round_samples


class RunLog(StringIO):
    """Takes lines into the log of the flow run."""

    def __init__(self) -> None:
        super().__init__()
        self.logger = get_run_logger()

    def write(self, text: str) -> int:
        """Log what is not blank."""
        if text.strip():
            self.logger.info(text.strip())
        return len(text)

    @staticmethod
    def lines() -> Progress:
        """Progress as lines of the log of the present run."""
        return Lines(RunLog())


class Listener:
    """Passes a session's events on to Prefect; after each round, also its artifacts."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        resource = {"prefect.resource.id": f"verizero.run.{self.name}", "prefect.resource.name": self.name}
        emit_event(event, resource, payload={**fields, "folder": str(self.folder)})
        if event == "verizero.round.completed":
            done = int(fields["round"])
            show_markdown(f"{self.name}-rounds", round_markdown(self.folder), f"{self.name} after round {done}")
            answers = round_samples(self.folder, str(fields["stage"]), done)
            show_table(f"{self.name}-samples", answers, f"Answers sampled in round {done}")


def show_markdown(key: str, text: str, description: str) -> None:
    """A markdown artifact of the present run; a key used again makes a new version of it."""
    create_markdown_artifact(key=slug(key), markdown=text, description=description)


def show_table(key: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
    """A table artifact of the present run. Half a surrogate pair, which a model may write, is shown as its escape."""
    plain = json.loads(json.dumps(list(rows)).encode("utf-8", "backslashreplace"))
    create_table_artifact(key=slug(key), table=plain, description=description)


def show_link(key: str, path: Path, text: str) -> None:
    """A link to a file on the machine that ran this."""
    create_link_artifact(key=slug(key), link=path.resolve().as_uri(), link_text=text)


def slug(name: str) -> str:
    """A key as Prefect has them: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
