"""Overlap of evaluation with training; that generators have none, tests/data/generators shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.data.overlap import check_overlap, find_overlap, normalise
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

LONG = "A train leaves the town of Ulm at nine and goes at 60 km per hour to Bonn, 480 km away. When is it there?"
WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=8).map(" ".join)


def _prompts(questions: list[str], name: str) -> list[Prompt]:
    return [Prompt(f"{name}/{i}", q, "exact", "1") for i, q in enumerate(questions)]


def _kinds(train: list[str], evaluation: list[str], **options: object) -> dict[str, str]:
    found = find_overlap(_prompts(train, "t"), _prompts(evaluation, "e"), **options)
    return {m.evaluation_id: m.kind for m in found.matches}


def test_three_kinds_each_named_by_the_strongest():
    train = ["1+2=", "What is  the Sum?", LONG.replace("Bonn", "Köln")]
    evaluation = ["1+2=", "what is the sum", LONG, "2+1=", "Something else"]
    assert _kinds(train, evaluation, ngram=4) == {"e/0": "exact", "e/1": "normalised", "e/2": "ngram"}
    assert _kinds(train, evaluation, ngram=5) == {"e/0": "exact", "e/1": "normalised"}


@pytest.mark.parametrize(
    ("one", "other"), [("1+2=", "1-2="), ("1.5", "15"), ("5!", "5"), ("f'(x)", "f(x)"), ("3:4", "3 4"), ("a<b", "a>b")]
)
def test_normalising_keeps_what_tells_tasks_apart(one, other):
    assert normalise(one) != normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("What is it?", "what is  it"), ("Ａ, b.", "a b"), ("Yes: no; so,", "yes no so"), ("ﬁne", "FINE")],
)
def test_normalising_drops_how_it_is_written(one, other):
    assert normalise(one) == normalise(other)


@given(train=st.lists(WORDS, max_size=5), evaluation=st.lists(WORDS, max_size=5), ngram=st.integers(2, 4))
def test_ngram_shares_are_those_of_a_slow_count(train, evaluation, ngram):
    def grams(text):
        words = text.split()
        return {" ".join(words[i : i + ngram]) for i in range(len(words)) if i + ngram <= len(words)}

    expected = {}
    for i, question in enumerate(evaluation):
        own = grams(question)
        shared = [g for g in own if any(g in grams(t) for t in train)]
        if question in train:
            expected[f"e/{i}"] = "exact"
        elif own and len(shared) >= 0.8 * len(own):
            expected[f"e/{i}"] = "ngram"
    assert _kinds(train, evaluation, ngram=ngram) == expected


def test_a_question_of_episodes_with_several_answers_gives_none_away():
    """Guess a number: the text is always the same, and what tells tasks apart is in the environment."""

    def asked(answers, name, environment):
        return [Prompt(f"{name}/{a}", "Guess!", "exact", a, environment=environment) for a in answers]

    for train, evaluation, number in (
        (asked(["1", "2"], "t", "guess"), asked(["1", "2"], "e", "guess"), 0),
        (asked(["1", "2"], "t", None), asked(["2"], "e", "guess"), 0),  # demonstrations name no environment
        (asked(["1"], "t", "guess"), asked(["1", "2"], "e", "guess"), 2),
        (asked(["1", "2"], "t", None), asked(["1", "2"], "e", None), 2),
    ):
        assert len(find_overlap(train, evaluation).matches) == number


def test_instructions_that_every_prompt_repeats_are_no_overlap():
    ask = "Solve the following problem step by step and put the answer on the last line of your response please. "
    train = [f"{ask}What is {i} plus {i * i}?" for i in range(300)]
    found = find_overlap(_prompts(train, "t"), _prompts([f"{ask}What is France?"], "e"))
    assert not found.matches
    leaked = LONG + " " + ask
    assert _kinds([*train, leaked.replace("A train", "The train")], [leaked]) == {"e/0": "ngram"}


def test_error_says_how_many_of_which_kind_and_what_to_do():
    train, evaluation = _prompts(["1+2=", "3+4="], "t"), _prompts(["1+2=", "5+6="], "e")
    said = r"1 of 2 evaluation prompts .* \(1 exact, 0 normalised, 0 ngram\): 'e/0' in 't/0'.*on_overlap: drop"
    with pytest.raises(DataError, match=said):
        check_overlap(train, evaluation, "error")


def test_drop_takes_out_every_training_prompt_that_matches_and_report_none(logged):
    train, evaluation = _prompts(["1+2=", "3+4=", "1+2=", " 1+2= "], "t"), _prompts(["1+2="], "e")
    kept, found = check_overlap(train, evaluation, "drop")
    assert [p.id for p in kept] == ["t/1"], "equal and nearly equal ones"
    assert found.counts == {"exact": 1, "normalised": 0, "ngram": 0}
    assert not find_overlap(kept, evaluation).matches
    assert "dropped 3 training prompts" in "\n".join(logged)
    kept, _ = check_overlap(train, evaluation, "report")
    assert kept == train
    with pytest.raises(DataError, match="training prompt"):
        check_overlap(train[:1], evaluation, "drop")
