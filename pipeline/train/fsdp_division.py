"""Divides a module among ranks: the blocks by torch's FSDP2, the tables of input and output embeddings in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from verizero.pipeline.models.divided_table import DividedTable, can_divide, compute_divided, scatter
from verizero.pipeline.train.computing import Computing
from verizero.pipeline.train.ranks import Ranks, collectives

PIECES_OF_BLOCK = 3
"""A piece of a table has at most this part of the numbers of the largest block: at once there are two pieces, as the
next one travels, and two gradients of one, while no block is whole."""

PARTS = 4
"""On the CPU a block's gradients are added up over ranks in so many parts."""


class _FreedScatter:
    """FSDP's sum of gradients over ranks; its input is freed at once, where FSDP would keep it until the next block's.

    For collectives that are complete when their call returns, as on the CPU. On a GPU others may still read the memory.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the input or the output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Add up some numbers at a time, as gloo copies what it adds up; then free the input."""
        each = len(output_tensor)
        of_ranks = input_tensor.view(-1, each)
        for start in range(0, each, size := max(1, -(-each // PARTS))):
            scatter(output_tensor[start : start + size], of_ranks[:, start : start + size].flatten(), group, op)
        input_tensor.untyped_storage().resize_(0)


def divided(
    model: Any, ranks: Ranks, dtype: torch.dtype | None, device: torch.device, recompute: bool
) -> torch.nn.Module:
    """Divide `model` in place: each block, the tables, and the rest as one; return the module that computes with it."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from verizero.pipeline.models.load import recompute_activations

    if not dist.is_initialized():  # one process: FSDP wants a group all the same
        from torch._C._distributed_c10d import HashStore

        dist.init_process_group(collectives(str(device)), rank=0, world_size=1, store=HashStore())
    if recompute:
        recompute_activations(model)
    mesh = mesh_of(ranks, device)
    # Inputs are in the right type already: a policy in half precision makes them so.
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    blocks, shell = _blocks(model), Computing(model)
    is_empty = any(p.device.type == "meta" for p in model.parameters())
    largest = max((sum(p.numel() for p in block.parameters()) for block in blocks), default=0)
    tables = _Tables(model) if ranks.size > 1 and blocks and _can_divide(model) else None
    if tables is None and (lonely := _untied(model)) is not None:
        blocks.append(lonely)
    for block in [*blocks, shell]:
        apart = set() if tables is None else tables.placeholders
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True, ignored_params=apart)
        # A sum over ranks, not their mean. gloo has no sum that divides on the way, hence both; neither is recursive.
        block.set_force_sum_reduction_for_comms(True)
        block.set_gradient_divide_factor(1.0)
        if (dtype or model.dtype) == torch.float32:
            # The next block's weights would come during a block's backward, and what came for the last block would be
            # kept in the forward: a third block. In 16 bits blocks are half as large, and FSDP may.
            block.set_modules_to_backward_prefetch([block])  # it is there already, so nothing is fetched
            block._set_unshard_async_op(True)
        if device.type == "cpu":
            block.set_custom_reduce_scatter(_FreedScatter())
    if is_empty:
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        shell.to_empty(device=device)
        for name, b in model.named_buffers():
            b.copy_(buffers[name])
    if tables is not None:
        tables.divide(mesh, device, dtype, largest // PIECES_OF_BLOCK)
    return shell


def mesh_of(ranks: Ranks, device: torch.device) -> Any:
    """Return all ranks as torch's mesh of devices of one kind."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (ranks.size,))


def own_rows(p: Any) -> slice:
    """Return this rank's rows of a divided parameter, which are cut as `torch.chunk` cuts."""
    mesh = p.device_mesh
    return _rows(p.shape[0], mesh.size(), mesh.get_local_rank())


def _rows(num: int, size: int, rank: int) -> slice:
    each = -(-num // size)
    start = min(rank * each, num)
    return slice(start, min(start + each, num))


def _blocks(model: Any) -> list[Any]:
    """Return the modules that are gathered separately."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


def _untied(model: Any) -> Any:
    """Return the embedding if it is not tied to the head, else None.

    The head's weight is used without its forward, so it is whole throughout, and a table that shares it too.
    """
    table, head = model.get_input_embeddings(), getattr(model, "lm_head", None)
    return table if head is None or head.weight is not table.weight else None


def _can_divide(model: Any) -> bool:
    return can_divide(model.get_input_embeddings(), getattr(model, "lm_head", None))


class _Tables:
    """The weights of input and output embeddings, which FSDP leaves alone, until `divide` sets what a rank has."""

    def __init__(self, model: Any) -> None:
        """Take the weights out of their modules."""
        embedding, head = model.get_input_embeddings(), getattr(model, "lm_head", None)
        self._taken: dict[nn.Parameter, list[Any]] = {}
        for module in (embedding, head):
            if module is not None:
                self._taken.setdefault(module.weight, []).append(module)
        self.placeholders = {self._replace(modules, torch.empty(0), p) for p, modules in self._taken.items()}

    def divide(self, mesh: Any, device: torch.device, dtype: torch.dtype | None, numbers: int) -> None:
        """Give the modules this rank's rows of their weights; pieces have at most so many numbers."""
        from torch.distributed.tensor import DTensor, Shard

        for p, modules in self._taken.items():
            (vocab, width), size = p.shape, mesh.size()
            rows = _rows(vocab, size, mesh.get_local_rank())
            own = p.detach()[rows].to(device, copy=True) if p.device.type != "meta" else None
            if own is None:
                own = torch.empty(rows.stop - rows.start, width, dtype=p.dtype, device=device)
            whole = DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=p.shape, stride=p.stride())
            self._replace(modules, whole, p)
            each = max(1, min(-(-vocab // size), numbers // (size * width)))
            table = DividedTable(vocab, size, mesh.get_group(), dtype or p.dtype, each)
            for module in modules:
                compute_divided(module, table)

    @staticmethod
    def _replace(modules: list[Any], values: Tensor, p: nn.Parameter) -> nn.Parameter:
        made = nn.Parameter(values, requires_grad=p.requires_grad)
        for module in modules:
            module.weight = made
        return made
