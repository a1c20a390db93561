"""Files and folders that a reader sees whole or not at all, rows of JSON, and the lock of a folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import DataError, InUse, RunError, VerizeroError, machine_fault

Row = dict[str, Any]
_MAX_DIGITS, MAX_BITS, _DIGITS_PER_BIT = 4000, 13_000, 0.30103
"""Digits and bits of integers that Python's own parser reads and writes."""
PARTIAL, REPLACED = ".partial-", ".replaced-"
"""Prefixes of a folder that is being written, and of its predecessor while the new one takes the name."""


@contextmanager
def disk_errors(doing: str, partial: Path | None = None) -> Iterator[None]:
    """Turn a machine's refusal into a RunError that begins with `doing`; after any error remove `partial`."""
    try:
        yield
    except Exception as exc:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(exc, VerizeroError) and (fault := machine_fault(exc)):
            raise RunError(f"{doing}: {fault}") from exc
        raise


def write_atomic(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all, and return `path`. Raises: RunError, after which the old file stays."""
    partial = path.with_name(f".{path.name}-partial")
    with disk_errors(f"writing {path}"):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # or a power cut could leave the new name with none of the bytes
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):  # what forbids the file forbids this too, and is no news
                partial.unlink(missing_ok=True)
            raise
    return path


def partial_path(final: Path) -> Path:
    """Return the path under which `replace_folder` writes the folder `final`."""
    return final.with_name(PARTIAL + final.name)


@contextmanager
def replace_folder(final: Path, doing: str) -> Iterator[Path]:
    """Yield an empty folder to write into, which takes the name `final` when the block ends.

    After an error in the block it is removed, and a folder that had the name keeps it.
    Raises: RunError as `disk_errors(doing)`.
    """
    partial, aside = partial_path(final), final.with_name(REPLACED + final.name)
    with disk_errors(doing, partial):
        final.parent.mkdir(parents=True, exist_ok=True)
        restore_folders(final.parent)
        partial.mkdir()
        yield partial
        # A folder cannot be renamed onto another: killed between the two renames, `restore_folders` undoes the first.
        if final.exists():
            os.rename(final, aside)
        os.rename(partial, final)
        shutil.rmtree(aside, ignore_errors=True)


def restore_folders(parent: Path) -> None:
    """Remove what killed writers left under `parent`, and give a replaced folder without a successor its name back."""
    for partial in parent.glob(PARTIAL + "*"):
        shutil.rmtree(partial, ignore_errors=True)
    for aside in parent.glob(REPLACED + "*"):
        final = aside.with_name(aside.name.removeprefix(REPLACED))
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, final)


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON whose integers may have any number of digits. Raises: ValueError; RecursionError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer that is too long, or no UTF-8, which is raised again
        return json.loads(text, parse_int=_whole_number)


def _whole_number(digits: str) -> int:
    """Return an integer of any number of digits; Python's own conversion takes the square of their number."""
    if len(digits) <= _MAX_DIGITS:
        return int(digits)
    half = len(digits) // 2
    sign = -1 if digits.startswith("-") else 1
    return _whole_number(digits[:-half]) * int(10**half) + sign * _whole_number(digits[-half:])


def json_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, whose integers may have any number of digits: the inverse of `parse_json`."""
    try:
        return json.dumps(value, ensure_ascii=False, default=default)
    except ValueError:
        long: dict[str, int] = {}
        text = json.dumps(_without_long(value, long), ensure_ascii=False, default=default)
        for mark, number in long.items():
            text = text.replace(f'"{mark}"', _decimal(number))
        return text


def _without_long(value: Any, long: dict[str, int]) -> Any:
    """Return the value with a mark in place of each integer that Python does not write. Adds them to `long`."""
    if isinstance(value, dict):
        return {key: _without_long(item, long) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_long(item, long) for item in value]
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        long[mark := secrets.token_hex(16)] = value
        return mark
    return value


def _decimal(number: int) -> str:
    """Return the decimal digits of an integer of any size."""
    if number < 0:
        return f"-{_decimal(-number)}"
    if number.bit_length() <= MAX_BITS:
        return str(number)
    half = int(number.bit_length() * _DIGITS_PER_BIT) // 2
    high, low = divmod(number, 10**half)
    return _decimal(high) + _decimal(low).rjust(half, "0")


def read_jsonl(path: Path) -> list[Row]:
    """Return the rows of a JSONL file without a torn last line, which a killed run leaves; [] if there is no file.

    Raises: DataError naming a line before the last that is no row: the file was damaged by something else than a kill.
    """
    if not path.is_file():
        return []
    *lines, last = path.read_bytes().split(b"\n")  # what follows the last newline is whole only by chance
    rows = [(number, _row(line)) for number, line in enumerate(lines, 1) if line.strip()]
    for number, row in rows:
        if row is None:
            raise DataError(f"line {number} of {path} is not a JSON object; restore the file, or remove that line")
    return [row for _, row in [*rows, (0, _row(last))] if row is not None]


def numbered_jsonl(path: Path, most: int | None = None) -> Iterator[tuple[int, Row]]:
    """Yield the number of each line of a JSONL file, from 1, and its row, and skip lines that are not JSON objects.

    The file may be larger than memory.
    `most`: of a file with more bytes only the lines that begin in the first or in the last half of so many; None: all.
    """
    if not path.is_file():
        return
    size, begin = path.stat().st_size, 0
    first, last = (size, size) if most is None or size <= most else (most // 2, size - most // 2)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if (begin < first or begin >= last) and (row := _row(line)) is not None:
                yield number, row
            begin += len(line)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_plain(folder: Path) -> None:
    """Raise RunError for a pipe, a socket or a device in the folder: a process that opens it may wait for ever."""
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            with suppress(FileNotFoundError):  # a link to nothing, or a file that was deleted just now
                mode = path.stat().st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    raise RunError(f"{path} is a pipe, a socket or a device, where a run has files; remove it")


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is missing. The lock ends with its process.

    Raises: InUse naming the process that holds it, unless `wait` says to wait for that one.
    """
    with disk_errors(f"creating {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as exc:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            raise InUse(f"{folder} is in use by {holder}; wait for it, or give this run another name") from exc
        handle.truncate(0)
        handle.write(f"process {os.getpid()}")
        handle.flush()
        yield


def is_locked(folder: Path) -> bool:
    """True if a process holds the lock of the folder."""
    try:
        with (folder / ".lock").open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _row(line: bytes) -> Row | None:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
