"""Rows of the package reasoning-gym: its scorer accepts its answers, equal seeds give equal rows, none in both."""

import json
import re
import subprocess
import sys

import pytest

from verizero.pipeline.data.generators import _gym_tasks
from verizero.pipeline.data.generators.base import generate
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load

pytestmark = [pytest.mark.run, pytest.mark.nightly]
MIXED = {
    "datasets": [{"name": "chain_sum", "weight": 2}, {"name": "leg_counting"}, {"name": "word_ladder", "weight": 1}],
    "num_train": 20,
    "num_evaluation": 8,
}


@pytest.fixture(scope="module", autouse=True)
def package():
    pytest.importorskip("reasoning_gym")


def graded(row: dict, response: str) -> tuple[str, float]:
    (verdict,) = load("reasoning_gym").bind().score([Attempt(response, row["answer"], row["question"])])
    return verdict.status, verdict.score


@pytest.fixture(scope="module")
def split():
    """The rows of MIXED by seed 3."""
    return generate("reasoning_gym", MIXED, 3)


def test_the_scorer_accepts_each_tasks_own_answer_and_no_other(split):
    for row in [*split.train[:6], *split.evaluation]:
        answer = row["answer"]["entry"]["answer"]
        assert graded(row, f"<answer>{answer}</answer>") == ("graded", 1.0)
        assert graded(row, "<answer>17x</answer>")[1] == 0.0
        assert json.loads(json.dumps(row)) == row


def test_no_question_is_trained_on_and_held_out_even_over_parts():
    # Both parts make sums of two digits: 100 questions at most, of which each part would make the other's.
    small = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    parts = [
        {"name": "chain_sum", "config": small},
        {"name": "chain_sum", "config": {**small, "allow_negation": False}},
    ]
    split = generate("reasoning_gym", {"datasets": parts, "num_train": 60, "num_evaluation": 20}, 0)
    questions = [r["question"] for r in [*split.train, *split.evaluation]]
    assert len(set(questions)) == len(questions) == 80
    assert len({r["id"] for r in [*split.train, *split.evaluation]}) == 80
    assert re.search(r"distinct tasks in .* lower num_train", refusal(parts[0], 250))


def test_a_level_makes_tasks_harder_and_the_config_wins():
    parts = [{"level": 0}, {"level": 3}, {"level": 3, "config": {"min_terms": 2, "max_terms": 2}}]
    made = [*({"name": "chain_sum", **part} for part in parts), {"name": "bf", "level": 0}]
    lengths = {"0-chain_sum": [], "1-chain_sum": [], "2-chain_sum": [], "3-bf": []}
    for row in generate("reasoning_gym", {"datasets": made, "num_train": 160, "num_evaluation": 0}, 1).train:
        lengths[row["id"].split("/")[1]].append(len(row["question"].split("=")[0].split()))
    assert [len(numbers) for numbers in lengths.values()] == [40] * 4
    easiest, hard, bound, _ = map(max, lengths.values())
    assert easiest == bound < hard


def refusal(part: dict, count: int = 2) -> str:
    """Return the words by which the program refuses a part, in this process."""
    import reasoning_gym as gym
    from reasoning_gym import factory

    whole = {"level": None, "config": {}, "seed": 1, "count": count, **part}
    with pytest.raises(_gym_tasks.Refused) as refused:
        _gym_tasks.tasks_of(gym, factory, whole, set())
    return str(refused.value)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"name": "chain_sum", "config": {"min_trems": 2}}, "refuses its config .*min_trems"),
        ({"name": "chain_sum", "config": {"min_terms": 9, "max_terms": 2}}, "refuses its config"),
        ({"name": "arc_agi"}, "refuses the answer of its own task"),
        ({"name": "composite", "level": 0}, "has no levels"),
    ],
)
def test_a_part_that_cannot_be_made_is_named(part, words):
    assert re.search(words, refusal(part))


def test_a_refusal_is_an_error_of_the_data_that_names_the_part():
    parts = [{"name": "bf", "level": 0}, {"name": "chain_sums"}]
    with pytest.raises(DataError, match="did you mean chain_sum"):
        generate("reasoning_gym", {"datasets": parts, "num_train": 2, "num_evaluation": 0}, 0)


def test_it_loads_without_the_package_and_says_how_to_install_it():
    code = (
        "import sys\n"
        "sys.modules['reasoning_gym'] = None\n"
        "from verizero.pipeline.data.generators import reasoning_gym as g\n"
        "g.sys.executable = sys.argv[1]\n"
        "g.rows(g.Params(), 0)\n"
    )
    bare = getattr(sys, "_base_executable", sys.executable)
    ended = subprocess.run([sys.executable, "-c", code, bare], capture_output=True, text=True)
    assert "reasoning-gym is not installed" in ended.stderr
    assert "pip install" in ended.stderr
