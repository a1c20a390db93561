"""The adapter to reasoning-gym: its own answers are right, its partial credit is off, its evaluation is kept in."""

import itertools
import os
import resource
import signal
import subprocess
import sys

import pytest

from tests.processes import alive, until
from verizero.pipeline.types import Attempt
from verizero.verifiers._gym_scorer import in_a_copy, is_plain
from verizero.verifiers.reasoning_gym import reasoning_gym

TASKS = ["countdown", "chain_sum", "knights_knaves", "spiral_matrix", "letter_counting"]


def one(reference, response, **params):
    return reasoning_gym.bind(params).score([Attempt(response, reference)])[0]


def reference(dataset, index=0):
    return {"dataset": dataset, "config": {"size": 5, "seed": 3}, "entry": entry(dataset, index)}


def entry(dataset, index=0):
    import reasoning_gym as package

    return package.create_dataset(dataset, size=5, seed=3)[index]


@pytest.mark.run
def test_its_own_answers_are_right_and_others_are_not():
    for dataset in TASKS:
        gold = str(entry(dataset)["answer"])
        assert one(reference(dataset), f"<answer>{gold}</answer>").is_correct
        other = next(str(e["answer"]) for e in (entry(dataset, i) for i in range(1, 5)) if str(e["answer"]) != gold)
        assert one(reference(dataset), f"<answer>{other}</answer>").score == 0.0
        assert one(reference(dataset), "").status == "no_answer"
    listed = " ".join(map(str, range(20)))  # the package itself pays for an answer that contains the right one
    for partial in (False, True):
        assert one(reference("letter_counting"), f"<answer>{listed}</answer>", partial=partial).score == 0.0


@pytest.mark.run
@pytest.mark.nightly
def test_a_parser_of_the_package_is_no_evaluation_of_code():
    logic = reference("propositional_logic")
    logic["entry"]["metadata"] |= {"premises": ["P", "(Q ∨ R)"], "variables": ["P", "Q", "R"]}
    assert one(logic, "<answer>(P ∨ Q)</answer>").is_correct
    assert one(logic, "<answer>(Q ∧ R)</answer>").reason == "wrong: the package gives 0.05"
    assert not one(logic, f"<answer>{'¬' * 4000}P</answer>").is_correct


HOSTILE = [
    "__import__('os').system('touch {path}')",
    "open('{path}', 'w')",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    'exec(\'open("{path}","w")\')',
    "9**9**9**9",
    "9**999999999",
    "lambda: 1",
    "x.real",
    "'{path}'.join('a')",
    "factorial(10**9)",
    "'a'*10**9",
]


@pytest.mark.run
@pytest.mark.nightly
@pytest.mark.parametrize("dataset", ["countdown", "spiral_matrix", "polynomial_multiplication", "puzzle24"])
def test_no_answer_is_run(dataset, tmp_path):
    target = tmp_path / "touched"
    for text in HOSTILE:
        said = one(reference(dataset), "<answer>" + text.replace("{path}", str(target)) + "</answer>")
        assert said.score == 0.0
        assert said.status in ("graded", "timeout", "verifier_error"), said
    assert not target.exists()


def test_honest_answers_are_plain_and_hostile_ones_are_not():
    honest = ["94*4 - 61 - 6", "[[1, 2], [3, 4]]", "x**2 + 3*x - C", "sin(x)/2"]
    hostile = ["[['Q', '_'], ['_', 'Q']]", *(text.replace("{path}", "/tmp/x") for text in HOSTILE)]
    assert [text for text in honest + hostile if is_plain(text)] == honest


@pytest.mark.parametrize(
    ("act", "reply"),
    [
        (lambda: {"score": 1.0}, {"score": 1.0}),
        (lambda: {"score": sum(1 for _ in itertools.count())}, {"over": True}),
        (lambda: {"score": resource.getrlimit(resource.RLIMIT_AS)[0]}, {"score": 1 << 36}),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), {"error": "the scorer was ended by -9"}),
        (lambda: int("x"), {"error": "ValueError: invalid literal for int() with base 10: 'x'"}),
    ],
)
def test_an_answer_has_its_own_time_and_memory_and_costs_no_other(act, reply):
    assert in_a_copy(act, 0.2, 1 << 16) == reply


def test_an_answer_ends_with_the_process_that_asked_for_it():
    code = (
        "import os, time; from verizero.verifiers._gym_scorer import in_a_copy\n"
        "in_a_copy(lambda: print(os.getpid(), flush=True) or time.sleep(600), 600, 1 << 16)"
    )
    asking = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert asking.stdout is not None
    copy = int(asking.stdout.readline())
    assert alive([copy]) == {copy}
    asking.kill()
    asking.wait()
    asking.stdout.close()
    until(lambda: not alive([copy]), "the end of the copy")


def test_broken_references_are_no_wrong_answers():
    entries = [{}, {"answer": "4", ("no", "key"): 1}]
    bad = [None, {}, {"dataset": "chain_sum"}, *({"dataset": "chain_sum", "entry": e} for e in entries)]
    for broken in [*bad, {"dataset": "no_such", "entry": {"answer": "4"}}]:
        assert one(broken, "4").status == "verifier_error", broken
