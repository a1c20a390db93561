"""A response in compact form has every number that it had; what other ranks are told of it decides and weighs alike."""

from __future__ import annotations

import pickle
import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.batches import groups_of
from tests.train.episodes import episodes_of
from verizero.pipeline.compact import Elsewhere, Numbers
from verizero.pipeline.held import compacted, told, told_group
from verizero.pipeline.loop.batch import Batch
from verizero.pipeline.loop.metrics import rollout_metrics, trained_responses
from verizero.pipeline.rows import is_truncated, trained_rows
from verizero.pipeline.scoring.second_opinion import merged
from verizero.pipeline.scoring.select import classify_group
from verizero.pipeline.types import Call, Group, KeptTokens, Message, Rollout, Routing, Turn, Verdict

SECRET = "words"


def recorded(rollout: Rollout, rng: random.Random) -> Rollout:
    """The response with records of its sampling, and words in every text; an episode's in every turn."""

    def with_records(turn: Turn) -> Turn:
        sizes = tuple(rng.randint(0, 3) for _ in turn.sampled)
        kept = KeptTokens(sizes, bytes(4 * sum(sizes)), rng.randint(0, 2)) if turn.trains else None
        num = len(turn.observed) + len(turn.sampled)
        return replace(turn, kept=kept, routing=Routing(1, 2, bytes(4 * num)))

    if rollout.episode is None:
        (turn,) = rollout.turns
        own = with_records(turn)
        return replace(rollout, kept=own.kept, routing=Routing(1, 2, own.routing.experts[4:]), text=SECRET)  # type: ignore[union-attr]
    rows = tuple(
        tuple(
            replace(t, routing=t.routing if k else Routing(1, 2, t.routing.experts[4:]))  # type: ignore[union-attr]
            for k, t in enumerate(map(with_records, row))
        )
        for row in rollout.episode.rows
    )
    calls = (Call("0-0", "add", {"a": SECRET}),) if rng.random() < 0.5 else ()
    messages = (Message("user", SECRET), Message("assistant", SECRET, calls), Message("tool", SECRET, answers="0-0"))
    episode = replace(
        rollout.episode, rows=rows, messages=messages, answer=SECRET, outcome=Verdict("graded", 1.0, extracted=SECRET)
    )
    first = rows[0][0]
    return replace(rollout, kept=first.kept, routing=first.routing, text=SECRET, episode=episode)


def made(seed: int) -> list[Group]:
    """Groups of responses and of episodes, all with records."""
    rng = random.Random(seed)
    groups = [*groups_of(2, 3, seed, lost=False), *episodes_of(2, 3, seed, versions=(2, 3))]
    return [
        replace(
            g,
            members=tuple(
                replace(
                    m, rollout=recorded(m.rollout, rng), components=(0.5,), verdict=replace(m.verdict, extracted=SECRET)
                )
                for m in g.members
            ),
        )
        for g in groups
    ]


def rollouts_of(groups: list[Group]) -> list[Rollout]:
    return [m.rollout for g in groups for m in g.members]


def sequences(value: Any) -> list[Any]:
    """The sequences of numbers of a rollout, its turns' among them."""
    turns = [t for row in value.episode.rows for t in row] if value.episode is not None else []
    return [
        *(value.prompt_ids, value.response_ids, value.logprobs, value.kept.sizes),
        *(x for t in turns for x in (t.observed, t.sampled, t.logprobs, *([] if t.kept is None else [t.kept.sizes]))),
    ]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999))
def test_a_compact_response_is_the_same_response(seed: int) -> None:
    plain = rollouts_of(made(seed))
    held = compacted(plain)
    assert held == plain
    assert pickle.loads(pickle.dumps(held)) == plain
    assert all(isinstance(x, Numbers) for r in held for x in sequences(r))
    assert all(
        a is b
        for a, b in zip(map(sequences, compacted(held)), map(sequences, held), strict=True)
        for a, b in zip(a, b, strict=True)
    )


def test_what_responses_share_they_share_in_compact_form() -> None:
    prompt = tuple(range(9))
    members = [replace(r, prompt_ids=prompt, episode=None) for r in rollouts_of(made(1))[:3]]
    assert len({id(r.prompt_ids) for r in compacted(members)}) == 1
    (episode,) = compacted([r for r in rollouts_of(made(1)) if r.episode is not None][:1])
    assert episode.episode is not None
    assert episode.response_ids is episode.episode.rows[0][0].sampled


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999))
def test_all_ranks_decide_alike_by_what_they_are_told(seed: int) -> None:
    groups = made(seed)
    other = pickle.loads(pickle.dumps([told_group(g, 5) for g in groups]))
    assert [classify_group(g, True) for g in other] == [classify_group(g, True) for g in groups]
    assert [g.rewards for g in other] == [g.rewards for g in groups]
    for theirs, own in zip(rollouts_of(other), rollouts_of(groups), strict=True):
        assert theirs.held_by == 5
        assert theirs.prompt_ids == own.prompt_ids
        assert theirs.num_sampled == own.num_sampled
        assert theirs.was_cut is own.was_cut
        assert is_truncated(theirs) is is_truncated(own)
        assert theirs.oldest_version == own.oldest_version
        shapes = [
            [(row.num_tokens, [(s.start, s.stop, s.number) for s in row.spans], row.policy_version) for row in rows]
            for rows in (trained_rows(theirs), trained_rows(own))
        ]
        assert shapes[0] == shapes[1]
        assert [(t.reward, t.state) for t in theirs.turns] == [(t.reward, t.state) for t in own.turns]
    metrics = [{**rollout_metrics(Batch(x, x, {}, [])), **trained_responses(x)} for x in (other, groups)]
    assert metrics[0] == metrics[1]
    assert "sampling/kept_mean" in metrics[0]
    assert "episodes/with_calls" in metrics[0]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 9999))
def test_no_text_and_no_sampled_token_is_told(seed: int) -> None:
    other = [told_group(g, 5) for g in made(seed)]
    assert SECRET.encode() not in pickle.dumps(other)
    for r in rollouts_of(other):
        assert all(isinstance(x, Elsewhere) for x in sequences(r)[1:])
        assert r.routing is None
        with pytest.raises(LookupError, match="is on rank 5"):
            _ = r.answer
        assert told(r, 6) is r


def test_every_field_of_a_response_is_either_told_or_left_out() -> None:
    """A new field needs a decision here."""
    assert {f.name for f in fields(Rollout)} == {
        *("prompt_id", "sample", "prompt_ids", "finish_reason", "policy_version"),
        *("response_ids", "logprobs", "text", "kept", "routing", "episode", "held_by"),
    }


def test_opinions_of_all_ranks_are_put_together() -> None:
    right, wrong = Verdict("graded", 1.0), Verdict("graded", 0.0)
    assert merged([[{1: right}, {}], [{}, {0: wrong}]]) == [{1: right}, {0: wrong}]
