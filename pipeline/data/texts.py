"""Read unlabelled text from files, for further training of a base model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from verizero.pipeline.config.data import Column
from verizero.pipeline.config.stages import TextSource
from verizero.pipeline.data.rows_of_source import SourceCounts, good_rows, pick
from verizero.pipeline.data.source_files import read_file
from verizero.pipeline.errors import DataError


def read_texts(sources: Sequence[TextSource], base_dir: Path) -> tuple[list[str], list[str]]:
    """Return the texts of all files, in order, and a note for each file with skipped rows.

    Raises: DataError naming file, row and remedy for a file without text, or a row without where none may be skipped.
    """
    texts: list[str] = []
    notes: list[str] = []
    for source in sources:
        path, counts = base_dir / source.file, SourceCounts(source.file, what="texts")
        if path.suffix.lower() == ".txt":
            found_texts = [_whole(path, source.file)]
        else:
            column = Column(column=source.column)
            made = good_rows(read_file(path, source.file), counts, source.on_bad_row, partial(_text, column))
            # Rows after the limit are never judged.
            found_texts = [text for _, _, text in islice(made, source.limit)]
        if not found_texts:
            raise DataError(f"{source.file} has no text; give a file with at least one row")
        counts.num_loaded = len(found_texts)
        if counts.skipped:
            notes.append(str(counts))
        texts += found_texts
    return texts, notes


def pieces(ids: Sequence[int], longest: int | None) -> list[tuple[int, ...]]:
    """Cut a text's tokens into pieces of at most `longest`. A piece begins with the last token of the one before.

    So every token but the first is predicted once, by a piece whose own first token is only read.
    """
    if longest is None or len(ids) <= longest:
        return [tuple(ids)]
    # The last piece must have a token to predict, hence the range ends before the last token.
    step = longest - 1
    return [tuple(ids[i : i + longest]) for i in range(0, len(ids) - 1, step)]


def _text(column: Column, row: Mapping[str, Any], number: int) -> str:
    text = pick(row, column)
    if not isinstance(text, str):
        raise DataError(f"column {column.column!r} is no text: {text!r:.80}")
    return text


def _whole(path: Path, label: str) -> str:
    if not path.is_file():
        raise DataError(f"no file at {path}; give a path from the recipe's folder, or an absolute one")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise DataError(f"{label}: not UTF-8 ({exc.reason} at byte {exc.start})") from exc
    if not text.strip():
        raise DataError(f"{label} has no text; give a file with at least one row")
    return text
