"""Prompts to rollouts: the seed of each response is made of what it is, and each is told of in its place."""

from array import array

import pytest

from tests.scripted_engine import ScriptedEngine
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Ended, Sampling
from verizero.pipeline.rollout.generate import Generation, generate_rollouts
from verizero.pipeline.types import Prompt

EOS = 1


class Letters:
    """A renderer in which token n is character n."""

    def prompt_ids(self, prompt):
        return tuple(map(ord, prompt.question))

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i != EOS)


def answer(prompt_ids, seed):
    """Digits of the seed; the end token unless it is even."""
    return [*map(ord, str(seed)[:4]), *([EOS] if seed % 2 else [48] * 40)]


def gather(ids, samples=3, seed=0, stream=("rl", 4)):
    engine = ScriptedEngine(answer, EOS)
    engine.publish(7)
    prompts = [Prompt(i, f"{i}?", "exact", "x") for i in ids]
    return generate_rollouts(Generation(engine, Letters(), seed), prompts, samples, Sampling(20), *stream)


def test_rollouts_come_prompt_by_prompt_with_all_that_was_said():
    rollouts = gather(["a", "b"])
    assert [(r.prompt_id, r.sample) for r in rollouts] == [(p, i) for p in "ab" for i in range(3)]
    assert {r.policy_version for r in rollouts} == {7}
    assert {r.finish_reason for r in rollouts} == {"stop", "length"}
    for r in rollouts:
        assert r.prompt_ids == array("i", map(ord, f"{r.prompt_id}?"))
        assert len(r.logprobs) == len(r.response_ids) <= 20
        assert (r.response_ids[-1] == EOS) == (r.finish_reason == "stop")
        assert r.text == "".join(chr(i) for i in r.response_ids if i != EOS)


def test_a_response_is_the_same_in_any_company():
    wanted = {(r.prompt_id, r.sample): r for r in gather(["a", "b", "c"])}
    for r in [*gather(["c", "a"]), *gather(["b"], samples=2)]:
        assert r == wanted[r.prompt_id, r.sample]


def test_responses_differ_by_sample_prompt_seed_and_stream():
    base = gather(["a", "b"])
    everything = [
        *base,
        *gather(["a", "b"], seed=1),
        *gather(["a", "b"], stream=("rl", 5)),
        *gather(["a", "b"], stream=()),
    ]
    assert len({tuple(r.response_ids[:4]) for r in everything}) == len(everything)


@pytest.mark.parametrize("sampling", [Sampling(20, top_p=0.9, max_kept=8), Sampling(20, keep_routing=True)])
def test_an_engine_that_records_less_than_was_asked_for_is_refused(sampling):
    by, prompts = Generation(ScriptedEngine(answer, EOS), Letters(), 0), [Prompt("a", "a?", "exact", "x")]
    with pytest.raises(EngineError, match="rollout.top_k: 0" if sampling.max_kept else "rl.algorithm.keep_routing"):
        generate_rollouts(by, prompts, 2, sampling, "rl")
    assert all(r.kept is None for r in generate_rollouts(by, prompts, 2, Sampling(20, max_kept=8), "rl"))


class Half(ScriptedEngine):
    """Tells of every second response only, the last ones first."""

    def generate(self, requests, sampling, reader=None):
        answers = super().generate(requests, sampling)
        places = [(i, j) for i, some in enumerate(answers) for j in range(len(some))][::-2]
        if reader is not None:
            reader([Ended(i, j, answers[i][j].token_ids, answers[i][j].finish_reason) for i, j in places])
        return answers


class Silent(ScriptedEngine):
    """Tells of no response."""

    def generate(self, requests, sampling, reader=None):
        return super().generate(requests, sampling)


@pytest.mark.parametrize(("kind", "told"), [(ScriptedEngine, range(9)), (Half, range(0, 9, 2)), (Silent, ())])
def test_a_reader_hears_of_responses_in_their_places(kind, told):
    engine = kind(answer, EOS)
    prompts = [Prompt(i, f"{i}?", "exact", "x") for i in ("a", "b", "a")]  # an epoch may end within a call
    heard = []
    counts = []
    by = Generation(engine, Letters(), 0)
    rollouts = generate_rollouts(by, prompts, 3, Sampling(20), "rl", reader=heard.extend, count=counts.append)
    assert sum(counts) == 9, "also those that the engine left out"
    assert generate_rollouts(by, prompts, 3, Sampling(20), "rl", count=counts.append) == rollouts
    assert sum(counts) == 18, "without a reader too"
    assert rollouts == generate_rollouts(Generation(engine, Letters(), 0), prompts, 3, Sampling(20), "rl")
    places = [w.index for w in heard]
    assert sorted(places) == list(told)
    assert not places or places != sorted(places), "in the order in which they ended"
    for w in heard:
        r = rollouts[w.index]
        assert (w.prompt.id, w.text, w.finish_reason) == (r.prompt_id, r.text, r.finish_reason)
        assert w.prompt is prompts[w.index // 3]
