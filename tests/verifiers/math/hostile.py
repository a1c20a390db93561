"""Answers written to break a grader, none of which is right: (kind, gold, response), some of them a megabyte long."""

import json
from pathlib import Path

from verizero.verifiers.mathematics import grade
from verizero.verifiers.mathematics.decide.algebra_process import start_timer

Row = tuple[str, str, str]
FILE = Path(__file__).with_name("hostile.jsonl")
LIMIT_CPU_S = 2.0
"""CPU seconds of a row after which the system ends the process. The slowest row takes about a hundredth."""


def rows() -> list[Row]:
    """All hostile rows: those of the file, where [text, n] is a text n times, and one without a pattern."""
    found = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    numbers = "\\boxed{" + ", ".join(map(str, range(10_000))) + "}"
    return [
        *((r["kind"], r["gold"], "".join(t * n for t, n in r.get("parts") or [[r["response"], 1]])) for r in found),
        ("large_input", "42", numbers),
    ]


def main() -> None:
    """Grade all rows within the limit and print a line for each: its score, whether the grader failed, the reason."""
    for _, gold, response in rows():
        start_timer(LIMIT_CPU_S)
        verdict = grade(response, gold)
        start_timer(0)
        print(json.dumps([verdict.score, verdict.is_infrastructure, verdict.reason]), flush=True)


if __name__ == "__main__":
    main()
