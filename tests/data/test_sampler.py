"""Epochs without replacement, exact resume, shares of domains, and the prompts that were attempted."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verizero.pipeline.data.sampler import PromptLedger, PromptSampler
from verizero.pipeline.errors import CheckpointError, DataError
from verizero.pipeline.run.opening import restored_sampler
from verizero.pipeline.run.state import RunState
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict


def _prompts(n: int, domain: str = "d") -> list[Prompt]:
    return [Prompt(f"{domain}/{i}", f"{i}?", "exact", str(i), domain) for i in range(n)]


def _ids(prompts: list[Prompt]) -> list[str]:
    return [p.id for p in prompts]


@given(size=st.integers(1, 20), calls=st.lists(st.integers(1, 15), min_size=1, max_size=12))
def test_every_epoch_has_every_prompt_once(size, calls):
    sampler = PromptSampler(_prompts(size), 3)
    drawn = [i for n in calls for i in _ids(sampler.next(n))]
    assert len(drawn) == sum(calls)
    for start in range(0, len(drawn), size):
        epoch = drawn[start : start + size]
        assert len(set(epoch)) == len(epoch)
    assert sampler.state_dict()["drawn"] == {"": sum(calls)}


def test_shuffled_epochs_differ_and_sequential_ones_keep_the_order():
    shuffled = PromptSampler(_prompts(30), 0)
    first, second = _ids(shuffled.next(30)), _ids(shuffled.next(30))
    assert first != second
    assert sorted(first) == sorted(second) == sorted(_ids(_prompts(30)))
    assert _ids(PromptSampler(_prompts(30), 1).next(30)) != first
    assert _ids(PromptSampler(_prompts(3), 0, "sequential").next(7)) == [f"d/{i}" for i in (0, 1, 2, 0, 1, 2, 0)]


@example(before=[1], after=[5], weighted=True, order="shuffle")  # of a domain nothing was drawn yet
@settings(max_examples=40)
@given(
    before=st.lists(st.integers(1, 9), max_size=8),
    after=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    weighted=st.booleans(),
    order=st.sampled_from(["shuffle", "sequential"]),
)
def test_a_resumed_sampler_gives_what_an_unbroken_one_does(before, after, weighted, order):
    prompts, weights = _prompts(7, "a") + _prompts(4, "b"), {"a": 0.3, "b": 0.7} if weighted else None
    unbroken = PromptSampler(prompts, 5, order, weights)
    for n in before:
        unbroken.next(n)
    state = json.loads(json.dumps(unbroken.state_dict()))
    recipe = SimpleNamespace(data=SimpleNamespace(sampling=SimpleNamespace(order=order, weights=weights)))
    run = SimpleNamespace(recipe=recipe, data=SimpleNamespace(train=prompts), seed=5)
    resumed, _ = restored_sampler(run, RunState(sampler=state))
    assert [resumed.next(n) for n in after] == [unbroken.next(n) for n in after]
    assert resumed.state_dict() == unbroken.state_dict()


def test_weights_are_met_to_within_a_draw_at_every_moment_and_domains_have_epochs_of_their_own():
    weights = {"a": 3.0, "b": 1.0, "c": 0.0}
    sampler = PromptSampler([p for d in "abc" for p in _prompts(6, d)], 0, weights=weights)
    drawn = []
    for _ in range(80):
        drawn += [p.id for p in sampler.next(1)]
        seen = Counter(i[0] for i in drawn)
        assert abs(seen["a"] - 0.75 * len(drawn)) <= 1
        assert abs(seen["b"] - 0.25 * len(drawn)) <= 1
    assert "c" not in Counter(i[0] for i in drawn)
    of_b = [i for i in drawn if i[0] == "b"]
    assert len(set(of_b[:6])) == len(set(of_b[6:12])) == 6


def test_weights_must_name_the_domains_there_are():
    with pytest.raises(DataError, match=r"domains \['d'\], weights \['d', 'e'\]"):
        PromptSampler(_prompts(2), 0, weights={"d": 1, "e": 1})


def test_a_state_of_another_data_set_seed_order_or_weights_is_refused():
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
    for torn in ({**state, "drawn": {"e": 1}}, {k: v for k, v in state.items() if k != "drawn"}):
        with pytest.raises(CheckpointError, match="weights"):
            PromptSampler(_prompts(4), 0).load_state_dict(torn)


def test_nothing_to_sample_and_bad_shares_are_errors():
    with pytest.raises(DataError, match=r"data.train"):
        PromptSampler([], 0).next(1)
    with pytest.raises(ValueError, match="n must be >= 1"):
        PromptSampler(_prompts(1), 0).next(0)


def test_a_prompt_is_attempted_once_a_response_of_it_is_graded():
    def group(name, *statuses):
        rollout = Rollout(name, 0, (), (), (), "", "stop", 0)
        members = tuple(ScoredRollout(rollout, Verdict(status), 0.0) for status in statuses)
        return Group(Prompt(name, "", "math", ""), members)

    groups = [group("a", "verifier_error", "graded"), group("b", "verifier_error"), group("c", "no_answer")]
    ledger, reversed_order = PromptLedger(), PromptLedger()
    for one_way, other_way in zip(groups, reversed(groups), strict=True):
        ledger.record_group(one_way)
        reversed_order.record_group(other_way)
    assert len(ledger) == 2
    assert json.dumps(ledger.state_dict()) == json.dumps(reversed_order.state_dict())
    again = PromptLedger()
    again.load_state_dict(ledger.state_dict())
    assert again.state_dict() == ledger.state_dict()
    with pytest.raises(CheckpointError):
        ledger.load_state_dict({"ids": 3})
