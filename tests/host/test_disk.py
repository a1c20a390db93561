"""Files and folders whole or not at all, the lock of a folder, and a full disk reported with its remedy."""

import errno
import os
import stat

import pytest

from verizero.pipeline.config.sections import LaunchConfig
from verizero.pipeline.errors import InUse, RunError
from verizero.pipeline.host.disk import (
    PARTIAL,
    REPLACED,
    json_text,
    locked,
    numbered_jsonl,
    parse_json,
    replace_folder,
    require_plain,
    restore_folders,
)
from verizero.pipeline.launch import launch
from verizero.pipeline.run.opening import folder_of_rank
from verizero.pipeline.train.ranks import Ranks


def text_of(folder):
    return (folder / "x").read_text()


@pytest.mark.parametrize("leaves", [[], [PARTIAL], [REPLACED], [PARTIAL, REPLACED]])
@pytest.mark.parametrize("error", [None, OSError(errno.ENOSPC, "full"), OSError(errno.EACCES, "no"), ValueError("x")])
@pytest.mark.parametrize("has_old", [False, True])
def test_a_folder_is_replaced_whole_or_not_at_all(has_old, error, leaves, tmp_path):
    """`leaves`: what a writer that was killed before left there."""
    final = tmp_path / "parent" / "model"
    for folder in [final] * has_old + [final.with_name(prefix + "model") for prefix in leaves]:
        folder.mkdir(parents=True)
        (folder / "x").write_text("old" if folder == final else folder.name)
    (tmp_path / "parent").mkdir(exist_ok=True)
    (tmp_path / "parent" / "other").mkdir()

    def replace():
        with replace_folder(final, "writing the model") as partial:
            assert list(partial.iterdir()) == []
            (partial / "x").write_text("new")
            assert not final.exists() or text_of(final) != "new"
            if error is not None:
                raise error

    if error is None:
        replace()
        assert text_of(final) == "new"
    else:
        with pytest.raises(RunError if isinstance(error, OSError) else ValueError):
            replace()
        assert final.exists() == (has_old or REPLACED in leaves)
        if final.exists():
            assert text_of(final) == ("old" if has_old else REPLACED + "model")
    assert {p.name for p in final.parent.iterdir()} <= {"model", "other"}


def test_killed_between_the_renames_the_old_folder_comes_back(tmp_path, monkeypatch):
    final = tmp_path / "model"
    with replace_folder(final, "writing") as partial:
        (partial / "x").write_text("old")
    rename = os.rename

    def killed(old, new):
        if new == final:
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt), replace_folder(final, "writing") as partial:
        (partial / "x").write_text("new")
    monkeypatch.undo()
    assert not final.exists()
    restore_folders(tmp_path)
    assert text_of(final) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_locked_folder_names_its_holder_and_is_free_after_the_block(tmp_path):
    folder = tmp_path / "new" / "run"
    for _ in range(2):
        with locked(folder):
            with pytest.raises(InUse, match=f"process {os.getpid()}"), locked(folder):
                pass
            with pytest.raises(InUse), locked(folder):  # the refused one has not taken the name of the holder
                pass


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_what_may_never_open_is_refused_in_a_folder(kind, tmp_path):
    inner = tmp_path / "checkpoints"
    inner.mkdir()
    (inner / "state.json").touch()
    (inner / "gone").symlink_to(tmp_path / "nowhere")
    require_plain(tmp_path)
    place = inner / "special"
    os.mknod(place, kind | 0o600)
    for opens in (lambda: folder_of_rank(tmp_path, Ranks()).__enter__(), lambda: launch(LaunchConfig(), [], tmp_path)):
        with pytest.raises(RunError, match=f"{place} is a pipe, a socket or a device, .* remove it"):
            opens()


def test_rows_are_read_one_by_one_without_damaged_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert list(numbered_jsonl(path)) == []
    path.write_bytes(b'{"a": 1}\n{\n\xff\n[1]\n\n{"a": 2}\n{"a"')
    assert list(numbered_jsonl(path)) == [(1, {"a": 1}), (6, {"a": 2})]
    path.write_text('{"a":1}\n' * 10)
    for most, lines in ((80, [*range(1, 11)]), (32, [1, 2, 9, 10]), (16, [1, 10])):
        assert [number for number, _ in numbered_jsonl(path, most)] == lines


@pytest.mark.parametrize("digits", [1, 4300, 4301, 9001])
@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_of_any_length_are_read_and_written(digits, sign):
    text = f'{{"a": [{sign}{"10293847561" * digits}, 7, "ä"], "b": {sign}1{"0" * digits}}}'
    value = parse_json(text)
    assert value["b"] == int(f"{sign}1") * 10**digits
    assert hex(value["a"][0] % 10**9) == hex(int(f"{sign}{('10293847561' * digits)[-9:]}") % 10**9)
    assert json_text(value) == text
    assert parse_json(text.encode()) == value


@pytest.mark.parametrize("text", ["", "{", "[1,]", '"\\ud8"', b"\xff", "9" * 5000 + "x"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):
        parse_json(text)
