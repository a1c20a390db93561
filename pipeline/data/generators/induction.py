"""Programs from examples, verified by running: `f(0)=7 f(1)=10` -> `<think>10-7=3</think>def f(x): return 3*x+7`.

The hidden tests are at points that the prompt does not show. Tasks are told apart by their function (slope and
intercept), whichever form writes it, so a held-out function is nowhere in training.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field, model_validator

from verizero.pipeline.data.generators.base import GeneratorParams, Probability, Row, Split, slip, with_demonstrations
from verizero.pipeline.seeds import stream

Form = Literal["linear", "minus", "shifted"]
Task = tuple[Form, int, int]

SOURCE: dict[Form, str] = {"linear": "{a}*x+{b}", "minus": "{a}*x-{b}", "shifted": "(x+{b})*{a}"}


class Params(GeneratorParams):
    """Which functions, how many, and how wrong the demonstrations are."""

    a_min: int = Field(1, ge=1, le=99)
    a_max: int = Field(19, ge=1, le=99)
    b_min: int = Field(0, ge=0, le=999)
    b_max: int = Field(29, ge=0, le=999)
    forms: tuple[Form, ...] = Field(("linear",), min_length=1, description="a*x+b, a*x-b, (x+b)*a")
    num_examples: int = Field(3, ge=2, le=10, description="points shown: f(0), f(1), ...")
    num_tests: int = Field(6, ge=1, le=50, description="hidden points, right after those shown")
    num_train: int = Field(450, ge=1)
    num_evaluation: int = Field(120, ge=0)
    num_demonstrations: int = Field(27_000, ge=0, description="spread evenly over the training tasks")
    noise: Probability = Field(
        0.3, description="chance that a number in the scratchpad is off by one; later numbers use it"
    )
    hinted: Probability = Field(
        0.0,
        description="chance that a demonstration is without slips, and its question shows with equal chances another "
        "right response, or what a check of a wrong one found: for a policy that can use feedback",
    )
    right_hint: str = Field("\nright: {right}", description="added to the question: another right response")
    message_hint: str = Field("\nfound: {message}", description="added to the question: what a check found")
    num_text: int = Field(20_000, ge=0, description="lines of unlabelled text")
    text_noise: Probability = Field(0.6, description="as noise, in the unlabelled text")

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if self.a_max < self.a_min or self.b_max < self.b_min:
            raise ValueError(
                f"a_max and b_max must be >= a_min and b_min, got a {self.a_min}..{self.a_max}, "
                f"b {self.b_min}..{self.b_max}"
            )
        room = len(_functions(self))
        if self.num_train + self.num_evaluation > room:
            raise ValueError(
                f"num_train + num_evaluation must be <= {room}, the number of distinct functions, got "
                f"{self.num_train} + {self.num_evaluation}; lower one or widen a_max, b_max"
            )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no function is both trained on and held out."""
    tasks, held_out = _partition(params, seed)
    noise = stream(seed, "data", "induction", "noise")
    shown = [
        demonstration(tasks[i % len(tasks)], params, params.noise, noise) for i in range(params.num_demonstrations)
    ]
    train, demonstrations = with_demonstrations([_row(t, params) for t in tasks], shown)
    hints = stream(seed, "data", "induction", "hints")
    demonstrations = [
        _with_hint(row, tasks[i % len(tasks)], params, hints) if hints.random() < params.hinted else row
        for i, row in enumerate(demonstrations)
    ]
    return Split(train, [_row(t, params) for t in held_out], demonstrations)


def text_lines(params: Params, seed: int) -> list[str]:
    """Lines of examples, functions and scratchpads, mostly wrong, about training functions only."""
    train, _ = _partition(params, seed)
    rng = stream(seed, "data", "induction", "text")
    return [_line(rng.choice(train), params, rng) for _ in range(params.num_text)]


def value(task: Task, x: int) -> int:
    """f(x)."""
    form, a, b = task
    return a * x + b if form == "linear" else a * x - b if form == "minus" else (x + b) * a


def demonstration(task: Task, params: Params, noise: float, rng: random.Random) -> str:
    """A response to imitate: the slope as the difference of two examples, and the function that follows from it.

    With chance `noise` the first example is read off by one, and with the same chance the difference is.
    """
    form, _, b = task
    first, second = value(task, 0), value(task, 1)
    # The slip is in the size of the number that is read off, never in its sign.
    sign = -1 if first < 0 else 1
    first = sign * slip(abs(first), noise, rng)
    a = slip(abs(second - first), noise, rng)
    written = f"{second}{'+' if first < 0 else '-'}{abs(first)}={a}"
    b = abs(first) if form != "shifted" else slip(b, noise, rng)
    if form == "shifted":
        written += f" {first}/{a}={b}"
    return f"<think>{written}</think>def f(x): return {SOURCE[form].format(a=a, b=b)}"


def _with_hint(row: Row, task: Task, params: Params, rng: random.Random) -> Row:
    """The demonstration without slips, and a question that shows a right response or what was wrong with another."""
    form, a, b = task
    right = demonstration(task, params, 0.0, rng)
    hint = params.right_hint.replace("{right}", right)
    if rng.random() < 0.5:
        wrong: Task = (form, a, b + rng.choice((-1, 1)))
        x = params.num_examples
        message = f"wrong_answer: test 1: for [{x}] expected {value(task, x)}, got {value(wrong, x)}"
        hint = params.message_hint.replace("{message}", message)
    return row | {"question": row["question"] + hint, "demonstration": right}


def _functions(params: Params) -> list[Task]:
    """Every function once, in the first form that writes it."""
    functions: dict[tuple[int, int], Task] = {}
    for form in params.forms:
        for a in range(params.a_min, params.a_max + 1):
            for b in range(params.b_min, params.b_max + 1):
                task = (form, a, b)
                # Slope and intercept identify the function, whichever form writes it.
                functions.setdefault((value(task, 1) - value(task, 0), value(task, 0)), task)
    return list(functions.values())


def _partition(params: Params, seed: int) -> tuple[list[Task], list[Task]]:
    """Training and evaluation tasks: the functions in a shuffled order, the first of them held out."""
    tasks = _functions(params)
    stream(seed, "data", "induction", "split").shuffle(tasks)
    end = params.num_evaluation + params.num_train
    return tasks[params.num_evaluation : end], tasks[: params.num_evaluation]


def _examples(task: Task, params: Params) -> str:
    return " ".join(f"f({x})={value(task, x)}" for x in range(params.num_examples))


def _line(task: Task, params: Params, rng: random.Random) -> str:
    kind = rng.randrange(8)
    written = demonstration(task, params, params.text_noise, rng)
    if kind == 0:
        return written.partition("</think>")[2]
    if kind == 1:
        return _examples(task, params)
    if kind == 2:
        return written
    return _examples(task, params) + written


def _row(task: Task, params: Params) -> Row:
    form, a, b = task
    hidden = range(params.num_examples, params.num_examples + params.num_tests)
    return {
        "id": f"induction/{SOURCE[form].format(a=a, b=b)}",
        "question": _examples(task, params),
        "answer": {"fn": "f", "tests": [{"args": [x], "expected": value(task, x)} for x in hidden]},
        "domain": "induction",
        "verifier": "code",
    }
