"""Answers on disk: each is written as soon as it is there, so that a killed command asks for none of them again."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from verizero.pipeline.errors import DataError
from verizero.pipeline.files import disk_errors, json_text, locked
from verizero.pipeline.rollout.engine import Sampling

FILE = "answers.jsonl"


class Answer(NamedTuple):
    """An answer, as a grader reads it."""

    text: str
    tokens: int
    """0 where nobody counted them."""
    was_cut: bool


def key_of(model: str, prompt: object, sampling: Sampling) -> str:
    """Return a hash of all that an answer depends on, but for its number: the model, its prompt and the sampling."""
    how = [sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k]
    return hashlib.sha256(json_text([model, prompt, how]).encode("utf-8", "surrogatepass")).hexdigest()[:24]


class Answers:
    """The answers of a folder, by key and number."""

    def __init__(self, path: Path) -> None:
        self.known: dict[tuple[str, int], Answer] = {}
        self._path, self._lock = path, threading.Lock()
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                answer = Answer(str(row["text"]), int(row["tokens"]), bool(row["was_cut"]))
                self.known[str(row["key"]), int(row["sample"])] = answer
            except (ValueError, KeyError, TypeError) as exc:
                raise DataError(f"{path} line {number} is no answer ({exc}); remove the line, or give --out") from exc
        self._file = path.open("ab")
        # A killed command leaves half a line, to which the next one would be glued.
        self._file.truncate(len(whole))

    def add(self, key: str, prompt_id: str, sample: int, answer: Answer) -> None:
        """Keep an answer, unless it is there. Any thread may call it."""
        row = {"key": key, "id": prompt_id, "sample": sample, **answer._asdict()}
        with self._lock, disk_errors(f"writing {self._path}"):
            if (key, sample) not in self.known:
                self.known[key, sample] = answer
                self._file.write(json.dumps(row).encode() + b"\n")  # ASCII: a text may have half a surrogate pair
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def answers_in(folder: Path) -> Iterator[Answers]:
    """Yield the answers of a folder, which is locked meanwhile. Raises: InUse; RunError if it cannot be written."""
    with locked(folder):
        answers = Answers(folder / FILE)
        try:
            yield answers
        finally:
            answers.close()
