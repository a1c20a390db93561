"""The operations of an update, against those that torch counts while it computes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.models.families import build
from verizero.pipeline.models.flops import update_flops
from verizero.pipeline.models.forward import logits_at
from verizero.pipeline.models.lora import Adapted


def plain(model_type="qwen2", **changes):
    """In float64 and with attention as matrix products, all of which torch counts."""
    model = build(model_type, changes, dtype=torch.float64)
    model.set_attn_implementation("eager")
    return model


def counted(model, tokens, trained):
    ids = torch.arange(tokens)[None] % 20
    where = torch.zeros(1, tokens, dtype=torch.bool)
    where[0, tokens - trained :] = True
    logits_at(model, ids, where)  # its proof of the head, which is not counted
    with FlopCounterMode(display=False) as counter:
        logits_at(model, ids, where).sum().backward()
    return float(counter.get_total_flops())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("tokens", "trained"), [(12, 5), (33, 32)])
def test_they_are_what_torch_counts_but_for_the_half_of_attention_that_is_masked(tied, tokens, trained):
    model = plain(tie_word_embeddings=tied)
    masked = 6 * 2 * 32 * (tokens - 1) ** 2  # layers 2, width 32: matrix products compute the upper half too
    assert counted(model, tokens, trained) == update_flops(model, [(tokens, trained)]) + masked
    assert update_flops(model, [(tokens, trained)] * 3) == 3 * update_flops(model, [(tokens, trained)])


def test_frozen_weights_are_spared_their_gradient():
    model = plain(tie_word_embeddings=False)
    whole = update_flops(model, [(9, 4)])
    Adapted(model, 2, 4.0, (), 7)
    adapted = update_flops(model, [(9, 4)])
    assert 0.6 * whole < adapted < whole


def test_a_token_uses_some_of_the_experts():
    shape = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    sparse = plain("qwen3_moe", **shape, head_dim=8)
    dense = plain("qwen3_moe", **{**shape, "num_experts_per_tok": 8}, head_dim=8)
    experts = 3 * 32 * 16 * 2  # three matrices in each of two layers
    gap = update_flops(dense, [(11, 5)]) - update_flops(sparse, [(11, 5)])
    assert gap == 6 * experts * (8 - 2) * 10
