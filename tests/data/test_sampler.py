"""Epochs without replacement, exact resume, shares of domains and ranks, and rest by pass rate."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.pipeline.config.data import PassRateConfig
from verizero.pipeline.data.ledger import PassRateLedger
from verizero.pipeline.data.sampler import PromptSampler
from verizero.pipeline.errors import CheckpointError, DataError
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict


def _prompts(n: int, domain: str = "d") -> list[Prompt]:
    return [Prompt(f"{domain}/{i}", f"{i}?", "exact", str(i), domain) for i in range(n)]


def _ids(prompts: list[Prompt]) -> list[str]:
    return [p.id for p in prompts]


@given(size=st.integers(1, 20), calls=st.lists(st.integers(1, 15), min_size=1, max_size=12))
def test_every_epoch_has_every_prompt_once(size: int, calls: list[int]) -> None:
    sampler = PromptSampler(_prompts(size), 3)
    drawn = [i for n in calls for i in _ids(sampler.next(n))]
    assert len(drawn) == sum(calls)
    for start in range(0, len(drawn), size):
        epoch = drawn[start : start + size]
        assert len(set(epoch)) == len(epoch)
    assert sampler.state_dict()["drawn"] == {"": sum(calls)}


def test_shuffled_epochs_differ_and_sequential_ones_keep_the_order() -> None:
    shuffled = PromptSampler(_prompts(30), 0)
    first, second = _ids(shuffled.next(30)), _ids(shuffled.next(30))
    assert first != second
    assert sorted(first) == sorted(second) == sorted(_ids(_prompts(30)))
    assert _ids(PromptSampler(_prompts(30), 1).next(30)) != first
    assert _ids(PromptSampler(_prompts(3), 0, "sequential").next(7)) == [f"d/{i}" for i in (0, 1, 2, 0, 1, 2, 0)]


@settings(max_examples=40)
@given(
    before=st.lists(st.integers(1, 9), max_size=8),
    after=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    weighted=st.booleans(),
    order=st.sampled_from(["shuffle", "sequential"]),
)
def test_a_resumed_sampler_gives_what_an_unbroken_one_does(
    before: list[int], after: list[int], weighted: bool, order: Any
) -> None:
    def make() -> PromptSampler:
        prompts = _prompts(7, "a") + _prompts(4, "b")
        return PromptSampler(prompts, 5, order, {"a": 0.3, "b": 0.7} if weighted else None)

    unbroken = make()
    for n in before:
        unbroken.next(n)
    state = json.loads(json.dumps(unbroken.state_dict()))
    resumed = make()
    resumed.load_state_dict(state)
    assert [resumed.next(n) for n in after] == [unbroken.next(n) for n in after]
    assert resumed.state_dict() == unbroken.state_dict()


def test_weights_are_met_to_within_a_draw_at_every_moment_and_domains_have_epochs_of_their_own() -> None:
    weights = {"a": 3.0, "b": 1.0, "c": 0.0}
    sampler = PromptSampler([p for d in "abc" for p in _prompts(6, d)], 0, weights=weights)
    drawn: list[str] = []
    for _ in range(80):
        drawn += [p.id for p in sampler.next(1)]
        seen = Counter(i[0] for i in drawn)
        assert abs(seen["a"] - 0.75 * len(drawn)) <= 1
        assert abs(seen["b"] - 0.25 * len(drawn)) <= 1
    assert "c" not in Counter(i[0] for i in drawn)
    of_b = [i for i in drawn if i[0] == "b"]
    assert len(set(of_b[:6])) == len(set(of_b[6:12])) == 6


def test_weights_must_name_the_domains_there_are() -> None:
    with pytest.raises(DataError, match=r"domains \['d'\], weights \['d', 'e'\]"):
        PromptSampler(_prompts(2), 0, weights={"d": 1, "e": 1})


def test_a_state_of_another_data_set_seed_order_or_weights_is_refused() -> None:
    state = PromptSampler(_prompts(4), 0).state_dict()
    longer, renamed = _prompts(5), [*_prompts(3), Prompt("d/x", "3?", "exact", "3", "d")]
    reworded = [*_prompts(3), Prompt("d/3", "3!", "exact", "3", "d")]
    for other in (longer, renamed, reworded, _prompts(4)[::-1]):
        with pytest.raises(CheckpointError, match="prompts"):
            PromptSampler(other, 0).load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"seed 0.* 1"):
        PromptSampler(_prompts(4), 1).load_state_dict(state)
    with pytest.raises(CheckpointError, match="order"):
        PromptSampler(_prompts(4), 0, "sequential").load_state_dict(state)
    with pytest.raises(CheckpointError, match="weights"):
        PromptSampler(_prompts(4), 0, weights={"d": 1}).load_state_dict(state)
    for torn in ({**state, "drawn": {"e": 1}}, {k: v for k, v in state.items() if k != "served"}):
        with pytest.raises(CheckpointError, match="weights"):
            PromptSampler(_prompts(4), 0).load_state_dict(torn)


def test_the_state_stays_small_whatever_the_data() -> None:
    sampler = PromptSampler(_prompts(5000), 0)
    sampler.next(4000)
    assert len(json.dumps(sampler.state_dict())) < 400


def test_prompts_outside_the_pass_rates_rest_and_come_back() -> None:
    ledger = PassRateLedger()
    config = PassRateConfig(low=0.1, high=0.9, min_attempts=8, revisit_epochs=3)
    sampler = PromptSampler(_prompts(6), 0, ledger=ledger, pass_rate=config)
    assert len(set(_ids(sampler.next(6)))) == 6
    ledger.record("d/0", 8, 0)
    ledger.record("d/1", 8, 8)
    ledger.record("d/2", 8, 4)
    ledger.record("d/3", 7, 7)
    second, third = _ids(sampler.next(4)), _ids(sampler.next(4))
    assert set(second) == set(third) == {"d/2", "d/3", "d/4", "d/5"}
    assert sampler.num_rested >= 3
    revisited = _ids(sampler.next(6))
    assert {"d/0", "d/1"} <= set(revisited), "in every third epoch all come"


def test_when_all_rest_the_sampler_goes_on_and_counts_it() -> None:
    ledger = PassRateLedger()
    for prompt in _prompts(3):
        ledger.record(prompt.id, 8, 8)
    config = PassRateConfig(high=0.5, revisit_epochs=None)
    sampler = PromptSampler(_prompts(3), 0, ledger=ledger, pass_rate=config)
    assert len(sampler.next(4)) == 4
    assert sampler.num_unrested == 4


def test_resting_prompts_do_not_upset_the_shares_and_resume_with_the_ledger() -> None:
    def make(ledger: PassRateLedger) -> PromptSampler:
        prompts = _prompts(8, "a") + _prompts(8, "b")
        return PromptSampler(prompts, 2, weights={"a": 1, "b": 1}, ledger=ledger, pass_rate=PassRateConfig(low=0.3))

    def step(sampler: PromptSampler, ledger: PassRateLedger, rng: random.Random) -> list[str]:
        prompts = sampler.next(6)
        assert Counter(p.domain for p in prompts) == {"a": 3, "b": 3}
        for prompt in prompts:
            ledger.record(prompt.id, 8, 0 if prompt.domain == "a" and prompt.id < "a/6" else rng.randint(4, 8))
        return _ids(prompts)

    ledger, rng = PassRateLedger(), random.Random(0)
    sampler = make(ledger)
    for _ in range(6):
        step(sampler, ledger, rng)
    states = json.loads(json.dumps([sampler.state_dict(), ledger.state_dict()]))
    again = PassRateLedger()
    again.load_state_dict(states[1])
    resumed = make(again)
    resumed.load_state_dict(states[0])
    assert [step(resumed, again, random.Random(1)) for _ in range(5)] == [
        step(sampler, ledger, random.Random(1)) for _ in range(5)
    ]
    assert sampler.num_rested == resumed.num_rested > 0


def test_nothing_to_sample_and_bad_shares_are_errors() -> None:
    with pytest.raises(DataError, match=r"data.train"):
        PromptSampler([], 0).next(1)
    with pytest.raises(DataError, match="ledger"):
        PromptSampler(_prompts(1), 0, pass_rate=PassRateConfig())
    with pytest.raises(ValueError, match="n must be >= 1"):
        PromptSampler(_prompts(1), 0).next(0)


def test_ledger_counts_add_up_in_any_order() -> None:
    attempts = [("a", 8, 2), ("a", 8, 6), ("a", 4, 0), ("b", 4, 4), ("never", 0, 0)]
    ledger, reversed_order = PassRateLedger(), PassRateLedger()
    for attempt in attempts:
        ledger.record(*attempt)
    for attempt in reversed(attempts):
        reversed_order.record(*attempt)
    assert json.dumps(ledger.state_dict()) == json.dumps(reversed_order.state_dict())
    assert (ledger.counts("a"), ledger.rate("a"), ledger.rate("b"), ledger.rate("never")) == ((20, 8), 0.4, 1.0, None)
    assert len(ledger) == 2
    with pytest.raises(ValueError, match=r"'a'.* 3 of 2"):
        ledger.record("a", 2, 3)
    with pytest.raises(CheckpointError):
        ledger.load_state_dict({"counts": {"a": 3}})


def test_a_group_is_recorded_without_the_responses_whose_grader_failed() -> None:
    rollout = Rollout("a", 0, (), (), (), "", "stop", 0)
    verdicts = [Verdict("graded", 1.0), Verdict("graded", 0.5), Verdict("no_answer"), Verdict("verifier_error")]
    ledger = PassRateLedger()
    ledger.record_group(Group(Prompt("a", "", "math", ""), tuple(ScoredRollout(rollout, v, 0.0) for v in verdicts)))
    assert ledger.counts("a") == (3, 1)
