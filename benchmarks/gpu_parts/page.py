"""The results as a section of benchmarks/gpu_results.md: what each part was expected to show, and what was measured."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.part import Part

MOST_ROWS = 40


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of all commands in the folder. Raises: SystemExit if there are none."""
    paths = sorted(folder.glob("*.jsonl"))
    lines = [json.loads(text) for path in paths for text in path.read_text().splitlines() if text.strip()]
    if not lines:
        raise SystemExit(f"{folder} has no results; run `benchmarks/gpu.py correctness --out {folder}` first")
    return lines


def section(lines: list[dict[str, Any]]) -> str:
    """Return the section in Markdown."""
    machines = [line for line in lines if line["part"] == "machine"]
    texts = [f"Measured on: {values(row)}." for line in machines[:1] for row in line["rows"]]
    if any(line["dry"] for line in lines):
        texts.insert(0, "**A dry run on the CPU: its numbers say nothing about GPUs.**")
    texts.append(
        table(
            ("part", "outcome", "seconds", "expected"),
            ((p["part"], outcome(p), p.get("seconds", ""), p["expected"]) for p in lines if p["part"] != "machine"),
        )
    )
    texts += [f"### {line['part']}\n\n{rows_of(line)}" for line in lines if line["rows"] and line["part"] != "machine"]
    return "\n\n".join(texts)


def outcome(line: dict[str, Any]) -> str:
    """Return the part's status, with the reason where it is not done."""
    return f"{line['status']}: {line['why']}" if line.get("why") else line["status"]


def rows_of(line: dict[str, Any]) -> str:
    """Return tables of the part's rows: one for each set of columns, in order of their first row."""
    tables: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in line["rows"][:MOST_ROWS]:
        tables.setdefault(tuple(row), []).append(row)
    left = len(line["rows"]) - MOST_ROWS
    texts = [table(columns, (row.values() for row in rows)) for columns, rows in tables.items()]
    return "\n\n".join([*texts, *([f"{left} more rows are in the file."] if left > 0 else [])])


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table in Markdown."""
    head = list(columns)
    lines = [head, ["---"] * len(head), *([written(v) for v in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def written(value: Any) -> str:
    """Return a value for people: three digits that count, nothing for None, no bar that would end a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "/")


def values(row: dict[str, Any]) -> str:
    """Return a row as one line of text."""
    return ", ".join(f"{k} {written(v)}" for k, v in row.items())


def parts_table(parts: Iterable[Part]) -> str:
    """Return a table of what each part shows and is expected to give."""
    return table(("part", "shows", "expected"), ((p.name, p.shows, p.expected) for p in parts))


def replace(text: str, name: str, content: str) -> str:
    """Return the page with other content between the marks of a section. Raises: ValueError if it has no such marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, mark, rest = text.partition(begin)
    _, other_mark, after = rest.partition(end)
    if not mark or not other_mark:
        raise ValueError(f"the page has no {begin} … {end}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"
