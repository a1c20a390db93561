"""Divide each sequence over several ranks, for answers too long for one rank: each has a piece of every row.

Everything but attention works on tokens alone, so a rank computes it for its piece. For attention the ranks exchange:
each gets all tokens for its share of the heads, attends, and sends the pieces back. `attention` is registered with
transformers, so it works for any decoder that looks its attention up there; `Pieces.prove` tries it.
DeepSpeed has the same, for batches of one size. Source: DeepSpeed-Ulysses, arXiv:2309.14509.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import attentions
from verizero.pipeline.models.proof import agree, difference, evaluating, probe_ids

NAME = "verizero_sequence"


@dataclass(frozen=True, slots=True)
class Pieces:
    """This rank's place among the `size` ranks of a process group that hold each sequence together."""

    rank: int
    size: int
    group: Any

    def part(self, x: Tensor, fill: float = 0) -> Tensor:
        """Return this rank's columns of x [B, T, ...], padded at the end with `fill` so that all ranks have as many."""
        width = -(-x.shape[1] // self.size)
        missing = width * self.size - x.shape[1]
        if missing:
            x = torch.cat([x, x.new_full((x.shape[0], missing, *x.shape[2:]), fill)], 1)
        return x[:, self.rank * width : (self.rank + 1) * width]

    def whole(self, values: Tensor, width: int) -> Tensor:
        """Return [B, width], put together from all ranks' pieces [B, t].

        All ranks compute the same from it, and each passes only its own piece of the gradient on: summed over ranks,
        the gradient counts every token once.
        """
        gathered: Tensor = _Gathered.apply(values, self)  # type: ignore[no-untyped-call]
        return gathered[:, :width]

    def states(self, model: Any, input_ids: Tensor) -> Tensor:
        """Return [B, t, H], after the last norm, for this rank's piece of input_ids [B, T]."""
        own = self.part(input_ids)
        positions = torch.arange(own.shape[1], device=own.device)[None] + self.rank * own.shape[1]
        hidden: Tensor = model.base_model(
            input_ids=own, position_ids=positions, use_cache=False, sequence_pieces=self
        ).last_hidden_state
        return hidden

    def enable(self, model: Any) -> None:
        """Make the model's attention work on pieces where it gets any; it works as before where it gets none.

        Raises: ConfigError if its heads cannot be divided among the ranks, or transformers cannot set its attention.
        """
        heads = model.config.get_text_config().num_attention_heads
        if heads % self.size:
            raise ConfigError(
                f"train.sequence_parallel={self.size} does not divide the policy's {heads} attention heads; set it to "
                "a divisor of that"
            )
        try:
            attentions.enable(model, NAME, attention)
        except (ValueError, AttributeError) as exc:
            raise ConfigError(self._unfit(model, str(exc))) from exc

    def prove(self, model: Any) -> None:
        """Raise ConfigError unless the pieces of some tokens are what one rank computes for them."""
        ids = probe_ids(model, 2, 13)
        with evaluating(model):
            whole = self.part(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
            try:
                ours = self.states(model, ids)
            except TypeError as exc:
                raise ConfigError(self._unfit(model, str(exc))) from exc
        real = self.part(torch.ones_like(ids)) > 0  # a short sequence may leave the last ranks padding alone
        if bool(real.any()) and not agree(ours[real], whole[real]):
            differs = difference(ours[real], whole[real])
            raise ConfigError(self._unfit(model, f"its pieces differ from the whole by a share of {differs:.2g}"))

    def _unfit(self, model: Any, why: str) -> str:
        return (
            f"train.sequence_parallel={self.size}: model type {model.config.model_type!r} cannot divide its sequences "
            f"among ranks ({why}); set it to 1"
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
    """Attend as transformers' scaled dot product attention does; with pieces, over all tokens of the sequence.

    query [B, heads, t, D], key and value [B, key heads, t, D]; result [B, t, heads, D].
    """
    if sequence_pieces is None:
        return attentions.plain(module, query, key, value, attention_mask, scaling=scaling, **named)
    pieces = sequence_pieces
    window = named.get("sliding_window")
    what = attentions.unsupported(named)
    if what is None and window is not None and query.shape[2] * pieces.size > window:
        what = "a sliding window"
    if what is not None:
        raise ConfigError(
            f"train.sequence_parallel={pieces.size}: the attention has {what}, "
            "which is not computed over several ranks; set it to 1"
        )
    key_heads = key.shape[1]
    if key_heads % pieces.size:  # copy key heads until each rank has those of its queries
        times = pieces.size // key_heads if pieces.size % key_heads == 0 else query.shape[1] // key_heads
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    q, k, v = (_to_heads(x, pieces) for x in (query, key, value))
    attended = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )
    return _to_pieces(attended, pieces), None


def _to_heads(x: Tensor, pieces: Pieces) -> Tensor:
    """Exchange [B, heads, t, D] of this rank's piece for [B, heads / n, T, D] of this rank's heads."""
    rows, heads, length, size = x.shape
    sent = x.view(rows, pieces.size, heads // pieces.size, length, size).transpose(0, 1)
    got: Tensor = _Exchanged.apply(sent, pieces.group)  # type: ignore[no-untyped-call]
    return got.permute(1, 2, 0, 3, 4).reshape(rows, heads // pieces.size, pieces.size * length, size)


def _to_pieces(x: Tensor, pieces: Pieces) -> Tensor:
    """Exchange [B, heads / n, T, D] of this rank's heads for [B, t, heads, D] of this rank's piece."""
    rows, heads, length, size = x.shape
    own = length // pieces.size
    sent = x.view(rows, heads, pieces.size, own, size).permute(2, 0, 1, 3, 4)
    got: Tensor = _Exchanged.apply(sent, pieces.group)  # type: ignore[no-untyped-call]
    return got.permute(1, 3, 0, 2, 4).reshape(rows, own, heads * pieces.size, size)


def _exchange(x: Tensor, group: Any) -> Tensor:
    """Send the i-th part of x [n, ...] to rank i, and return [n, ...] whose i-th part is from rank i."""
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
        every = [torch.empty_like(values) for _ in range(pieces.size)]
        dist.all_gather(every, values.contiguous(), group=pieces.group)
        return torch.cat(every, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[:, ctx.own], None
