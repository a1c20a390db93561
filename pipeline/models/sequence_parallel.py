"""One sequence over several ranks, for answers too long for one: each has a piece of every row, and some heads of all.

Everything but attention works on tokens alone, so a rank computes it for its piece. For attention the ranks exchange:
each gets all tokens of its share of the heads, attends, and gives back the pieces. It is registered with transformers
as an attention of its own, so any decoder that looks its attention up there will do; `Pieces.prove` tries it.
DeepSpeed has the same, for batches of one size. Source: DeepSpeed-Ulysses, arXiv:2309.14509.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from pipeline.errors import ConfigError

NAME = "verizero_sequence"
BENT = ("softcap", "s_aux", "position_bias")
"""What some attentions add, which is not computed here."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """This rank among the `size` ranks of the process group that hold one sequence together."""

    rank: int
    size: int
    group: Any

    def part(self, x: Tensor, fill: float = 0) -> Tensor:
        """This rank's columns of x [B, T, ...], padded at the end with `fill` so that all ranks have as many."""
        width = -(-x.shape[1] // self.size)
        missing = width * self.size - x.shape[1]
        if missing:
            x = torch.cat([x, x.new_full((x.shape[0], missing, *x.shape[2:]), fill)], 1)
        return x[:, self.rank * width : (self.rank + 1) * width]

    def whole(self, values: Tensor, width: int) -> Tensor:
        """[B, width] put together from all ranks' pieces [B, t]. Each takes its own piece of the gradient.

        What is computed from it on all ranks alike is differentiated once, by each rank for its own tokens.
        """
        found: Tensor = _Gathered.apply(values, self)  # type: ignore[no-untyped-call]
        return found[:, :width]

    def states(self, model: Any, input_ids: Tensor) -> Tensor:
        """[B, t, H] hidden states of this rank's piece of input_ids [B, T], after the last norm."""
        own = self.part(input_ids)
        positions = torch.arange(own.shape[1], device=own.device)[None] + self.rank * own.shape[1]
        hidden: Tensor = model.base_model(
            input_ids=own, position_ids=positions, use_cache=False, sequence_pieces=self
        ).last_hidden_state
        return hidden

    def enable(self, model: Any) -> None:
        """Let the model's attention work on pieces where it is given any, and as before where not.

        Raises: ConfigError where its heads cannot be shared out, or transformers cannot set its attention.
        """
        heads = model.config.get_text_config().num_attention_heads
        if heads % self.size:
            raise ConfigError(
                f"train.sequence_parallel={self.size} does not divide the policy's {heads} attention heads; set it to "
                "a divisor of that"
            )
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        try:
            model.set_attn_implementation(NAME)
        except (ValueError, AttributeError) as exc:
            raise ConfigError(self._unfit(model, str(exc))) from exc

    @torch.no_grad()
    def prove(self, model: Any) -> None:
        """Raises: ConfigError unless the pieces of some tokens are what one rank finds for them."""
        ids = (torch.arange(2 * 13, device=model.device) * 7919 % model.config.vocab_size).view(2, 13)
        wanted = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        try:
            found = self.states(model, ids)
        except TypeError as exc:
            raise ConfigError(self._unfit(model, str(exc))) from exc
        wanted, real = self.part(wanted), self.part(torch.ones_like(ids)) > 0
        tolerance = 2e-2 if model.dtype in (torch.bfloat16, torch.float16) else 1e-4
        differs = (found - wanted)[real].abs().max() if bool(real.any()) else torch.zeros(())
        if not differs <= tolerance * wanted.abs().max().clamp(min=1e-6):
            raise ConfigError(self._unfit(model, f"its pieces differ from the whole by {float(differs):.2g}"))

    def _unfit(self, model: Any, why: str) -> str:
        return (
            f"train.sequence_parallel={self.size}: model type {model.config.model_type!r} cannot share out its "
            f"sequences ({why}); set it to 1"
        )


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence_pieces: Pieces | None = None,
    scaling: float | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """transformers' scaled dot product attention; over pieces, of all tokens to those before them.

    query [B, heads, t, D], key and value [B, key heads, t, D]; result [B, t, heads, D].
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if sequence_pieces is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **named
        )
        return found
    pieces = sequence_pieces
    window = named.get("sliding_window")
    bent = [name for name in BENT if named.get(name) is not None]
    if bent or (window is not None and query.shape[2] * pieces.size > window):
        raise ConfigError(
            f"train.sequence_parallel={pieces.size}: the attention has {bent[0] if bent else 'a sliding window'}, "
            "which is not computed over several ranks; set it to 1"
        )
    key_heads = key.shape[1]
    if key_heads % pieces.size:  # as many copies as give each rank the keys of its queries
        times = pieces.size // key_heads if pieces.size % key_heads == 0 else query.shape[1] // key_heads
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    q, k, v = (_to_heads(x, pieces) for x in (query, key, value))
    attended = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )
    return _to_pieces(attended, pieces), None


def _to_heads(x: Tensor, pieces: Pieces) -> Tensor:
    """[B, heads, t, D] of this rank's piece to [B, heads / n, T, D] of this rank's heads."""
    rows, heads, length, size = x.shape
    sent = x.view(rows, pieces.size, heads // pieces.size, length, size).transpose(0, 1)
    got: Tensor = _Exchanged.apply(sent, pieces.group)  # type: ignore[no-untyped-call]
    return got.permute(1, 2, 0, 3, 4).reshape(rows, heads // pieces.size, pieces.size * length, size)


def _to_pieces(x: Tensor, pieces: Pieces) -> Tensor:
    """[B, heads / n, T, D] of this rank's heads to [B, t, heads, D] of this rank's piece."""
    rows, heads, length, size = x.shape
    own = length // pieces.size
    sent = x.view(rows, heads, pieces.size, own, size).permute(2, 0, 1, 3, 4)
    got: Tensor = _Exchanged.apply(sent, pieces.group)  # type: ignore[no-untyped-call]
    return got.permute(1, 3, 0, 2, 4).reshape(rows, own, heads * pieces.size, size)


def _exchange(x: Tensor, group: Any) -> Tensor:
    """[n, ...] whose i-th part is for rank i to [n, ...] whose i-th part is from rank i."""
    x = x.contiguous()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=group)
    return out


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchange(x, group)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _exchange(grad, ctx.group), None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, pieces: Pieces) -> Tensor:
        ctx.own = slice(pieces.rank * values.shape[1], (pieces.rank + 1) * values.shape[1])
        found = [torch.empty_like(values) for _ in range(pieces.size)]
        dist.all_gather(found, values.contiguous(), group=pieces.group)
        return torch.cat(found, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[:, ctx.own], None
