"""The append-only files of a run."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.runs import ROLLOUT
from verizero.pipeline.errors import DataError, RunError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.report.row_types import StepRow, rollout_row
from verizero.pipeline.report.run_files import read_metrics, read_rollouts
from verizero.pipeline.report.store import FILES, Store

TEXT = st.text(st.characters(exclude_categories=[]), max_size=20)  # lone surrogates, newlines and all


def fill(store, numbers):
    for i in numbers:
        store.metrics(step_row(i))
        store.rollouts(rollout_row(ROLLOUT | {"step": i, "response": f"é\n{j}\ud800"}, "") for j in range(i % 3))


def step_row(step):
    return StepRow(stage="rl", round=1, step=step, metrics={"reward": step / 7}, time={})


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("gone", ["renamed", "made again", "one file deleted"])
def test_a_folder_that_is_taken_away_is_named_at_the_next_write(gone, tmp_path):
    folder = tmp_path / "run"
    store = Store(folder)
    fill(store, range(2))
    if gone == "one file deleted":
        (folder / "metrics.jsonl").unlink()
    else:
        folder.rename(tmp_path / "other")
    if gone == "made again":
        Store(folder).close()
    for write in (lambda: store.metrics(step_row(2)), store.sync):
        with pytest.raises(RunError, match=f"{folder}: somebody has deleted or renamed .* give it its name back"):
            write()


@pytest.mark.parametrize("torn", [b"", b'{"step": 9', b"\x00\x00\x00", b'{"step": 9}\n'])
@pytest.mark.parametrize("cut_at", [0, 1, 3])
def test_cut_back_and_written_again_the_files_have_the_same_bytes(cut_at, torn, tmp_path):
    """As a run that was killed after its last checkpoint, in the middle of a line or not."""
    straight = Store(tmp_path / "straight")
    fill(straight, range(6))
    straight.close()
    killed = Store(tmp_path / "killed")
    fill(killed, range(cut_at))
    lengths, sums = killed.sync(), killed.sums()
    assert lengths == {name: len(data) for name, data in bytes_of(tmp_path / "killed").items()}
    fill(killed, range(cut_at, 5))
    killed.close()
    for name in FILES:
        with (tmp_path / "killed" / name).open("ab") as file:
            file.write(torn)
    again = Store(tmp_path / "killed")
    again.cut(*json.loads(json.dumps([lengths, sums])))
    fill(again, range(cut_at, 6))
    assert again.sync() == {name: len(data) for name, data in bytes_of(tmp_path / "straight").items()}
    again.close()
    assert bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "straight")
    assert again.sums() == straight.sums()


@pytest.mark.parametrize("short", FILES)
def test_a_shorter_file_is_refused_by_name_and_none_is_cut(short, tmp_path):
    store = Store(tmp_path)
    fill(store, range(4))
    lengths = store.sync()
    fill(store, range(4, 6))
    before = bytes_of(tmp_path)
    asked = {**lengths, short: len(before[short]) + 1}
    with pytest.raises(RunError, match=rf"{short}.* {len(before[short])} .* {asked[short]}"):
        store.cut(asked, {})
    assert bytes_of(tmp_path) == before
    store.cut(lengths, {})
    assert store.sync() == lengths
    store.cut({}, {})
    assert set(bytes_of(tmp_path).values()) == {b""}, "a run that begins again"
    store.close()


def swap(lines):
    lines.insert(1, lines.pop(2))


DAMAGED = {
    "digit flipped": (lambda lines: lines.__setitem__(2, lines[2].replace(b"2", b"3", 1)), 3),
    "last digit flipped": (lambda lines: lines.__setitem__(3, lines[3].replace(b"3", b"4", 1)), 4),
    "garbage line": (lambda lines: lines.__setitem__(1, b"garbage\n"), 2),
    "garbage between": (lambda lines: lines.insert(1, b"garbage\n"), 2),
    "line gone": (lambda lines: lines.pop(0), 1),
    "lines swapped": (swap, 2),
    "line twice": (lambda lines: lines.insert(1, lines[0]), 2),
    "newline gone": (lambda lines: lines.__setitem__(1, lines[1].rstrip()), 2),
    "zeros": (lambda lines: lines.__setitem__(3, lines[3][:-20] + bytes(20)), 4),
    "emptied": (lambda lines: lines.clear(), 1),
    "line ends of another system": (lambda lines: lines.__setitem__(0, lines[0].replace(b"\n", b"\r\n")), 1),
}
"""Name -> what changes the lines of a file, and the first line that differs."""


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("case", list(DAMAGED))
def test_a_changed_line_is_named_and_nothing_is_cut(case, name, tmp_path):
    store = Store(tmp_path)
    if name == "metrics.jsonl":
        fill(store, range(4))
    else:
        store.rollouts(rollout_row(ROLLOUT | {"step": i}, "") for i in range(4))
    lengths, sums = store.sync(), store.sums()
    fill(store, range(4, 6))
    store.close()
    change, line = DAMAGED[case]
    data = (tmp_path / name).read_bytes()
    lines = data[: lengths[name]].splitlines(keepends=True)
    change(lines)
    damaged = b"".join(lines) + data[lengths[name] :]
    (tmp_path / name).write_bytes(damaged)
    again = Store(tmp_path)
    with pytest.raises(RunError, match=rf"line {line} of .*{name} (was changed|is missing).*restore the file"):
        again.cut(lengths, sums)
    assert (tmp_path / name).read_bytes() == damaged
    (tmp_path / name).write_bytes(data)
    again.cut(lengths, sums)
    assert (again.sync(), again.sums()) == (lengths, sums)
    again.close()


def test_rows_are_readable_as_soon_as_they_are_appended(tmp_path):
    store = Store(tmp_path)
    for i in range(3):
        store.metrics(step_row(i))
        assert read_metrics(tmp_path) == [step_row(j) for j in range(i + 1)]
    store.close()


@pytest.mark.run
@settings(max_examples=60)
@given(rows=st.lists(st.tuples(TEXT, st.floats(allow_nan=False, allow_infinity=False), st.none() | TEXT)))
def test_rows_read_back_as_they_were_written(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder)
    written = [rollout_row(ROLLOUT | {"response": r, "score": s, "extracted": e}, "") for r, s, e in rows]
    store.rollouts(written)
    store.close()
    assert list(read_rollouts(folder)) == written
    assert (folder / "rollouts.jsonl").read_bytes().count(b"\n") == len(rows)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_has_not_is_refused_and_nothing_written(value, tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="JSON compliant"):
        store.rollouts(rollout_row(ROLLOUT | {"reward": reward}, "") for reward in (1.0, value))
    store.close()
    assert (tmp_path / "rollouts.jsonl").read_bytes() == b""


def test_a_torn_last_line_is_left_out_wherever_it_tore(tmp_path):
    whole = '{"step": 1, "text": "é\\ud800"}\n'.encode()
    path = tmp_path / "x.jsonl"
    for end in range(len(whole) - 2):
        path.write_bytes(whole + whole[:end])
        assert read_jsonl(path) == [{"step": 1, "text": "é\ud800"}]
    path.write_bytes(whole + whole[:-1])  # only its newline is missing
    assert len(read_jsonl(path)) == 2


@pytest.mark.parametrize("damage", [b"{", b"\xff\xff", b"[1]", b"3"])
def test_a_damaged_line_before_the_last_is_named(damage, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + damage + b'\n{"a": 2}\n')
    with pytest.raises(DataError, match=r"line 3 of .*x\.jsonl"):
        read_jsonl(path)
