"""Demonstrations in an update: their gradient is added to that of the responses."""

from __future__ import annotations

import pytest
import torch

from tests.train.batches import backend_of, groups_of, parts_of, settings_of, weights
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import DataError
from verizero.pipeline.seeds import stream
from verizero.pipeline.train.step import update
from verizero.pipeline.train.texts import Row, row_after

RATE = 1e-3


NEARLY_LINEAR = OptimizerConfig(learning_rate=RATE, betas=(0.0, 0.0), eps=1e6, max_grad_norm=None)
"""g / (|g| + eps) is g / eps for gradients far below a million."""


def test_an_update_with_demonstrations_is_the_sum_of_both_gradients() -> None:
    """Against the formula: with a step that is linear in the gradient, the moves add up."""
    texts = (Row((3, 4, 5, 6), ((1, 2), (3, 4))), row_after((7, 8, 9), 2))
    moves = {}
    for coef in (0.0, 0.5):
        parts = parts_of("grpo", ptx_coef=coef, kl_coef=0.0)
        backend = backend_of(0, NEARLY_LINEAR)
        before = weights(backend)
        update(backend, parts, groups_of(), settings_of(parts, texts=texts, texts_per_update=3))
        moves[coef] = {k: v - before[k] for k, v in weights(backend).items()}
    drawn = [stream(5, "ptx", 2, 0)]
    chosen = [drawn[0].choice(texts) for _ in range(3)]
    policy = backend_of().model
    loss, num = torch.zeros((), dtype=torch.float64), 0
    for ids, spans in chosen:
        logits = policy(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        for t in (t for begin, end in spans for t in range(begin, end)):
            loss, num = loss - logits[t - 1, ids[t]], num + 1
    torch.autograd.backward(loss / num)
    for name, p in policy.named_parameters():
        assert p.grad is not None
        found = (moves[0.5][name] - moves[0.0][name]) / -RATE
        torch.testing.assert_close(found * NEARLY_LINEAR.eps, 0.5 * p.grad, rtol=1e-3, atol=1e-7)


def test_demonstrations_are_wanted_where_there_are_none() -> None:
    parts = parts_of("grpo", ptx_coef=0.5)
    with pytest.raises(DataError, match=r"ptx_coef is 0\.5 and there are no demonstrations"):
        update(backend_of(), parts, groups_of(), settings_of(parts))
