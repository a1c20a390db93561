"""Count the FLOPs of an update (forward and backward of the model), for the MFU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from verizero.pipeline.models.quantized import is_quantized, num_weights
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.models.sizes import head_size

PEAKS = {
    "B200": (2250, 80),
    "GH200": (989, 67),
    "H200": (989, 67),
    "H100 PCIe": (756, 51),
    "H100 NVL": (835, 60),
    "H100": (989, 67),
    "A100": (312, 19.5),
    "L40S": (362, 91.6),
    "L4": (121, 30),
    "RTX 4090": (165, 83),
}
"""Part of a GPU's name -> dense TFLOP/s in bfloat16, and in float32 without TF32, by its data sheet."""


def peak_flops(gpu: str, element_size: int) -> float | None:
    """Return the operations a second of a GPU of that name on numbers of so many bytes; None if it is not known."""
    for part, (half, full) in PEAKS.items():
        if part in gpu:
            return 1e12 * (half if element_size == 2 else full)
    return None


def update_flops(model: Any, rows: Iterable[tuple[int, int]]) -> float:
    """Return the operations of one forward and backward over rows of (tokens, tokens that train).

    6 a weight and token: 2 in the forward, 2 for the gradient of inputs, 2 for that of weights, which frozen weights
    are spared. Of experts, those that a token uses. The output layer is computed at the tokens that train. Attention is
    causal: 6 n^2 times heads times head size in each layer. Nothing is predicted from the last token of a row, so n is
    one less than its tokens. Recomputed activations, norms and the forwards of old and
    reference log-probs are not counted, so that a step that spends time on them has a lower MFU.
    """
    settings = model.config.get_text_config()
    head = model.get_output_embeddings()
    # Looked up, not multiplied; the output layer, which may be the same table, is counted by itself.
    left_out = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)} | {id(head.weight)}
    experts, body = num_experts(model.config), 0.0
    for name, p in model.named_parameters():
        # A shard's own shape is empty, and bits may have one dimension.
        is_matrix = is_quantized(p) or len(getattr(p, "ds_shape", p.shape)) > 1
        if id(p) in left_out or not is_matrix:
            continue
        share = settings.num_experts_per_tok / experts if experts and ".experts." in name else 1.0
        body += (6 if p.requires_grad else 4) * share * getattr(p, "ds_numel", num_weights(p))
    output = 6 * getattr(head.weight, "ds_numel", head.weight.numel())
    heads = settings.num_attention_heads
    pair = 6 * settings.num_hidden_layers * heads * head_size(settings)
    return float(sum(body * (n - 1) + output * trained + pair * (n - 1) ** 2 for n, trained in rows))
