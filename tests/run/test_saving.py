"""Checkpoints of a run where the disk is full."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import RunError
from pipeline.run.saving import save
from pipeline.train import checkpoint
from tests.stages.sessions import session_of


def test_a_full_disk_ends_the_run_and_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of(tmp_path) as session:
        save(session)

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(RunError, match="the disk is full; free space and start the same command again"):
            save(session)
        monkeypatch.undo()
        path, refused = checkpoint.newest(session.run.folder / "checkpoints")
        assert path is not None
        assert path.name == "00000000"
        assert not refused
        save(session)
        assert checkpoint.newest(session.run.folder / "checkpoints")[0] == path.parent / "00000001"
