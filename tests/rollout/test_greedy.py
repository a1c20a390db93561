"""Greedy responses of the embedded engine against transformers' generate, for each family of the fast path."""

from __future__ import annotations

import pytest
import torch

from tests.models.families import next_logits, tiny
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.torch_engine import TorchEngine

MAX = 20


@pytest.mark.integration
@pytest.mark.parametrize("name", ["llama", "qwen2 tied", "qwen3 wide heads", "mistral"])
def test_greedy_responses_are_those_of_transformers(name: str) -> None:
    model = tiny(name)
    prompts = [tuple((3 * i + j) % 20 + 2 for j in range(1 + i % 7)) for i in range(12)]
    requests = [Request(p, (1,)) for p in prompts]
    endless = TorchEngine(model, (-1,), 0).generate(requests, Sampling(MAX, 0.0))
    # A token that some responses have and others have not: some stop, and some are cut.
    end = next(t for t in range(2, 23) if {t in c.token_ids for (c,) in endless} == {True, False})
    answers = [TorchEngine(model, (end,), 0, rows).generate(requests, Sampling(MAX, 0.0)) for rows in (2, 1024)]
    reasons = set()
    for prompt, *several in zip(prompts, *answers, strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=MAX,
            eos_token_id=end,
            pad_token_id=0,
        )
        wanted = tuple(theirs[0, len(prompt) :].tolist())
        last = float(next_logits(model, [*prompt, *wanted[:-1]]).log_softmax(-1)[wanted[-1]])
        for (ours,) in several:
            assert ours.token_ids == wanted
            assert ours.logprobs[-1] == pytest.approx(last, abs=1e-4)
            reasons.add(ours.finish_reason)
    assert reasons == {"stop", "length"}
