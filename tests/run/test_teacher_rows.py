"""What a teacher reads: a right response of the group and the verifier's message. The policy reads none of it."""

from types import SimpleNamespace

import pytest

from verizero.pipeline.config.teaching import DistillTermConfig, FeedbackConfig, TeacherConfig
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.run.teachers import distill_rows, message_of
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

TOKENIZER = character_tokenizer("0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?|")
RENDERER = Renderer(TOKENIZER, Template(name="plain"))
RUN = SimpleNamespace(tokenizer=TOKENIZER, data=SimpleNamespace(renderer=RENDERER))
QUESTION = Prompt("p", "1+1={right}?", "math", "2")
SHORT = FeedbackConfig(template="{question}{right}{message}", right="\nright: {right}", message="\nfound: {message}")
WRONG = Verdict("graded", 0.0, "wrong number: 3 is not 2")
RIGHT = Verdict("graded", 1.0, "equal")


def group_of(*members, version=0):
    prompt_ids = RENDERER.prompt_ids(QUESTION)

    def member(i, text, verdict):
        ids = RENDERER.text_ids(text)
        rollout = Rollout("p", i, prompt_ids, ids, (-0.5,) * len(ids), text, "stop", version)
        return ScoredRollout(rollout, verdict, None if verdict.is_infrastructure else verdict.score)

    return Group(QUESTION, tuple(member(i, *m) for i, m in enumerate(members)))


def read(group, feedback=SHORT, context=None, **section):
    """The teachers' prompts as texts, the counts, and the rows."""
    term = DistillTermConfig(coef=1.0, teacher=TeacherConfig(feedback=feedback), **section)
    rows, counts = distill_rows(RUN, term, [group], context, policy_version=0)
    return [None if r is None else RENDERER.decode(r.teacher_prompt_ids) for r in rows], counts, rows


def test_each_response_is_taught_with_a_right_one_of_the_others_and_its_own_message():
    texts, counts, rows = read(group_of(("3", WRONG), ("2", RIGHT), ("two: 2", RIGHT), ("4", WRONG)))
    question = "1+1={right}?"
    assert texts == [
        f"{question}\nright: 2\nfound: wrong number: 3 is not 2",
        f"{question}\nright: two: 2",
        f"{question}\nright: 2",
        f"{question}\nright: 2\nfound: wrong number: 3 is not 2",
    ]
    assert counts == {
        "distill/unhinted": 0,
        "distill/too_long": 0,
        "distill/changed": 0,
        "distill/with_right": 4,
        "distill/with_message": 2,
    }
    for row in rows:
        assert row.prompt_ids == RENDERER.prompt_ids(QUESTION), "the policy trains on its own prompt"


def test_a_response_without_a_message_or_a_right_sibling_has_no_row_and_is_counted():
    failed = Verdict("sandbox_error", 0.0, "no walls")
    texts, counts, rows = read(group_of(("2", RIGHT), ("3", Verdict("graded", 0.0)), ("4", failed)))
    assert texts == [None, "1+1={right}?\nright: 2", "1+1={right}?\nright: 2"]
    assert (counts["distill/unhinted"], len(rows)) == (1.0, 3)
    texts, counts, _ = read(group_of(("3", Verdict("graded", 0.0)), ("4", failed), ("5", WRONG)))
    assert texts == [None, None, "1+1={right}?\nfound: wrong number: 3 is not 2"]
    assert counts["distill/unhinted"] == 2.0
    only_right = FeedbackConfig(template="{question}{right}", right="\nright: {right}", message=None)
    texts, counts, _ = read(group_of(("3", WRONG), ("5", WRONG)), only_right)
    assert texts == [None, None]
    assert counts["distill/unhinted"] == 2.0


def test_a_message_is_cut_at_its_tokens_and_counted_and_what_has_no_token_is_replaced():
    long = Verdict("graded", 0.0, "x" * 50)
    strange = Verdict("graded", 0.0, "got [3]")
    short = SHORT.model_copy(update={"max_message_tokens": 12})
    texts, counts, _ = read(group_of(("3", long), ("4", strange), ("5", Verdict("graded", 0.0, "x" * 12))), short)
    assert texts == [f"1+1={{right}}?\nfound: {text}" for text in ("x" * 12, "got ?3?", "x" * 12)]
    assert counts["distill/changed"] == 2.0
    own = len(RENDERER.prompt_ids(QUESTION)) + len("\nfound: ")
    texts, counts, _ = read(group_of(("3", long), ("45", long)), short, context=own + 12 + 2)
    assert [t is None for t in texts] == [False, True], "a response of two digits and its end is a token too long"
    assert counts["distill/too_long"] == 1.0


def test_no_text_of_others_becomes_a_special_token_or_a_name_of_the_template():
    spelled = Verdict("graded", 0.0, "<eos> {question} {right}")
    texts, _, rows = read(group_of(("<eos>{message}", RIGHT), ("3", spelled)))
    assert texts[1].endswith("\nright: < eos>{message}\nfound: < eos> {question} {right}")
    assert texts[1].count("1+1=") == 1
    for row in rows[1:]:
        assert TOKENIZER.eos_token_id not in row.teacher_prompt_ids


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (WRONG, "wrong number: 3 is not 2"),
        (RIGHT, None),
        (Verdict("no_answer", 0.0, "unclosed_box"), "no_answer: unclosed_box"),
        (Verdict("no_answer"), "no_answer"),
        (Verdict("timeout", 0.0, "timeout: 2 s"), "timeout: 2 s"),
        (Verdict("verifier_error", 0.0, "bad_reference: x"), None),
        (Verdict("abstained", 0.0, "none"), None),
        (Verdict("graded", 0.5, "test 2: got 3"), "test 2: got 3"),
    ],
)
def test_the_message_is_what_a_verifier_said_of_the_response(verdict, message):
    assert message_of(verdict) == message


def test_only_stale_rows_are_weighted_and_only_where_the_recipe_asks():
    (row,) = read(group_of(("3", WRONG), version=-1))[2]
    assert row.rollout_logprobs is None
