"""What is shown of a run changes nothing that it writes."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.report.progress import Lines, Progress, Silent
from verizero.pipeline.whole_run import train

pytestmark = pytest.mark.integration  # whole runs

FEW = ("sft.steps=3", "rl.rounds=1", "rl.steps_per_round=2", "rl.select.keep=all")
MEASURED = ("time", "speed", "memory")


def written_by(folder: Path, progress: Progress) -> dict[str, Any]:
    """Return the files of a short run whose bytes depend on nothing but the recipe."""
    train(tiny(overrides=FEW), folder, folder, "auto", progress)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.suffix in (".safetensors", ".pt")}
    assert len(files) > 2
    return {
        "metrics": [{k: v for k, v in row.items() if k not in MEASURED} for row in rows],
        "rollouts": (folder / "rollouts.jsonl").read_bytes(),
        **{str(path): content for path, content in files.items()},
    }


class Kept(Silent):
    """Keeps what was under way."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def under_way(self, what: str, done: int = 0, total: int = 0) -> None:
        self.calls.append((what, done, total))


def test_a_run_writes_the_same_bytes_whether_it_is_shown_or_not(tmp_path: Path) -> None:
    out, kept = StringIO(), Kept()
    lines = Lines(out, beats=True, every_s=0.01)
    shown = written_by(tmp_path / "shown", lines)
    lines.close()
    assert len(out.getvalue().splitlines()) > 20
    assert shown == written_by(tmp_path / "quiet", kept)
    activities = list(dict.fromkeys(what for what, _, _ in kept.calls))
    assert activities[:3] == ["loads the data", "loads the model", "starts the engine"]
    assert activities[-1] == "writes the final model and the report"
    for what, total in (("evaluate before training: generate", 6 * 3), ("round 1 step 2: generate", 3 * 6)):
        counts = [done for name, done, all_of_them in kept.calls if name == what and all_of_them == total]
        assert counts == sorted(counts)
        assert len(counts) > 2
        assert counts[-1] == total
    assert "round 1 step 2: update" in activities
