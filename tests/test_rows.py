"""The rows of rollouts: spans, records joined, and the invariants that are held."""

import dataclasses
import math
from array import array

import pytest

from verizero.pipeline.errors import DataError, EngineError
from verizero.pipeline.rows import is_truncated, require_single, rows, trained_rows
from verizero.pipeline.types import Episode, KeptTokens, Rollout, Routing, Turn

FIRST = Turn((7, 9), (4, 1), (-0.1, -0.7), "stop", 12)
SECOND = Turn((1, 8), (6, 3, 1), (-0.2, -0.3, -0.4), "stop", 14)
OTHER = Turn((1, 2), (5,), (-0.5,), "length", 13)
SHARED = dataclasses.replace(FIRST, trains=False)
SINGLE = Rollout("p", 0, (7, 9), (4, 1), (-0.1, -0.7), "", "stop", 12)


def episode(*of_rows, **fields):
    return dataclasses.replace(SINGLE, episode=Episode(of_rows, (), **fields))


def changed(turn, **fields):
    return dataclasses.replace(turn, **fields)


def test_a_single_response_is_one_row_whose_ids_are_not_copied():
    (row,) = trained_rows(SINGLE)
    assert [ids for ids, _ in row.pieces] == [(7, 9), (4, 1)]
    assert row.pieces[0][0] is SINGLE.prompt_ids
    assert row.pieces[1][0] is SINGLE.response_ids
    (span,) = row.spans
    assert (span.start, span.stop, span.number) == (2, 4, 0)
    assert span.turn.logprobs is SINGLE.logprobs
    assert (row.ids, row.num_tokens, row.policy_version) == ((7, 9, 4, 1), 4, 12)
    assert rows(SINGLE) == ((row.spans[0].turn,),)


def test_spans_of_a_row_skip_what_was_observed():
    (row,) = trained_rows(episode((FIRST, SECOND)))
    assert row.ids == (7, 9, 4, 1, 1, 8, 6, 3, 1)
    assert [(s.start, s.stop, s.number) for s in row.spans] == [(2, 4, 0), (6, 9, 1)]
    assert [row.ids[s.start : s.stop] for s in row.spans] == [FIRST.sampled, SECOND.sampled]
    assert row.policy_version == 12


def test_a_fork_trains_the_shared_turn_once_and_numbers_turns_in_the_order_drawn():
    first, second = trained_rows(episode((FIRST, SECOND), (SHARED, OTHER)))
    assert second.ids == (7, 9, 4, 1, 1, 2, 5)
    assert [(s.start, s.stop, s.number) for s in second.spans] == [(6, 7, 2)]
    assert second.policy_version == 13
    trained = sum(s.stop - s.start for row in (first, second) for s in row.spans)
    assert trained == episode((FIRST, SECOND), (SHARED, OTHER)).num_sampled == 6


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        (episode((FIRST, SECOND), (FIRST, OTHER)), "row 1 of response 0 to 'p' trains a turn of an earlier row again"),
        (episode((FIRST,), (changed(SECOND, trains=False), OTHER)), "shares a turn that no earlier row has"),
        (episode((FIRST, SECOND), (SHARED,)), "ends with a turn that does not train"),
        (episode((SHARED, SECOND)), "row 0 of response 0 to 'p' shares a turn"),
        (episode((FIRST, changed(SECOND, observed=()))), "a turn that observes nothing"),
        (episode((FIRST, changed(SECOND, sampled=(), logprobs=()))), "a turn that samples nothing"),
        (episode((changed(FIRST, sampled=(4, 2)), SECOND)), "are not those of its episode's first turn"),
        (episode((FIRST,), ()), "a row of no turns"),
        (episode((FIRST, changed(SECOND, logprobs=(-0.1, math.nan, -1.0)))), "turn 1 of response 0 .* log-prob of nan"),
        (episode((FIRST, changed(SECOND, logprobs=(-0.1, -math.inf, -1.0)))), "log-prob of -inf"),
        (episode((FIRST, changed(SECOND, logprobs=(-0.1, 0.2, -1.0)))), "log-prob of 0.2"),
    ],
)
def test_rows_that_no_engine_computed_are_refused(rollout, says):
    with pytest.raises(EngineError, match=says):
        trained_rows(rollout)


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (changed(SECOND, logprobs=(-1.0,)), "turn 1 of response 0 to 'p' has 3 tokens and 1 log-probs"),
        (changed(SECOND, kept=KeptTokens((2,), b"12345678")), r"kept sets of 1, which hold 2 of 2 ids"),
        (changed(SECOND, kept=KeptTokens((2, 0, 1), b"1234")), r"kept sets of 3, which hold 1 of 3 ids"),
    ],
)
def test_records_that_do_not_fit_are_refused(turn, says):
    with pytest.raises(DataError, match=says):
        trained_rows(episode((FIRST, turn)))
    with pytest.raises(DataError, match="response 0 to 'p' has 2 tokens and 1 log-probs"):
        trained_rows(dataclasses.replace(SINGLE, logprobs=(-0.1,)))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 5.0])
def test_log_probs_of_a_single_response_are_checked_as_those_of_an_episode(odd):
    for version in (0, 7):  # of the present weights and of older ones
        wrong = dataclasses.replace(SINGLE, logprobs=(-0.1, odd), policy_version=version)
        with pytest.raises(EngineError, match=f"response 0 to 'p' has a log-prob of {odd};"):
            trained_rows(wrong)


def routing(num):
    return Routing(1, 2, array("h", range(num * 2)).tobytes())


def test_routing_is_that_of_all_tokens_but_the_last():
    first, second = changed(FIRST, routing=routing(3)), changed(SECOND, routing=routing(5))
    (row,) = trained_rows(episode((first, second)))
    assert sum(t.routing is not None for t in row.turns) == 2
    for wrong in (None, routing(4), routing(6)):
        with pytest.raises(EngineError, match="turn 1 of a row of response 0 to 'p' brings 5 tokens"):
            trained_rows(episode((first, changed(SECOND, routing=wrong))))
    with pytest.raises(EngineError, match=r"turn 0 .* brings 3 tokens"):
        trained_rows(episode((changed(FIRST, routing=routing(4)), second)))


def test_an_episode_is_truncated_by_its_last_turn_or_by_a_limit_of_tokens():
    cut = changed(FIRST, finish_reason="length")
    assert not is_truncated(SINGLE)
    assert is_truncated(dataclasses.replace(SINGLE, finish_reason="length"))
    assert not is_truncated(episode((cut, SECOND)))  # another turn followed
    assert is_truncated(episode((FIRST, OTHER)))
    for ending, wanted in (("turns", False), ("done", False), ("time", False), ("tokens", True), ("context", True)):
        assert is_truncated(episode((FIRST, SECOND), ending=ending)) is wanted


def test_what_reads_single_responses_refuses_episodes_by_name():
    require_single([SINGLE], "stage x")
    with pytest.raises(
        DataError, match="stage x reads single responses, and response 0 to 'p' is an episode of 2 turn"
    ):
        require_single([SINGLE, episode((FIRST, SECOND))], "stage x")
