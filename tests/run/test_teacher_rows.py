"""What a teacher reads. The policy reads none of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from verizero.pipeline.config.teaching import DistillTermConfig, TeacherConfig
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.run.teachers import distill_rows
from verizero.pipeline.train.distillation import DistillRow
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

TOKENIZER = character_tokenizer("0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?|")
RENDERER = Renderer(TOKENIZER, Template(name="plain"))
RUN: Any = SimpleNamespace(tokenizer=TOKENIZER, data=SimpleNamespace(renderer=RENDERER))
WRONG = Verdict("graded", 0.0, "wrong number: 3 is not 2")


def group_of(*texts: str, reference: Any = "2", version: int = 0) -> Group:
    question = Prompt("p", "1+1={answer}?", "math", reference)
    prompt_ids = RENDERER.prompt_ids(question)

    def member(i: int, text: str) -> ScoredRollout:
        ids = RENDERER.text_ids(text)
        return ScoredRollout(Rollout("p", i, prompt_ids, ids, (-0.5,) * len(ids), text, "stop", version), WRONG, 0.0)

    return Group(question, tuple(member(i, text) for i, text in enumerate(texts)))


def read(group: Group, context: int | None = None, **section: Any) -> tuple[list[DistillRow | None], dict[str, float]]:
    term = DistillTermConfig(coef=1.0, teacher=TeacherConfig(hint="{question} ({answer})"), **section)
    return distill_rows(RUN, term, [group], context, policy_version=0)


def test_every_response_is_taught_by_the_hint_and_trains_on_its_own_prompt() -> None:
    rows, counts = read(group_of("3", "2"))
    assert counts == {"distill/unhinted": 0, "distill/too_long": 0}
    for row in rows:
        assert row is not None
        assert RENDERER.decode(row.teacher_prompt_ids) == "1+1={answer}? (2)", "a name in the question stays"
        assert RENDERER.decode(row.prompt_ids) == "1+1={answer}?"


def test_what_a_teacher_cannot_read_has_no_row_and_is_counted() -> None:
    rows, counts = read(group_of("3", "2", reference={"tests": []}))
    assert rows == [None, None]
    assert counts == {"distill/unhinted": 2, "distill/too_long": 0}
    longest = len(RENDERER.prompt_ids(Prompt("p", "1+1={answer}? (2)", "math", "2"))) + 2
    rows, counts = read(group_of("3", "45"), context=longest)
    assert [row is None for row in rows] == [False, True], "a response of two digits and its end is a token too long"
    assert counts == {"distill/unhinted": 0, "distill/too_long": 1}


def test_only_stale_rows_are_weighted_and_only_where_the_recipe_asks() -> None:
    how = {"over": "sampled", "stale_weights": "token"}
    for version, section, is_weighted in ((-1, {}, False), (-1, how, True), (0, how, False)):
        (row,), _ = read(group_of("3", version=version), **section)
        assert row is not None
        assert (row.rollout_logprobs is not None) == is_weighted
