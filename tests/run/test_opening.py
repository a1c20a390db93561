"""The checkpoint that a run continues from, and what becomes of those that it cannot use."""

import json

import pytest

from tests.stages.sessions import Heard
from verizero.pipeline.errors import CheckpointError, RunError
from verizero.pipeline.run.choose_checkpoint import choose_checkpoint
from verizero.pipeline.run.state import RunState, StoreMark, read_state
from verizero.pipeline.train.checkpoint import MANIFEST, save

LINE = b'{"kind":"step"}\n'


def run_with(folder, *serials):
    """A run with these checkpoints, each after as many lines as its number, and one line after the last."""
    for serial in serials:

        def write(into, serial=serial):
            state = RunState(store=StoreMark({"metrics.jsonl": serial * len(LINE), "rollouts.jsonl": 0}))
            (into / "state.json").write_text(json.dumps(state.to_json()))

        save(folder / "checkpoints", serial, write, keep=9)
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_bytes(LINE * (1 + max(serials, default=0)))
    (folder / "model").mkdir()
    return folder


def other_format(path):
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(manifest | {"format": 2}))


def torn(path):
    (path / "state.json").write_bytes(b"")


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("spoil", [other_format, torn])
@pytest.mark.parametrize("resume", ["auto", "must", "never"])
def test_a_run_without_a_usable_checkpoint_stops_and_nothing_of_it_changes(spoil, resume, tmp_path):
    folder = run_with(tmp_path / "run", 1, 2)
    for path in (folder / "checkpoints").iterdir():
        spoil(path)
    before = files(folder)
    with pytest.raises(RunError if resume == "never" else CheckpointError):
        choose_checkpoint(folder, resume, Heard(), [])
    assert files(folder) == before


def test_after_damage_the_older_one_is_used_and_what_came_after_it_is_kept(tmp_path):
    folder, heard = run_with(tmp_path / "run", 1, 2, 3), Heard()
    torn(folder / "checkpoints" / "00000003")
    assert choose_checkpoint(folder, "auto", heard, []) == folder / "checkpoints" / "00000002"
    aside = folder / "stale" / "1"
    assert files(aside)["checkpoints/00000003/state.json"] == b""
    assert (aside / "metrics.jsonl").read_bytes() == LINE * 2
    assert (aside / "model").is_dir()
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["00000001", "00000002"]
    assert heard.lines == [
        "refused checkpoint 00000003: state.json has 0 bytes, its manifest says "
        f"{(folder / 'checkpoints/00000002/state.json').stat().st_size}; using the one before it",
        f"continues from the older checkpoint 00000002; what came after it is kept in {aside}",
    ]
    assert choose_checkpoint(folder, "auto", Heard(), []) == folder / "checkpoints" / "00000002"


def test_lines_without_any_checkpoint_are_kept(tmp_path):
    """who deletes checkpoints to have room, or tries again before the first one, loses no line."""
    folder, heard = run_with(tmp_path / "run"), Heard()
    assert choose_checkpoint(folder, "auto", heard, []) is None
    assert (folder / "stale" / "1" / "metrics.jsonl").read_bytes() == LINE
    assert (folder / "stale" / "1" / "model").is_dir()
    (said,) = heard.lines
    assert "starts from the beginning; what an earlier try wrote is kept in" in said


def test_a_new_run_says_nothing(tmp_path):
    heard = Heard()
    assert choose_checkpoint(tmp_path / "run", "auto", heard, []) is None
    assert heard.lines == []
    assert not (tmp_path / "run" / "stale").exists()


@pytest.mark.parametrize("state", [{"stage": 3}, {"stage": {}, "made_up": 1}, {"stage": {"carried": [{}]}}, []])
def test_a_state_of_another_version_stops_the_run(state, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="written by another version of verizero"):
        read_state(tmp_path)
