"""Checkpoints that cannot be used: what may be whole is no damage, nothing is deleted, and every reason is told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train.checkpoints import edit_manifest, flip, saved, writer
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.run.choose_checkpoint import newest_whole
from verizero.pipeline.train.checkpoint import MANIFEST, damage_of, save


def replaced_by_link(name: str, target: str) -> Callable[[Path], None]:
    """Puts a link in the place of a file or folder in the checkpoint; "": of the checkpoint itself."""

    def replace(path: Path) -> None:
        old = path / name
        shutil.rmtree(old) if old.is_dir() else old.unlink()
        old.symlink_to(target)

    return replace


ERRS = "/proc/self/mem"  # its first byte cannot be read: EIO
UNREADABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "newer format": (edit_manifest(lambda m: m.update(format=2)), "its format is 2, this version reads 1"),
    "format a word": (edit_manifest(lambda m: m.update(format="1.1")), "its format is '1.1', this version reads 1"),
    "manifest on a bad disk": (replaced_by_link(MANIFEST, ERRS), "Input/output error"),
    "state on a bad disk": (replaced_by_link("state.json", "/proc/self/fdinfo/x"), "state.json cannot be read"),
    "manifest on a disk that is not mounted": (replaced_by_link(MANIFEST, "/nowhere/m"), "No such file"),
    "model on a disk that is not mounted": (replaced_by_link("model", "/nowhere/m"), "model cannot be read"),
    "a folder in it not mounted": (replaced_by_link("model/deep", "/nowhere/m"), "deep cannot be read"),
    "all on a disk that is not mounted": (replaced_by_link("", "/nowhere/m"), "No such file"),
    "a link to itself": (replaced_by_link("", "00000003"), "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("case", list(UNREADABLE))
def test_what_may_be_whole_is_no_damage_and_nothing_older_is_used(case: str, tmp_path: Path) -> None:
    spoil, reason = UNREADABLE[case]
    for i in (1, 2, 3):
        save(tmp_path, i, writer(i), keep=3)
    spoil(tmp_path / "00000003")
    with pytest.raises(CheckpointError, match=f"the newest checkpoint in .* cannot be used: 00000003: .*{reason}") as e:
        newest_whole(tmp_path)
    assert re.search(r"make them readable .*out of .* to continue from the older 00000002", str(e.value))
    bad = damage_of(tmp_path / "00000003")
    assert bad is not None
    assert not bad.is_damaged
    (tmp_path / "00000003").rename(tmp_path / "00000003.aside")
    assert newest_whole(tmp_path) == (tmp_path / "00000002", [])


def test_files_behind_links_are_as_good_as_others(tmp_path: Path) -> None:
    whole = saved(tmp_path / "root", 1, 1, keep=1)
    for name in ("model", "state.json"):
        (whole / name).rename(tmp_path / name)
        (whole / name).symlink_to(tmp_path / name)
    assert newest_whole(tmp_path / "root") == (whole, [])


def test_with_none_whole_all_are_named_with_their_reasons_and_none_is_deleted(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "nowhere") == (None, [])
    for i in (1, 2, 3):
        save(tmp_path, i, writer(i), keep=3)
    (tmp_path / "00000001" / "empty").unlink()
    flip(tmp_path / "00000002" / "state.json")
    UNREADABLE["newer format"][0](tmp_path / "00000003")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: 00000003: its format is 2.*") as error:
        newest_whole(tmp_path)
    for part in (
        "00000002: state.json was changed",
        "00000001: empty is missing",
        "--set name=",
        "Nothing was changed",
    ):
        assert part in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("target", ["nowhere", "checkpoints", ERRS])
def test_a_folder_of_checkpoints_that_cannot_be_seen_is_not_an_empty_one(target: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read .*mount its disk"):
        newest_whole(tmp_path / "checkpoints")
