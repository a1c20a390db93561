"""What a machine refuses, known by its kind in whatever a library raises, and never blamed on what was asked for."""

import contextlib
import ctypes
import errno
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from tests.stages.tiny import TREE
from tests.warm import warm
from verizero import sandbox
from verizero.pipeline.errors import CheckpointError, IsolationError, RunError, boundary, fault_in_log, machine_fault

FULL, MANY, THREADS = "the disk is full; free space", "`ulimit -n` is ", "no further process or thread"
CLOSED = "make it readable and writable"
PROGRAMS = {
    "name": "induction",
    "params": {"a_max": 5, "b_min": 10, "b_max": 20, "num_train": 20, "num_evaluation": 6},
}


@contextmanager
def limited(kind, most):
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def thread_too_large(folder):
    """No thread starts with a stack that no address space holds."""
    size = threading.stack_size(1 << 46)
    try:
        threading.Thread(target=int).start()
    finally:
        threading.stack_size(size)


def open_too_many(folder):
    with limited(resource.RLIMIT_NOFILE, 3):
        os.open(folder, os.O_RDONLY)


def save_beyond(folder):
    """torch's own writer of a zip hides the number."""
    with limited(resource.RLIMIT_FSIZE, 4096):
        torch.save({"x": torch.zeros(100_000)}, folder / "x.pt")


def save_tensors_beyond(folder):
    with limited(resource.RLIMIT_FSIZE, 4096):
        save_file({"x": torch.zeros(100_000)}, folder / "x.safetensors")


def full_database(folder):
    with sqlite3.connect(folder / "x.db") as base:
        base.execute("pragma max_page_count = 2")
        base.execute("create table t as select zeroblob(100000)")


def write_only_read(folder):
    sqlite3.connect(folder / "x.db").close()
    sqlite3.connect(f"file:{folder / 'x.db'}?mode=ro", uri=True).execute("create table t (x)")


def as_cause(folder):
    try:
        open_too_many(folder)
    except OSError as exc:
        raise ValueError("a library's own words") from exc


def as_context(folder):
    try:
        open_too_many(folder)
    finally:
        raise KeyError("cleaning up")


def raised(error, *others):
    """What raises an error of the system, in a group if there are others."""

    def fail(folder):
        exc = OSError(error, os.strerror(error), str(folder)) if isinstance(error, int) else error
        raise ExceptionGroup("tasks", [*others, exc]) if others else exc

    return fail


REFUSED = {
    "thread": (thread_too_large, THREADS),
    "fork": (raised(errno.EAGAIN), THREADS),
    "descriptors": (open_too_many, MANY),
    "descriptors of the machine": (raised(errno.ENFILE), MANY),
    "torch": (save_beyond, FULL),
    "torch, full device": (lambda _: torch.save({"x": torch.zeros(100_000)}, "/dev/full"), FULL),
    "safetensors": (save_tensors_beyond, "raise `ulimit -f`"),
    "quota": (raised(errno.EDQUOT), FULL),
    "database": (full_database, FULL),
    "database without a folder": (lambda folder: sqlite3.connect(folder / "none" / "x.db"), CLOSED),
    "read-only database": (write_only_read, CLOSED),
    "read-only": (raised(errno.EROFS), CLOSED),
    "forbidden": (raised(errno.EACCES), CLOSED),
    "cause": (as_cause, MANY),
    "context": (as_context, MANY),
    "group": (raised(errno.EAGAIN, ValueError("x")), THREADS),
    "memory": (raised(MemoryError()), "memory is used up"),
    "memory of torch": (lambda _: torch.empty(1 << 60, dtype=torch.uint8), "memory is used up"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_the_machine_refuses_is_told_with_the_remedy(case, tmp_path):
    act, words = REFUSED[case]
    with pytest.raises(Exception) as caught:
        act(tmp_path)
    assert words in machine_fault(caught.value)
    # a boundary must not blame what it was given for it
    with pytest.raises(RunError) as told, boundary(CheckpointError, "the weights do not fit the model"):
        act(tmp_path)
    assert words in str(told.value)
    assert "do not fit" not in str(told.value)


@pytest.mark.parametrize(
    "exc",
    [ValueError("No spaces"), KeyError("disk"), FileNotFoundError(errno.ENOENT, "x"), OSError("odd"), RuntimeError()],
)
def test_another_error_is_no_fault_of_the_machine(exc):
    assert machine_fault(exc) == ""
    with pytest.raises(CheckpointError, match="does not fit"), boundary(CheckpointError, "it does not fit"):
        raise exc


def suppressed(folder):
    try:
        raise OSError(errno.EACCES, "x")
    except OSError:
        raise ValueError("of something else") from None


def test_a_context_that_was_dealt_with_is_no_cause(tmp_path):
    with pytest.raises(ValueError, match="something else") as caught:
        suppressed(tmp_path)
    assert machine_fault(caught.value) == ""


def test_the_last_fault_of_a_log_is_told():
    log = "OSError: [Errno 28] No space left on device\nRuntimeError: can't start new thread\nEnding.\n"
    assert THREADS in fault_in_log(log)
    assert fault_in_log("it ended\n") == ""


def write_recipe(folder, **changes):
    """Write `tiny.yaml`, whose runs are in the folder `out`, where something may be mounted."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**TREE, "output": str(folder / "out" / "runs"), **changes}))
    (folder / "out").mkdir()


def ends_of(folder, steps):
    """Status and errors of each step that begins with `verizero`, a fork of this process; the others are a shell's.

    This process, itself a fork, leaves for a mount namespace of its own. `ulimit -n NUMBER` limits its open files, and
    with `stacks` no thread starts, as its stack would be too large.
    """
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACES):
        raise OSError(ctypes.get_errno(), "no mount namespace here")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    ends = []
    for step in steps:
        name, *words = step.split()
        if name == "ulimit":
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(words[1]), int(words[1])))
        elif name == "stacks":
            threading.stack_size(1 << 46)
        elif name == "verizero":
            with (folder / "errors").open("w+") as errors:  # to read a pipe takes a thread where there are two
                command = [sys.executable, "-m", "verizero.pipeline.cli", *words]
                done = subprocess.run(command, cwd=folder, stdout=errors, stderr=errors, timeout=400, check=False)
            ends.append((done.returncode, (folder / "errors").read_text()))
        else:
            subprocess.run(["sh", "-c", step], cwd=folder, check=True)
    return ends


def complaint(status, errors):
    """The last line of a command that has failed as it should."""
    assert "Traceback" not in errors
    assert status == 1, errors
    last = errors.splitlines()[-1]
    assert last.startswith("verizero: ")
    return last


NEW_NAMESPACES = 0x10000000 | 0x00020000
"""CLONE_NEWUSER and CLONE_NEWNS of Linux."""


def full(size):
    return f"mount -t tmpfs -o size={size} none out"


READ_ONLY = "mount -t tmpfs none out && mkdir -p out/runs/.prefect && mount -o remount,ro none out"
TRAIN = "verizero train tiny.yaml --no-prefect"
COMMANDS = {
    "full for Prefect": (full("600k"), "verizero train tiny.yaml", FULL),
    "read-only for serve": (READ_ONLY, "verizero serve --home out/home --port 1", CLOSED),
    "read-only": (READ_ONLY, TRAIN, CLOSED),
    "few descriptors for Prefect": (
        "ulimit -n 40",
        "verizero train tiny.yaml",
        "Prefect's server needs `ulimit -n` of 64",
    ),
    "few descriptors for the sandbox": ("ulimit -n 64", TRAIN, "needs `ulimit -n` of 128 at least, and it is 64"),
    "no threads": ("stacks", "verizero train tiny.yaml", THREADS),
}


@pytest.mark.run
@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_says_in_one_line_what_the_machine_refuses(case, tmp_path):
    first, command, words = COMMANDS[case]
    write_recipe(tmp_path, stages=["rl"], data={"train": [{"generator": PROGRAMS}]})
    (end,) = warm().call(ends_of, tmp_path, [first, command])
    assert words in complaint(*end)


@pytest.mark.run
def test_a_pool_without_descriptors_gives_no_verdict_and_works_again():
    trial = sandbox.Trial("print(1)", [{"input": "", "output": "1"}])
    with sandbox.Pool(workers=1) as pool, limited(resource.RLIMIT_NOFILE, 256):
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):
                while True:
                    held.enter_context(open(os.devnull))
            with pytest.raises(IsolationError, match="too many files are open"):
                sandbox.run_many([trial], pool=pool)
        own = set(os.listdir("/proc/self/fd"))
        assert [r.status for r in sandbox.run_many([trial], pool=pool)] == ["passed"]
        pool.close()
        assert set(os.listdir("/proc/self/fd")) == own


@pytest.mark.run
def test_a_run_goes_on_where_the_disk_was_full(tmp_path):
    """The files end with the same bytes as those of a run that was never stopped."""
    write_recipe(tmp_path)
    steps = [full("250k"), TRAIN, "mount -o remount,size=40m none out", f"{TRAIN} --set output=whole", TRAIN]
    first, *others = warm().call(ends_of, tmp_path, [*steps, "cp -r out/runs/tiny resumed"])
    assert FULL in complaint(*first)
    assert [status for status, _ in others] == [0, 0], others
    for name in ("rollouts.jsonl", "model/model.safetensors"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / "tiny" / name).read_bytes()
