"""Divide a module among ranks by torch's FSDP2: each block, the input and output embeddings, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from verizero.pipeline.train.any_forward import AnyForward
from verizero.pipeline.train.ranks import Ranks, collectives

NUM_PARTS = 4
"""On the CPU a block's gradients are summed over ranks in so many parts."""


class _FreedScatter:
    """FSDP's sum of gradients over ranks that frees its input at once; FSDP would keep it until the next block's.

    Only for collectives that are complete when their call returns, as on the CPU.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the input or the output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Sum some numbers at a time, because gloo copies what it sums; then free the input."""
        num = len(output_tensor)
        input_by_rank = input_tensor.view(-1, num)
        for start in range(0, num, size := max(1, -(-num // NUM_PARTS))):
            _scatter(output_tensor[start : start + size], input_by_rank[:, start : start + size].flatten(), group, op)
        input_tensor.untyped_storage().resize_(0)


def divided(
    model: Any,
    ranks: Ranks,
    dtype: torch.dtype | None,
    device: torch.device,
    recompute: bool,
    read: Callable[[Any], None] | None = None,
) -> torch.nn.Module:
    """Divide `model` in place: each block, each untied embedding, the rest as one. Return its root, an `AnyForward`.

    `read(part)` gives a part its weights, so that one after another is whole; without it those on `meta` have none.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from verizero.pipeline.models.load import recompute_activations

    if not dist.is_initialized():  # one process: FSDP wants a group all the same
        from torch._C._distributed_c10d import HashStore

        dist.init_process_group(collectives(str(device)), rank=0, world_size=1, store=HashStore())
    if recompute:
        recompute_activations(model)
    mesh = mesh_of(ranks, device)
    # Inputs have the right type already: the model is in half precision itself.
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    shell = AnyForward(model)
    for block in [*_blocks(model), *_untied(model), shell]:
        if read is not None:
            read(block)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        # A sum over ranks, not their mean. gloo needs both calls, as it cannot sum and divide in one; neither recurses.
        block.set_force_sum_reduction_for_comms(True)
        block.set_gradient_divide_factor(1.0)
        if (dtype or model.dtype) == torch.float32:
            # Without this FSDP prefetches, and has the weights of a third block in memory. In 16 bits, where blocks are
            # half as large, it may.
            block.set_modules_to_backward_prefetch([block])  # its weights are there already, so nothing is fetched
            block._set_unshard_async_op(True)
        if device.type == "cpu":
            block.set_custom_reduce_scatter(_FreedScatter())
    if any(p.device.type == "meta" for p in model.parameters()):
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        shell.to_empty(device=device)
        for name, b in model.named_buffers():
            b.copy_(buffers[name])
    return shell


def mesh_of(ranks: Ranks, device: torch.device) -> Any:
    """Return all ranks as torch's mesh of devices of one kind."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (ranks.size,))


def own_rows(p: Any) -> slice:
    """Return this rank's rows of a divided parameter; rows are divided as by `torch.chunk`."""
    mesh = p.device_mesh
    return _rows(p.shape[0], mesh.size(), mesh.get_local_rank())


def _rows(num: int, size: int, rank: int) -> slice:
    rows_per_rank = -(-num // size)
    start = min(rank * rows_per_rank, num)
    return slice(start, min(start + rows_per_rank, num))


def _blocks(model: Any) -> list[Any]:
    """Return the blocks of a model, each of which is gathered separately."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


def _untied(model: Any) -> list[Any]:
    """Return input and output embeddings if they are not tied; each is gathered separately.

    Tied ones must be gathered together: they are with the rest, whole throughout forward and backward.
    """
    embedding, head = model.get_input_embeddings(), getattr(model, "lm_head", None)
    if head is None:
        return [embedding]
    return [] if head.weight is embedding.weight else [embedding, head]


def gather(whole: Tensor, own: Tensor, group: Any) -> None:
    """Fill `whole` with the tensors `own` of all ranks, one after another."""
    # torch renamed this collective, and the one below: the old name warns where there is a new one.
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    call(whole, own, group=group)


def _scatter(own: Tensor, whole: Tensor, group: Any, op: Any) -> None:
    """Fill `own` with this rank's part of the sum of all ranks' tensors `whole`."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(own, whole, op=op, group=group)
