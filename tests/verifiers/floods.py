"""Hostile lengths: responses that repeat one piece, and the verifiers that must refuse them."""

LONG = 60_000
PIECES = [
    " ", "\n", "\t ", "a", "A ", "A or ", "B, ", "1", "1,", "1.", "-", "(", ")", "[", "{", "}", "[1,",
    '{"a":', "\\", "$", "\\boxed{", "*", "`", "```\n", "~~~\n", "<think>", "</think>", "<answer>",
    "</answer>", "answer is ", "####", "####\n",
    "def f(x):\n ", "<<", "*a", "e9", "9e", "9^", "½", "\x00", "\u202e", "é", "好", "'", '"', "the choice ",
]  # fmt: skip
VERIFIERS = [
    ("choice", {}, {"answer": "B", "choices": ["Rome", "Paris"]}),
    ("exact", {"ignore_punctuation": True, "ignore_articles": True}, "Paris"),
    ("numeric", {}, "42"),
    ("format", {}, None),
    ("countdown", {}, {"numbers": [2, 3], "target": 6}),
    ("json_schema", {}, {"schema": {"type": "object", "uniqueItems": True}}),
]


def floods():
    """Each piece with responses of its repetitions."""
    for piece in PIECES:
        flood = piece * (LONG // len(piece))
        yield from ((piece, text) for text in (f"B{flood}!", rf"\boxed{{B{flood}!}}", f"Answer: 1{flood}x"))
