"""Read unlabelled text from files, for further training of a base model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from verizero.pipeline.config.columns import Column
from verizero.pipeline.config.stages import TextSource
from verizero.pipeline.data.columns import pick
from verizero.pipeline.data.files import read_file
from verizero.pipeline.errors import DataError


def read_texts(sources: Sequence[TextSource], base_dir: Path) -> tuple[list[str], list[str]]:
    """Return the texts of all files, in order, and a note for each file with skipped rows.

    Raises: DataError naming file, row and remedy for a file without text, or a row without where none may be skipped.
    """
    texts: list[str] = []
    notes: list[str] = []
    for source in sources:
        file_texts: list[str] = []
        problems: list[str] = []
        for text in _texts(source, base_dir):
            # Checked before the row counts, so that rows after the limit are never judged.
            if source.limit is not None and len(file_texts) >= source.limit:
                break
            if isinstance(text, str):
                file_texts.append(text)
            elif source.on_bad_row == "error":
                raise DataError(f"{text}; correct the row or `column`, or set on_bad_row: skip") from text
            else:
                problems.append(str(text))
        if not file_texts:
            raise DataError(f"{source.file} has no text; give a file with at least one row")
        if problems:
            notes.append(
                f"{source.file}: {len(file_texts)} texts; skipped {len(problems)} bad rows (first: {problems[0]})"
            )
        texts += file_texts
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


def _texts(source: TextSource, base_dir: Path) -> Iterator[str | DataError]:
    path = base_dir / source.file
    if path.suffix.lower() == ".txt":
        yield _whole(path, source.file)
        return
    column = Column(column=source.column)
    for place, _, row in read_file(path, source.file):
        if isinstance(row, DataError):
            yield row
            continue
        try:
            text = pick(row, column)
            yield text if isinstance(text, str) else DataError(f"{place}: {source.column!r} is no text: {text!r:.80}")
        except DataError as exc:
            yield DataError(f"{place}: {exc}")


def _whole(path: Path, label: str) -> str | DataError:
    if not path.is_file():
        raise DataError(f"no file at {path}; give a path from the recipe's folder, or an absolute one")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        return DataError(f"{label}: not UTF-8 ({exc.reason} at byte {exc.start})")
    return text if text.strip() else DataError(f"{label}: empty")
