"""Responses told of as they end: the same responses, each told once, in its place, when it ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.rollout.test_generate import EOS, Letters, answer
from tests.rollout.test_torch_engine import MAX, REQUESTS, engine_of
from tests.scripted_engine import ScriptedEngine
from verizero.pipeline.rollout.engine import Completion, Ended, EndedReader, Request, Sampling
from verizero.pipeline.rollout.generate import Generation, generate_rollouts
from verizero.pipeline.types import EndedResponse, Prompt

MANY = [*REQUESTS, *(Request((i, 3), tuple(range(100 * i, 100 * i + 5))) for i in range(2, 8))]


@pytest.mark.run
@pytest.mark.parametrize("name", ["qwen2 tied", "gpt2"])
@pytest.mark.parametrize("max_rows", [1024, 5, 2])
def test_all_are_heard_of_once_with_their_tokens(name: str, max_rows: int) -> None:
    """Also where a request's responses are spread over waves."""
    engine = engine_of(name, max_rows)
    wanted = engine.generate(MANY, Sampling(MAX))
    heard: list[Ended] = []
    assert engine.generate(MANY, Sampling(MAX), heard.extend) == wanted
    ended = {(e.request, e.sample): (e.token_ids, e.finish_reason) for e in heard}
    assert len(ended) == len(heard)
    assert ended == {
        (i, j): (c.token_ids, c.finish_reason)
        for i, completions in enumerate(wanted)
        for j, c in enumerate(completions)
    }
    assert 10 < sum(e.finish_reason == "stop" for e in heard) < len(heard), "some must stop, and some be cut"


def test_each_is_told_of_before_the_next_token_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("qwen2 tied")
    steps, heard = [], []
    step = engine._decoder.step

    def counted(drawn: Tensor, cache: object) -> Tensor:
        steps.append(len(drawn))
        return step(drawn, cache)

    monkeypatch.setattr(engine._decoder, "step", counted)
    engine.generate(MANY, Sampling(MAX), lambda some: heard.extend((len(steps), e) for e in some))
    assert {at for at, _ in heard} > {0, 1, 2}, "not all at once"
    assert all(len(e.token_ids) == at + 1 for at, e in heard)
    assert torch.is_inference_mode_enabled() is False


class Half(ScriptedEngine):
    """Tells of every second response only, the last ones first."""

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
    ) -> list[list[Completion]]:
        answers = super().generate(requests, sampling)
        places = [(i, j) for i, some in enumerate(answers) for j in range(len(some))][::-2]
        if reader is not None:
            reader([Ended(i, j, answers[i][j].token_ids, answers[i][j].finish_reason) for i, j in places])
        return answers


class Silent(ScriptedEngine):
    """Tells of no response."""

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
    ) -> list[list[Completion]]:
        return super().generate(requests, sampling)


@pytest.mark.parametrize(("kind", "told"), [(ScriptedEngine, range(9)), (Half, range(0, 9, 2)), (Silent, ())])
def test_a_reader_hears_of_responses_in_their_places(kind: type[ScriptedEngine], told: Sequence[int]) -> None:
    engine = kind(answer, EOS)
    prompts = [Prompt(i, f"{i}?", "exact", "x") for i in ("a", "b", "a")]  # an epoch may end within a call
    heard: list[EndedResponse] = []
    counts: list[int] = []
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
