"""Rows of the shipped suites in the columns of their data sets, made here: each with a right answer and a near miss."""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.verifiers import program_rows

Row = dict[str, Any]
COUNT = 8
VALUES = (
    ("\\frac{3}{7}", "\\frac{7}{3}"), ("2\\sqrt{5}", "5\\sqrt{2}"), ("(3, \\frac{\\pi}{2})", "(3, \\frac{\\pi}{3})"),
    ("[-2,7]", "(-2,7]"), ("x^2+2x+1", "x^2+2x-1"), ("\\text{even}", "\\text{odd}"), ("10\\%", "11\\%"),
    ("1,3,5", "1,3,6"), ("-\\frac12", "\\frac12"), ("6 - 5i", "6 + 5i"),
)  # fmt: skip
KWARGS = """num_words relation keywords forbidden_words num_bullets end_phrase language postscript_marker
num_placeholders num_highlights keyword frequency letter let_frequency let_relation num_sentences capital_frequency
capital_relation prompt_to_repeat section_spliter num_sections num_paragraphs nth_paragraph first_word"""
NO_KWARGS = dict.fromkeys(KWARGS.split())
INSTRUCTIONS: tuple[tuple[str, Row, str, str], ...] = (
    ("punctuation:no_comma", {}, "Cats sleep and dogs run.", "Cats sleep, dogs run."),
    ("keywords:existence", {"keywords": ["river", "stone"]}, "The river has a stone.", "The river has sand."),
    ("keywords:letter_frequency", {"letter": "q", "let_frequency": 2, "let_relation": "at least"}, "Quick quips.",
     "Quick words."),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2},
     "SECTION 1\na\nSECTION 2\nb", "SECTION 1\na"),
    ("startend:end_checker", {"end_phrase": "That is all."}, "It ends. That is all.", "That is all. It ends."),
)  # fmt: skip
"""A few, as tests/verifiers/test_instructions.py has each."""


@dataclass(frozen=True)
class Made:
    """A row, and two answers as a function of the message that a model gets."""

    row: Row
    right: Callable[[str], str]
    near: Callable[[str], str]


def boxed(right: str, near: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return both answers in a box, after a line of thought."""
    return (lambda _: f"We compute. So it is \\boxed{{{right}}}."), (lambda _: f"So it is \\boxed{{{near}}}.")


def math500(i: int) -> Made:
    right, near = VALUES[i % len(VALUES)]
    row = {"problem": f"Find the value of expression {i}.", "solution": f"It is $\\boxed{{{right}}}$.", "answer": right,
           "subject": "Algebra", "level": 1 + i % 5, "unique_id": f"test/algebra/{i}.json"}  # fmt: skip
    return Made(row, *boxed(right, near))


def aime25(i: int) -> Made:
    answer = 37 * i + 5
    row = {"problem": f"Find the remainder of task {i}.", "answer": str(answer), "id": str(i)}
    return Made(row, *boxed(f"{answer:03d}", str(answer + 1)))


def gpqa_diamond(i: int) -> Made:
    right, *others = (f"{n * (i + 2)} eV" for n in (3, 5, 7, 9))
    row = {"Record ID": f"rec{i:03d}", "Question": f"What is the energy of level {i}?", "Correct Answer": f"{right}\n",
           **{f"Incorrect Answer {n}": text for n, text in enumerate(others, 1)},
           "Explanation": "Made, here.", "High-level domain": "Physics", "Subdomain": "Atoms"}  # fmt: skip

    def letter(message: str, text: str) -> str:
        return next(line[0] for line in message.splitlines() if line[1:] == f") {text}")

    return Made(
        row, lambda m: f"By \\boxed{{{letter(m, right)}}}", lambda m: f"Surely \\boxed{{{letter(m, others[i % 3])}}}"
    )


def gsm8k(i: int) -> Made:
    total = 61 * i + 940
    row = {"question": f"Ann sells {total - 5} cards and then 5 of set {i}. How many has she sold?",
           "answer": f"She sold <<{total - 5}+5={total}>>{total}.\n#### {total:,}"}  # fmt: skip
    return Made(row, *boxed(f"{total:,}", str(total + 10)))


def ifeval(i: int) -> Made:
    instruction, kwargs, right, near = INSTRUCTIONS[i % len(INSTRUCTIONS)]
    row = {"key": 1000 + i, "prompt": f"Write text {i}.", "instruction_id_list": [instruction],
           "kwargs": [{**NO_KWARGS, **kwargs}]}  # fmt: skip
    return Made(row, lambda _: right, lambda _: near)


def programs(make: Callable[[int], program_rows.Made]) -> Callable[[int], Made]:
    """Return a maker of rows with programs in a fence."""

    def made(i: int) -> Made:
        own = make(i)
        right, wrong = (f"Here it is.\n\n```python\n{program}\n```" for program in (own.right, own.wrong))
        return Made(own.row, lambda _: right, lambda _: wrong)

    return made


SUITES: dict[str, Callable[[int], Made]] = {
    "math500": math500,
    "aime25": aime25,
    "gpqa_diamond": gpqa_diamond,
    "gsm8k": gsm8k,
    "ifeval": ifeval,
    "humaneval": programs(program_rows.humaneval),
    "mbpp": programs(program_rows.mbpp_sanitized),
    "livecodebench": programs(program_rows.livecodebench),
}


def write_rows(folder: Path, *names: str) -> Path:
    """Write the rows of suites into a folder for --data-dir, in the kind of file that their data set has; return it."""
    folder.mkdir(exist_ok=True)
    for name in names or SUITES:
        rows = [SUITES[name](i).row for i in range(COUNT)]
        if name == "gpqa_diamond":
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, list(rows[0]))
                table.writeheader()
                table.writerows(rows)
        else:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
