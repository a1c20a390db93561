"""Prompts to rollouts: the seed of each response is made of what it is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from tests.scripted_engine import ScriptedEngine
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import Generation, generate_rollouts
from verizero.pipeline.types import Prompt, Rollout

EOS = 1


class Letters:
    """A renderer in which token n is character n."""

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(map(ord, prompt.question))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != EOS)


def answer(prompt_ids: tuple[int, ...], seed: int) -> list[int]:
    """Digits of the seed; the end token unless it is even."""
    return [*map(ord, str(seed)[:4]), *([EOS] if seed % 2 else [48] * 40)]


def gather(
    ids: Sequence[str], samples: int = 3, seed: int = 0, stream: tuple[str | int, ...] = ("rl", 4)
) -> list[Rollout]:
    engine = ScriptedEngine(answer, EOS)
    engine.publish(7)
    prompts = [Prompt(i, f"{i}?", "exact", "x") for i in ids]
    return generate_rollouts(Generation(engine, Letters(), seed), prompts, samples, Sampling(20), *stream)


def test_rollouts_come_prompt_by_prompt_with_all_that_was_said() -> None:
    rollouts = gather(["a", "b"])
    assert [(r.prompt_id, r.sample) for r in rollouts] == [(p, i) for p in "ab" for i in range(3)]
    assert {r.policy_version for r in rollouts} == {7}
    assert {r.finish_reason for r in rollouts} == {"stop", "length"}
    for r in rollouts:
        assert r.prompt_ids == array("i", map(ord, f"{r.prompt_id}?"))
        assert len(r.logprobs) == len(r.response_ids) <= 20
        assert (r.response_ids[-1] == EOS) == (r.finish_reason == "stop")
        assert r.text == "".join(chr(i) for i in r.response_ids if i != EOS)


def test_a_response_is_the_same_in_any_company() -> None:
    wanted = {(r.prompt_id, r.sample): r for r in gather(["a", "b", "c"])}
    for r in [*gather(["c", "a"]), *gather(["b"], samples=2)]:
        assert r == wanted[r.prompt_id, r.sample]


def test_responses_differ_by_sample_prompt_seed_and_stream() -> None:
    base = gather(["a", "b"])
    everything = [
        *base,
        *gather(["a", "b"], seed=1),
        *gather(["a", "b"], stream=("rl", 5)),
        *gather(["a", "b"], stream=()),
    ]
    assert len({tuple(r.response_ids[:4]) for r in everything}) == len(everything)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(20, top_p=0.9, max_kept=8), Sampling(20, keep_routing=True)],
)
def test_an_engine_that_records_less_than_was_asked_for_is_refused(sampling: Sampling) -> None:
    engine = ScriptedEngine(answer, EOS)
    with pytest.raises(EngineError, match="rollout.top_k: 0" if sampling.max_kept else "rl.algorithm.keep_routing"):
        generate_rollouts(Generation(engine, Letters(), 0), [Prompt("a", "a?", "exact", "x")], 2, sampling, "rl")
    uncut = Sampling(20, max_kept=8)
    assert all(
        r.kept is None
        for r in generate_rollouts(Generation(engine, Letters(), 0), [Prompt("a", "a?", "exact", "x")], 2, uncut, "rl")
    )
