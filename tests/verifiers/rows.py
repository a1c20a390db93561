"""Labelled answers for the verifiers that need no sandbox: (verifier, params, reference, response, wanted).

`wanted` is a score, or the status when nothing is graded.
"""

from __future__ import annotations

import json
from typing import Any

Row = tuple[str, dict[str, Any], Any, str, float | str]


def table(name: str, columns: tuple[str, ...], cases: list[tuple[Any, ...]]) -> list[Row]:
    """Rows of one verifier from cases with these columns; others are empty."""
    made = []
    for case in cases:
        given = {"params": {}, "reference": None, **dict(zip(columns, case, strict=True))}
        made.append((name, given["params"], given["reference"], given["response"], given["wanted"]))
    return made


CITY = {"answer": "B", "choices": ["Rome", "Paris", "Oslo", "Bern"]}
CHOICE: list[Row] = table(
    "choice",
    ("reference", "response", "wanted"),
    [
        ("B", r"\boxed{B}", 1),
        ("B", r"\boxed{\text{(B)}}", 1),
        ("(b)", "**B**", 1),
        (1, "The answer is (B).", 1),
        ("B", "<think>A? C?</think>\nAnswer: b", 1),
        ("B", "Answer: option B", 1),
        ("B", "The answer is the choice B", 1),
        ("B", "<answer>B)</answer>", 1),
        ("B", "Ｂ", 1),
        (CITY, "Answer: Paris", 1),
        (CITY, r"\boxed{B) Paris}", 1),
        (CITY, r"\boxed{\text{B: paris.}}", 1),
        (CITY, r"\boxed{B. Oslo}", 0),
        (CITY, "Answer: Rome", 0),
        (CITY, r"\boxed{B} \boxed{C}", 0),
        ("B", r"\boxed{A}, \boxed{B}", 0),
        ("B", r"\boxed{A} or \boxed{B}", 0),
        ("B", r"\boxed{A}\boxed{B}\boxed{C}\boxed{D}", 0),
        ("B", "Answer: A or B", 0),
        ("B", "Answer: B or C", 0),
        ("B", "Answer: B, C", 0),
        ("B", "Answer: (B) and (C)", 0),
        ("B", r"\boxed{C}", 0),
        ("B", "Answer: Because it is so", "no_answer"),
        ("B", r"\boxed{}", "no_answer"),
        ("B", r"\boxed{B", "no_answer"),
        ("B", "<think>B", "no_answer"),
        ("B", "<think>so it is B</think>", "no_answer"),
        ("B", "", "no_answer"),
        ("B", "First, A fails.\nThen B holds.", "no_answer"),
        ({"answer": "Z"}, r"\boxed{B}", "verifier_error"),
        (None, r"\boxed{B}", "verifier_error"),
        (True, r"\boxed{B}", "verifier_error"),
    ],
)
EXACT: list[Row] = table(
    "exact",
    ("params", "reference", "response", "wanted"),
    [
        ({}, "Marie Curie", "Answer: marie   curie.", 1),
        ({}, ["NYC", "New York City"], r"\boxed{\text{New York City}}", 1),
        ({}, "Curie", "Curie", 1),
        ({}, 42, "42", 1),
        ({"ignore_case": False}, "NaCl", "nacl", 0),
        ({"ignore_articles": True}, "sun", "the sun", 1),
        ({}, "sun", "the sun", 0),
        ({"ignore_punctuation": True}, "well-known", "well known!", 1),
        ({}, "Curie", "Answer: Curie or Meitner", 0),
        ({}, "Curie", "I think of Curie.\nOr was it Meitner?", "no_answer"),
        ({"where": "response"}, "a b", "a\nb", 1),
        ({"where": "response"}, "Curie", "It is Curie", 0),
        ({}, "Curie", "", "no_answer"),
        ({}, "", "", "verifier_error"),
        ({}, [], "x", "verifier_error"),
        ({"max_chars": 10}, "x" * 20, "x" * 20, 0),
    ],
)
NUMERIC: list[Row] = table(
    "numeric",
    ("params", "reference", "response", "wanted"),
    [
        ({}, 0.1, "Answer: 0.1", 1),
        ({}, "1/3", r"\boxed{\frac{1}{3}}", 1),
        ({}, "1/3", "0.333333333333", 0),
        ({}, 1234567, "1,234,567", 1),
        ({}, 1234, "12,34", 0),
        ({}, "1200", r"$1.2\times 10^{3}$", 1),
        ({}, "1200", "1.2e3", 1),
        ({}, "0.35", r"35\%", 1),
        ({}, "0.35", "35", 0),
        ({"unit": "m"}, 5, "5 m", 1),
        ({"unit": "m"}, 5, "5 km", 0),
        ({}, 5, "5 m", 0),
        ({}, -5, "−5", 1),
        ({}, 5, "-5", 0),
        ({"abs_tol": 0.01}, 3.14, "3.1415", 1),
        ({"abs_tol": 0.001}, 3.14, "3.1415", 0),
        ({"rel_tol": 0.1}, 100, "109", 1),
        ({"rel_tol": 0.1}, 0, "0.0001", 0),
        ({}, {"value": 10, "abs_tol": 1}, "10.5", 1),
        ({}, 5, "5 or 6", 0),
        ({}, 5, "nan", 0),
        ({"abs_tol": 1e300}, 5, "inf", 0),
        ({}, 5, "5/0", 0),
        ({}, 5, "1e999999", 0),
        ({}, 5, "9" * 5000, 0),
        ({}, 5, r"\boxed{5} or \boxed{6}", 0),
        ({}, 5, "", "no_answer"),
        ({}, "five", "5", "verifier_error"),
        ({}, float("inf"), "5", "verifier_error"),
        ({}, True, "1", "verifier_error"),
    ],
)
R1 = "<think>carry one</think><answer>42</answer>"
FORMAT: list[Row] = table(
    "format",
    ("params", "response", "wanted"),
    [
        ({}, R1, 1),
        ({}, f"  {R1}\n", 1),
        ({"opened": True}, R1.removeprefix("<think>"), 1),
        ({"opened": True}, R1, 0),
        ({}, R1 + R1, 0),
        ({}, R1 + " and more", 0),
        ({"allow_outside": True}, R1 + " and more", 1),
        ({}, "<think></think><answer>42</answer>", 0),
        ({}, "<think>x</think><answer> </answer>", 0),
        ({}, "<answer>42</answer><think>x</think>", 0),
        ({}, "<think>x<answer>42</answer></think>", 0),
        ({}, "<think><think>x</think></think><answer>42</answer>", 0),
        ({"min_think_chars": 20}, R1, 0),
        ({"tags": "think"}, "<think>x</think>42", 1),
        ({"tags": "think"}, "<think>x</think>", 0),
        ({"tags": "think"}, "so: <think>x</think>42", 0),
        ({}, "42", 0),
        ({}, "", 0),
    ],
)
GAME = {"numbers": [3, 5, 7, 100], "target": 52}
COUNTDOWN: list[Row] = table(
    "countdown",
    ("params", "reference", "response", "wanted"),
    [
        ({}, {"numbers": [2, 3, 8], "target": 24}, "<answer>3 * 8</answer>", 1),
        ({}, {"numbers": [2, 3, 8], "target": 24}, r"\boxed{8 \times 3 = 24}", 1),
        ({}, {"numbers": [4, 4, 10, 10], "target": 24}, "Answer: (10×10−4)÷4", 1),
        ({}, {"numbers": [1, 3, 4, 6], "target": 24}, "6/(1-3/4)", 1),
        ({"whole_steps": True}, {"numbers": [1, 3, 4, 6], "target": 24}, "6/(1-3/4)", 0),
        ({"use_all": True}, {"numbers": [2, 3, 8], "target": 24}, "3*8", 0),
        ({}, {"numbers": [2, 3, 8], "target": 24, "use_all": True}, "3*8", 0),
        ({}, {"numbers": [2, 3, 8], "target": 24}, "24", 0),
        ({}, {"numbers": [2, 3, 8], "target": 24}, "2*2*2*3", 0),
        ({}, {"numbers": [2, 3, 8], "target": 24}, "8*3 = 25", 0),
        ({}, {"numbers": [2, 3, 8], "target": 25}, "8*3 = 25", 0),
        ({}, {"numbers": [2, 4], "target": 24}, "24", 0),
        ({}, {"numbers": [2, 3], "target": 8}, "2**3", 0),
        ({}, {"numbers": [2, 3], "target": 8}, "2^3", 0),
        ({}, {"numbers": [2, 3], "target": 1}, "2//3+1", 0),
        ({}, {"numbers": [0, 3], "target": 3}, "3/0", 0),
        ({}, {"numbers": [3], "target": 3}, "-(-3)", 0),
        ({}, GAME, "__import__('os').getpid()", 0),
        ({}, GAME, "(" * 5000 + "3" + ")" * 5000, 0),
        ({}, GAME, "100/(7-5)+3-1", 0),
        ({}, GAME, "", "no_answer"),
        ({}, GAME, r"\boxed{}", "no_answer"),
        ({}, {"numbers": [], "target": 3}, "3", "verifier_error"),
        ({}, {"numbers": [1]}, "3", "verifier_error"),
    ],
)
SOLVED = "1234341221434321"
SUDOKU: list[Row] = table(
    "sudoku",
    ("reference", "response", "wanted"),
    [
        ({"puzzle": "1000000000000001"}, SOLVED, 1),
        ({"puzzle": ["1...", "....", "....", "...1"]}, "1234\n3412\n2143\n4321", 1),
        ({"puzzle": "1000000000000001"}, "```\n1 2 | 3 4\n3 4 | 1 2\n----+----\n2 1 | 4 3\n4 3 | 2 1\n```", 1),
        ({"puzzle": "1000000000000001"}, "<answer>[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]</answer>", 1),
        ({"puzzle": "2000000000000000"}, SOLVED, 0),
        ({"puzzle": "1000000000000001"}, "1234123412341231", 0),
        ({"puzzle": "1000000000000001"}, "1234341243212143"[:15], 0),
        ({"puzzle": "1000000000000001"}, SOLVED + "1", 0),
        ({"puzzle": "1000000000000001"}, "1000000000000001", 0),
        ({"puzzle": "1000000000000001"}, f"Here it is: {SOLVED}", 0),
        ({"puzzle": "1000000000000001"}, "", "no_answer"),
        ({"puzzle": "123"}, SOLVED, "verifier_error"),
        ({"puzzle": "5" + "0" * 15}, SOLVED, "verifier_error"),
    ],
)
# Zoey: "Oliver is a knave." Oliver: "Zoey and I are of one kind."
KK = {"people": ["Zoey", "Oliver"], "statements": [["lying", 1], ["<=>", ["telling-truth", 0], ["telling-truth", 1]]]}
ROLES = {"truthful": "pioneer", "lying": "laggard"}
KK_SOLVED = {"people": ["Ann", "Bob"], "solution": {"Ann": "knave", "Bob": "knight"}}
KNIGHTS: list[Row] = table(
    "knights_knaves",
    ("reference", "response", "wanted"),
    [
        (KK_SOLVED, "Ann is a knave, and Bob is a knight.", 1),
        (KK_SOLVED, "CONCLUSION:\n(1) Ann is a knave\n(2) Bob is a knight", 1),
        (KK_SOLVED, "<answer>Ann: knave; Bob: knight</answer>", 1),
        (KK_SOLVED, "Knights: Bob. Knaves: Ann.", 1),
        (KK_SOLVED, "Ann is not a knight and Bob is not a knave", 1),
        (KK_SOLVED, "Ann and Bob are both knights", 0),
        (KK_SOLVED, "Ann is a knave, Bob is a knight, Bob is a knave", 0),
        (KK_SOLVED, "Ann is a knave. Ann is a knight. Bob is a knight. Bob is a knave.", 0),
        (KK_SOLVED, "Bob is a knight.", 0),
        (KK_SOLVED, "It cannot be known.", "no_answer"),
        (KK_SOLVED, "<think>Ann is a knave, Bob is a knight", "no_answer"),
        (KK, "Zoey is a knight and Oliver is a knave", 1),
        (KK, "Zoey and Oliver are knaves", 0),
        (KK, "Zoey is a knave and Oliver is a knight", 0),
        (KK, "", "no_answer"),
        ({"people": ["A"], "statements": [["xor", 0]]}, "A is a knight", "verifier_error"),
        ({"people": ["A", "A"], "statements": [["knight", 0]] * 2}, "A is a knight", "verifier_error"),
        ({"people": ["A"], "solution": {"A": "spy"}}, "A is a knight", "verifier_error"),
    ],
)
KNIGHTS.append(("knights_knaves", ROLES, KK, "Zoey is a pioneer; Oliver is a laggard", 1))
SCHEMA = {
    "schema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "values": {"age": 42},
}
JSON: list[Row] = table(
    "json_schema",
    ("params", "reference", "response", "wanted"),
    [
        ({}, SCHEMA, '{"name": "Ada", "age": 42}', 1),
        ({}, json.dumps(SCHEMA), 'Here:\n```json\n{"name": "Ada", "age": 42}\n```\nDone.', 1),
        ({"allow_text": False}, SCHEMA, 'Here:\n```json\n{"name": "Ada", "age": 42}\n```\nDone.', 0),
        ({}, SCHEMA, '{"name": "Ada", "age": 41}', 0),
        ({}, SCHEMA, '{"name": "Ada", "age": "42"}', 0),
        ({}, SCHEMA, '{"name": "Ada", "age": true}', 0),
        ({}, SCHEMA, '{"name": "Ada", "age": 42, "extra": 1}', 0),
        ({}, SCHEMA, '{"name": "Ada", "age": 1, "age": 42}', 0),
        ({}, SCHEMA, '{"name": "Ada", "age": 42} trailing', 0),
        ({}, SCHEMA, "{'name': 'Ada', 'age': 42}", 0),
        ({}, {"equals": {"x": [1, 2.5, None]}}, '{"x": [1.0, 2.5, null]}', 1),
        ({}, {"equals": [1]}, "[true]", 0),
        ({}, {"equals": {"x": 1}}, '{"x": NaN}', 0),
        ({}, {"equals": []}, "[" * 100_000, 0),
        ({}, {"equals": 1}, "1" * 10_000, 0),
        ({}, SCHEMA, '```json\n{"name": "Ada", "age": 42}\n```\n```json\n{}\n```', "no_answer"),
        ({}, SCHEMA, '```json\n{"name": "Ada"', "no_answer"),
        ({}, SCHEMA, "", "no_answer"),
        ({}, {"schema": {"type": "strnig"}}, "1", "verifier_error"),
        ({}, {}, "1", "verifier_error"),
        ({}, {"schema": {"$ref": "http://localhost:9/x.json"}}, "1", "verifier_error"),
    ],
)
WITHOUT_SANDBOX: list[Row] = CHOICE + EXACT + NUMERIC + FORMAT + COUNTDOWN + SUDOKU + KNIGHTS + JSON
