"""Checkpoints under kills, tampering and full disks; what may be whole is no damage, and every reason is told."""

import errno
import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.warm import warm
from verizero.pipeline.errors import CheckpointError, RunError
from verizero.pipeline.host.disk import PARTIAL
from verizero.pipeline.run.choose_checkpoint import newest_whole
from verizero.pipeline.train.checkpoint import MANIFEST, Unusable, damage_of, path_of, require, save
from verizero.pipeline.train.ranks import ALONE

FILES = {
    "state.json": b'{"step": %d}',
    "model/weights.bin": b"weights of %d" * 50,
    "model/deep/er/x.txt": b"x%d",
    "empty": b"",
}


def content(mark):
    return {name: data.replace(b"%d", str(mark).encode()) for name, data in FILES.items()}


def writer(mark):
    """Writes files that only the checkpoint `mark` has."""

    def write(folder):
        for name, data in content(mark).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    return write


def saved(root, serial, mark, keep):
    assert save(root, serial, writer(mark), keep) is None
    return path_of(root, serial)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def edit_manifest(change):
    def tamper(path):
        manifest = json.loads((path / MANIFEST).read_text())
        changed = change(manifest)
        (path / MANIFEST).write_text(json.dumps(manifest if changed is None else changed))

    return tamper


CHANGES = frozenset({"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.truncate"})


@pytest.fixture(autouse=True)
def synced(monkeypatch):
    """The paths synced so far; the disk itself is spared, for what it holds after a power cut no test can see."""
    paths = []
    monkeypatch.setattr(os, "fsync", lambda handle: paths.append(os.readlink(f"/proc/self/fd/{handle}")))
    return paths


def holds(path, mark):
    """The checkpoint is there with all its files as they were written."""
    return path is not None and all((path / n).read_bytes() == data for n, data in content(mark).items())


def two_before(root):
    """Checkpoints 1 and 2."""
    save(root, 1, writer(1), keep=2)
    save(root, 2, writer(2), keep=2)


def in_a_child(work, kill_at):
    """Do `work` in a fork that ends, as by SIGKILL, before its file operation `kill_at`; True if it got there."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:  # no handler, no finally: audit hooks run inside the operation, and _exit does nothing on the way
        seen = 0

        def hook(event, _):
            nonlocal seen
            if event in CHANGES:
                seen += 1
                if seen > kill_at:
                    os._exit(9)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 9


@pytest.mark.run
def test_what_is_still_to_be_written_ends_in_another_thread(tmp_path):
    two_before(tmp_path)

    def begin(fails):
        def write(folder):
            writer(3)(folder)
            (folder / "empty").unlink()

            def rest():
                if fails:
                    raise OSError(errno.ENOSPC, "No space left on device")
                (folder / "empty").write_bytes(b"")
                return {}

            return rest

        end = save(tmp_path, 3, write, keep=1)
        assert not path_of(tmp_path, 3).exists()
        return end

    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(RunError, match="writing checkpoint 00000003: the disk is full"):
            thread.submit(begin(fails=True)).result()
        assert [p.name for p in sorted(tmp_path.iterdir())] == ["00000001", "00000002"]
        thread.submit(begin(fails=False)).result()
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["00000003"]
    assert holds(newest_whole(tmp_path)[0], 3)


def after_each_fault(again, folder, fault):
    """Let a save have its fault at the first operation, at the second and so on, until there is no further one.

    `again`: the new checkpoint has the number of one that is there. `fault(root, number, at)` is true if it saved as
    far as operation `at`. Each time there is the old newest checkpoint or the new one, and the next save finds nothing
    in its way. Return the number of operations, and whether the new one was there after some and after others not.
    """
    number, outcomes = 2 if again else 3, set()
    two_before(folder / "before")
    for at in range(500):
        root = folder / f"{at}"
        shutil.copytree(folder / "before", root)
        was_reached = fault(root, number, at)
        found, refused = newest_whole(root)
        is_new = found.name == f"{number:08d}" and holds(found, 33)
        assert is_new or (was_reached and found.name == "00000002" and holds(found, 2))
        assert not refused
        assert is_new or holds(root / "00000001", 1)
        if not was_reached:
            return at, outcomes
        outcomes.add(is_new)
        assert holds(saved(root, number, 34, keep=2), 34)
        assert {p.name for p in root.iterdir()} == {"00000001" if again else "00000002", f"{number:08d}"}
        shutil.rmtree(root)
    raise AssertionError("there is a further operation each time")


def killed(root, number, at):
    return in_a_child(lambda: save(root, number, writer(33), keep=2), at)


@pytest.mark.run
@pytest.mark.parametrize("again", [False, True])
def test_a_kill_at_any_file_operation_leaves_the_old_newest_or_the_new_one(again, tmp_path):
    """In a process with little memory, as it is forked some hundred times."""
    num_operations, outcomes = warm((__name__,)).call(after_each_fault, again, tmp_path, killed)
    assert num_operations > 20
    assert outcomes == {False, True}


def test_all_is_on_disk_before_it_has_its_name(synced, tmp_path, monkeypatch):
    """Every file and folder before the rename, and the name itself after it."""
    rename = os.rename

    def watched(*names):
        synced.append("rename")
        rename(*names)

    monkeypatch.setattr(os, "rename", watched)
    root = tmp_path / "root"
    final = saved(root, 4, 4, keep=1)
    assert synced.count("rename") == 1
    at = synced.index("rename")
    partial = root / f"{PARTIAL}00000004"
    everything = {str(partial / p.relative_to(final)) for p in final.rglob("*")} | {str(partial)}
    assert len(everything) > len(FILES) + 3
    assert everything <= set(synced[:at])
    assert str(root) in synced[at + 1 :]
    for folder in (p for p in final.rglob("*") if p.is_dir()):  # a folder after what is in it
        moved = [str(partial / p.relative_to(final)) for p in (folder, *folder.rglob("*"))]
        assert max(moved, key=synced.index) == moved[0]


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


TAMPERED = {
    "byte flipped": (lambda p: flip(p / "model/weights.bin"), "model/weights.bin was changed"),
    "byte added": (lambda p: (p / "empty").write_bytes(b"x"), "empty has 1 bytes"),
    "file cut": (lambda p: os.truncate(p / "model/weights.bin", 10), "model/weights.bin has 10 bytes"),
    "file missing": (lambda p: (p / "state.json").unlink(), "state.json is missing"),
    "folder missing": (lambda p: shutil.rmtree(p / "model"), "is missing"),
    "file extra": (lambda p: (p / "model/extra").write_text(""), "model/extra is not in its manifest"),
    "files swapped": (lambda p: os.replace(p / "empty", p / "state.json"), "is missing"),
    "manifest missing": (lambda p: (p / MANIFEST).unlink(), "manifest.json is missing"),
    "folder empty": (empty, "its folder is empty"),
    "a file": (lambda p: (shutil.rmtree(p), p.write_text("x")), "it is a file, not a folder"),
    "manifest too deep": (lambda p: (p / MANIFEST).write_text("[" * 100_000), "manifest cannot be read"),
    "manifest cut": (lambda p: os.truncate(p / MANIFEST, 40), "manifest cannot be read"),
    "manifest garbled": (lambda p: (p / MANIFEST).write_bytes(b"\xff\xfe\x00"), "manifest cannot be read"),
    "files a list": (edit_manifest(lambda m: m.update(files=list(m["files"]))), "manifest cannot be read"),
    "seal without size": (edit_manifest(lambda m: m["files"]["empty"].pop("bytes")), "manifest cannot be read"),
    "seal a word": (edit_manifest(lambda m: m["files"].update(empty="ok")), "manifest cannot be read"),
    "seal forged": (edit_manifest(lambda m: m["files"]["empty"].update(sha256="0" * 64)), "empty was changed"),
    "file unlisted": (edit_manifest(lambda m: m["files"].pop("state.json") and None), "state.json is not in"),
    "no format": (edit_manifest(lambda m: m.pop("format") and None), "manifest cannot be read"),
    "other number": (edit_manifest(lambda m: m.update(serial=1)), "checkpoint 00000001 under another name"),
}


@pytest.mark.parametrize("case", list(TAMPERED))
def test_what_was_tampered_with_is_refused_by_name_and_the_one_before_it_used(case, tmp_path):
    tamper, reason = TAMPERED[case]
    for i in (1, 2, 3):
        save(tmp_path, i, writer(i), keep=3)
    whole = tmp_path / "00000003"
    require(whole, ALONE)
    tamper(whole)
    found, refused = newest_whole(tmp_path)
    assert found == tmp_path / "00000002"
    assert holds(found, 2)
    assert [r.path for r in refused] == [whole]
    assert reason in refused[0].reason
    with pytest.raises(CheckpointError, match=r"00000003.*delete it, or start from another one"):
        require(whole, ALONE)
    save(tmp_path, 3, writer(3), keep=3)  # written again in its place
    assert newest_whole(tmp_path) == (whole, [])


def test_numbers_of_checkpoints_are_compared_as_numbers(tmp_path):
    save(tmp_path, 3, writer(3), keep=3)
    save(tmp_path, 100_000_001, writer(4), keep=3)
    shutil.copytree(tmp_path / "00000003", tmp_path / "9")
    assert newest_whole(tmp_path) == (tmp_path / "100000001", [])
    shutil.rmtree(tmp_path / "100000001")
    assert newest_whole(tmp_path) == (
        tmp_path / "00000003",
        [Unusable(tmp_path / "9", "it is checkpoint 00000003 under another name")],
    )


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_k_are_kept(keep, tmp_path):
    for i in (7, 99, 100, 12345):
        save(tmp_path, i, writer(i), keep=keep)
    kept = sorted(p.name for p in tmp_path.iterdir())
    assert kept == [f"{i:08d}" for i in (7, 99, 100, 12345)][-keep:]


def errno_of(number):
    return OSError(number, os.strerror(number), "somewhere")


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (
            errno_of(errno.ENOSPC),
            RunError,
            "checkpoint 00000002: .*disk is full; free space and start the same",
        ),
        (ZeroDivisionError("of the writer itself"), ZeroDivisionError, "of the writer"),
    ],
    ids=str,
)
def test_an_error_of_the_disk_is_a_run_error_and_after_any_error_nothing_is_lost(error, raised, said, tmp_path):
    save(tmp_path, 1, writer(1), keep=1)

    def write(folder):
        writer(2)(folder)
        raise error

    with pytest.raises(raised, match=said):
        save(tmp_path, 2, write, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]
    assert holds(newest_whole(tmp_path)[0], 1)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("operation", ["rename", "fsync", "open", "mkdir"])
def test_a_disk_that_fills_at_any_operation_loses_nothing(again, operation, tmp_path, monkeypatch):
    plain = getattr(os, operation)

    def full(root, number, at):
        left = [at]

        def failing(*arguments, **options):
            left[0] -= 1
            if left[0] == -1:
                raise errno_of(errno.ENOSPC)
            return plain(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, operation, failing)
            try:
                save(root, number, writer(33), keep=2)
                failed = False
            except RunError as exc:
                assert "free space" in str(exc)  # noqa: PT017
                failed = True
        found, _ = newest_whole(root)
        assert failed or holds(found, 33)
        assert all(p.name.isdigit() for p in root.iterdir())
        return left[0] < 0

    assert after_each_fault(again, tmp_path, full)[0] > 0


def test_what_other_killed_saves_left_is_swept(tmp_path):
    (tmp_path / f"{PARTIAL}00000009").mkdir(parents=True)
    (tmp_path / f"{PARTIAL}00000009" / "half").write_text("half")
    save(tmp_path, 1, writer(1), keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]


def replaced_by_link(name, target):
    """Puts a link in the place of a file or folder in the checkpoint; "": of the checkpoint itself."""

    def replace(path):
        old = path / name
        shutil.rmtree(old) if old.is_dir() else old.unlink()
        old.symlink_to(target)

    return replace


ERRS = "/proc/self/mem"  # its first byte cannot be read: EIO
UNREADABLE = {
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
def test_what_may_be_whole_is_no_damage_and_nothing_older_is_used(case, tmp_path):
    spoil, reason = UNREADABLE[case]
    for i in (1, 2, 3):
        save(tmp_path, i, writer(i), keep=3)
    spoil(tmp_path / "00000003")
    with pytest.raises(CheckpointError, match=f"the newest checkpoint in .* cannot be used: 00000003: .*{reason}") as e:
        newest_whole(tmp_path)
    assert re.search(r"make them readable .*out of .* to continue from the older 00000002", str(e.value))
    bad = damage_of(tmp_path / "00000003")
    assert not bad.is_damaged
    (tmp_path / "00000003").rename(tmp_path / "00000003.aside")
    assert newest_whole(tmp_path) == (tmp_path / "00000002", [])


def test_files_behind_links_are_as_good_as_others(tmp_path):
    whole = saved(tmp_path / "root", 1, 1, keep=1)
    for name in ("model", "state.json"):
        (whole / name).rename(tmp_path / name)
        (whole / name).symlink_to(tmp_path / name)
    assert newest_whole(tmp_path / "root") == (whole, [])


def test_with_none_whole_all_are_named_with_their_reasons_and_none_is_deleted(tmp_path):
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
        "under another name",
        "Nothing was changed",
    ):
        assert part in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("target", ["nowhere", "checkpoints", ERRS])
def test_a_folder_of_checkpoints_that_cannot_be_seen_is_not_an_empty_one(target, tmp_path):
    (tmp_path / "checkpoints").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read .*mount its disk"):
        newest_whole(tmp_path / "checkpoints")
