"""Answers written to break a grader, none of which is right: (kind, gold, response), some of them a megabyte long."""

from __future__ import annotations

import json
from pathlib import Path

from verizero.verifiers.mathematics import grade
from verizero.verifiers.mathematics.decide.algebra_process import start_timer

Row = tuple[str, str, str]
FILE = Path(__file__).with_name("hostile.jsonl")
LIMIT_CPU_S = 2.0
"""CPU seconds of a row after which the system ends the process. The slowest row takes about a hundredth."""


def rows() -> list[Row]:
    """All hostile rows: those of the file, and those too large for one."""
    small = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return [(row["kind"], row["gold"], row["response"]) for row in small] + large_rows()


def box(content: str) -> str:
    """The content in a box."""
    return "\\boxed{" + content + "}"


def nested(opening: str, inside: str, closing: str, depth: int, missing: int = 0) -> str:
    """`inside` in `depth` brackets, of which `missing` are never closed, in a box."""
    return box(opening * depth + inside + closing * (depth - missing))


def large_rows() -> list[Row]:
    """Deep, long and costly answers against the gold 42."""
    nesting = [nested("(", "43", ")", n) for n in (60, 500, 3_000)]
    nesting += [nested("{", "43", "}", n) for n in (100, 5_000)]
    nesting += [
        nested("\\frac{", "1", "}{2}", 200),
        nested("\\sqrt{", "42", "}", 500),
        nested("\\left(", "42", "\\right)", 300, 1),
        nested("\\text{", "43", "}", 100),
        nested("2^{", "2", "}", 100),
        nested("\\boxed{", "43", "}", 50),
        nested("\\lfloor", " 42.5 ", "\\rfloor", 80, 1),
        box("-" * 1_000 + "42"),
        box("+-" * 500 + "42"),
        box("(" * 1_000 + "42"),
    ]
    brackets = [("\\{", "\\}"), ("|", "|"), ("[[", "]]"), ("-(", ")"), ("f(", ")"), ("\\overline{", "}")]
    brackets += [("\\frac{1}{", "}"), ("\\binom{2}{", "}"), ("\\text{\\textbf{", "}}")]
    nesting += [nested(opening, "41", closing, n) for opening, closing in brackets for n in (30, 80, 400, 4_000)]
    filling = [
        "for all ",
        "where ",
        "Ann has ",
        "\\quad ",
        "1 \\quad ",
        "5'",
        "\\mu ",
        "all real numbers except ",
        "h1",
    ]
    filling += ["\\ang{", "\\mathrm{e}{", "negative ", "\\forall ", "x \\in ", "~", ";", "\\\\[", "a,", "x_", "\\,"]
    filling += [",000", "½"]
    inputs = [
        *(box(piece * (1_900 // len(piece)) + "41") for piece in filling),
        "9" * 1_000_000,
        box("9" * 100_000),
        box("1" + "+1" * 50_000),
        box("+".join(["1"] * 43)),
        box(", ".join(map(str, range(10_000)))),
        box("4" * 3_000),
        box(" " * 10_000 + "43"),
        box("0." + "3" * 50_000),
        "=".join(["42"] * 5_000) + "=43",
        "Answer: " * 30_000 + "43",
        "\ud800\\boxed{43}",
    ]
    repeated = ["\\boxed{", "{", "}", "\\", "a ", "a. ", "$", "The answer is ", "1, ", "<think>", "</think>", "\\frac{"]
    repeated += [
        "(",
        "\n",
        "42 ",
        "#### ",
        "\\text{",
        "é",
        "½",
        ".",
        "\\boxed{41} or \\boxed{42} or ",
        "\\boxed{1} or ",
    ]
    repeated += ["<answer>", "```", "is ", "\\left", "$$", "- ", "x="]
    inputs += [piece * (1_000_000 // len(piece)) + end for piece in repeated for end in ("", "41")]
    kinds = {"deep_nesting": nesting, "heavy_algebra": costly(), "large_input": inputs}
    return [(kind, "42", response) for kind, responses in kinds.items() for response in responses]


def costly() -> list[str]:
    """Answers whose evaluation would take long."""
    return [
        box("+".join(f"\\sqrt{{{k}}}" for k in range(2, 80))),
        box("*".join(f"(x+{k})" for k in range(100))),
        box("+".join(f"|x-{k}|" for k in range(50))),
        box("(" * 20 + "x+1" + ")^2" * 20),
        box("\\frac{1}{1+" * 200 + "x" + "}" * 200),
        box("\\sin(" * 40 + "x" + ")" * 40),
        box(determinant(12)),
        box("\\times".join(["99999999999999999999"] * 500)),
        box("+".join(f"\\frac{{1}}{{{k}!}}" for k in range(2_900, 2_990))),
    ]


def determinant(size: int) -> str:
    """A determinant of powers of x."""
    body = "\\\\".join("&".join(f"x^{{{i * j}}}" for i in range(size)) for j in range(size))
    return "\\det\\begin{pmatrix}" + body + "\\end{pmatrix}"


def main() -> None:
    """Grade all rows within the limit and print a line for each: its score, whether the grader failed, the reason."""
    for _, gold, response in rows():
        start_timer(LIMIT_CPU_S)
        verdict = grade(response, gold)
        start_timer(0)
        print(json.dumps([verdict.score, verdict.is_infrastructure, verdict.reason]), flush=True)


if __name__ == "__main__":
    main()
