"""One module whose weights, gradients and optimiser state torch's FSDP2 divides among ranks.

Each rank has its rows of every weight, in float32. A block's weights are gathered while the block computes, in the
model's own number type, and gradients are summed over ranks in float32. Source: arXiv:2304.11277.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import CheckpointError, boundary
from verizero.pipeline.models.quantized import with_rest
from verizero.pipeline.models.saved_names import pieces
from verizero.pipeline.models.unloaded import Files, weights_of
from verizero.pipeline.train.checkpoint import FinishWriting
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.fsdp_division import divided, gather, mesh_of, own_rows
from verizero.pipeline.train.optimizer import adamw, checked_norm, clipped_step
from verizero.pipeline.train.ranks import Ranks, collective_errors

MOMENTS = ("exp_avg", "exp_avg_sq")


class FsdpShards:
    """A model divided among all ranks, with AdamW over its shards after `restart`."""

    def __init__(
        self,
        model: Any,
        whose: str,
        ranks: Ranks,
        dtype: torch.dtype | None,
        device: torch.device,
        recompute: bool,
        offload: bool = False,
        read: Callable[[Any], None] | None = None,
    ) -> None:
        """Divide `model` in place. If its parameters are on `meta`, weights are undefined until something sets them.

        `whose` begins error messages ("gradient norm"). `dtype`: the number type of forward and backward; None for that
        of each weight. `recompute`: activations are computed again in the backward pass. `offload`: the CPU has the
        optimiser's state and updates the weights. `read` gives each part of the model its weights before it
        is divided.
        """
        self.model = model
        self.whose = whose
        self.ranks = ranks
        self.optimizer: torch.optim.AdamW | None = None
        self._rows: dict[str, Tensor] = {}
        """This rank's rows of the trained weights, by name, as plain tensors: the optimiser's parameters.

        They are the weights themselves, or with `offload` copies of them on the CPU.
        """
        self.offload = offload
        self.shell = divided(model, ranks, dtype, device, recompute, read)
        self._mesh = mesh_of(ranks, torch.device("cpu")) if offload else None

    def on_device(self) -> AbstractContextManager[None]:
        """Return a context in which the weights are on the device; here they always are."""
        return nullcontext()

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model), called where the weights outside blocks are whole; blocks gather theirs."""
        with _collective_errors_amid():
            return self.shell(compute)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient, summed over ranks: the loss is a rank's share of a sum."""
        with _collective_errors_amid(), fixed_order():
            loss.backward()  # type: ignore[no-untyped-call]

    def restart(self, optimizer: OptimizerConfig) -> None:
        """Make a fresh optimiser."""
        rows = {n: p.to_local().detach() for n, p in self._trained()}
        self._rows = {n: torch.nn.Parameter(p.to("cpu", copy=True) if self.offload else p) for n, p in rows.items()}
        self.discard()
        self.optimizer = adamw(self._rows.values(), optimizer)

    def require_finite(self, update: int) -> None:
        """Raise NonFiniteError if the gradient is not finite on some rank; the gradient stays."""
        self._finite_norm(update)

    def step(self, config: OptimizerConfig, rate: float, update: int) -> float:
        """Take one clipped update, and return the gradient's norm. The gradient is gone.

        Raises: NonFiniteError if it is not finite; weights and moments are as before.
        """
        assert self.optimizer is not None
        try:
            norm = self._finite_norm(update)
            for name, gradient in self._gradients().items():
                self._rows[name].grad = gradient.to(self._rows[name].device)
            norm_at_rows = norm.to("cpu") if self.offload else norm
            clipped_step(self.optimizer, config, list(self._rows.values()), norm_at_rows, rate)
            if self.offload:
                for name, p in self._trained():
                    p.to_local().detach().copy_(self._rows[name].detach())
        finally:
            self.discard()
        return float(norm)

    def discard(self) -> None:
        """Delete the gradient."""
        for p in (*self.model.parameters(), *self._rows.values()):
            p.grad = None

    def gathered(self, dtype: torch.dtype | None = None) -> Iterator[dict[str, Tensor]]:
        """Return whole weights by name, a block at a time; every rank must iterate in step.

        They are rounded to `dtype` before they are gathered. A block takes memory until its tensors are dropped.
        """
        shards = dict(self.model.named_parameters())

        def block(names: Sequence[str]) -> dict[str, Tensor]:
            # The caller may be in inference mode, whose tensors could not be trained with afterwards.
            with torch.inference_mode(False), torch.no_grad(), collective_errors():
                return {n: with_rest(_gathered(shards[n], dtype or shards[n].dtype), shards[n]) for n in names}

        return map(block, pieces(shards))  # a generator's variable would keep a block while the next one is gathered

    @torch.no_grad()
    def take(self, source: Any, share: float = 1.0) -> None:
        """Set the weights to share * source + (1 - share) * weights; this rank reads its own rows.

        `source`: a whole module, a module on `meta` with its weights in files (`models.unloaded`), or an `FsdpShards`,
        of which only the weights with a name in both are read.
        """
        theirs = dict((source.model if isinstance(source, FsdpShards) else source).named_parameters())
        files = None if isinstance(source, FsdpShards) else weights_of(source)
        for name, p in self.model.named_parameters():
            if files is not None:
                _set(p, files.rows(name, own_rows(p)), share)
            elif not isinstance(source, FsdpShards):
                _set(p, theirs[name][own_rows(p)], share)
            elif name in theirs:
                _set(p, theirs[name].to_local(), share)
        self._renew()

    @torch.no_grad()
    def take_blocks(self, blocks: Iterable[Mapping[str, Tensor]], share: float = 1.0) -> None:
        """Set the weights to share * theirs + (1 - share) * weights. `blocks`: their whole weights, some at a time."""
        shards = dict(self.model.named_parameters())
        for block in blocks:
            for name in shards.keys() & block.keys():
                _set(shards[name], block[name][own_rows(shards[name])], share)
        self._renew()

    @torch.no_grad()
    def read(self, files: Files, names: Callable[[str], str], values: Mapping[str, Tensor]) -> None:
        """Set each weight to this rank's rows of `values`, if its name is there, else of `files`, by names(name)."""
        for name, p in self.model.named_parameters():
            rows = own_rows(p)
            _set(p, values[name][rows] if name in values else files.rows(names(name), rows), 1.0)
        self._renew()

    def tensors(self) -> dict[str, Any]:
        """Return what a checkpoint holds, by name: shards of weights and, with an optimiser, of moments.

        They are the tensors that are trained, so a reader may also write into them.
        """
        parameters = self._trained() or list(self.model.named_parameters())  # of a reference, which does not train: all
        tensors: dict[str, Any] = {f"{name}/weight": p.detach() for name, p in parameters}
        if self.optimizer is not None:
            for name, p in parameters:
                state = self._moments(name)
                tensors |= {f"{name}/{key}": _like(p, state[key], self._mesh) for key in MOMENTS}
        return tensors

    def set_step(self, num_updates: int) -> None:
        """Set AdamW's number of updates, by which it corrects its bias, after weights and moments were read."""
        self._renew()
        for name in self._rows:
            self._moments(name)["step"].fill_(float(num_updates))

    def _moments(self, name: str) -> dict[str, Any]:
        """Return AdamW's state of this rank's rows; before the first update, make it as AdamW would."""
        assert self.optimizer is not None
        rows = self._rows[name]
        state: dict[str, Any] = self.optimizer.state[rows]
        if not state:
            state["step"] = torch.zeros((), device=rows.device, dtype=torch.float32)
            state |= {key: torch.zeros_like(rows) for key in MOMENTS}
        return state

    def _trained(self) -> list[tuple[str, Any]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def _gradients(self) -> dict[str, Tensor]:
        """Return this rank's rows of the gradient, by name."""
        return {name: p.grad.to_local() for name, p in self._trained() if p.grad is not None}

    @torch.no_grad()
    def _renew(self) -> None:
        """Copy the weights to the optimiser's rows on the CPU, after something else has set them."""
        if self.offload:
            for name, p in self._trained():
                if name in self._rows:
                    self._rows[name].copy_(p.to_local())

    def _finite_norm(self, update: int) -> Tensor:
        """Return the norm of the gradient over all ranks. Raises: NonFiniteError if it is not finite."""
        gradients = list(self._gradients().values())
        norm_of_rank = (
            torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros((), device=self.model.device)
        )
        norm = self.ranks.all_reduce(norm_of_rank.double().square()).sqrt().float()
        return checked_norm(norm, self.whose, update)


@contextmanager
def _collective_errors_amid() -> Iterator[None]:
    """Turn the error of a collective within a computation into a RunError; other errors stay as they are."""
    try:
        yield
    except RuntimeError as exc:
        if isinstance(exc, dist.DistError) or "gloo" in str(exc).lower():
            with collective_errors():
                raise
        raise


def whole(*parameters: Any) -> AbstractContextManager[tuple[Tensor, ...]]:
    """Return a context with the divided tensors gathered; every rank must enter it."""
    with torch.no_grad(), collective_errors():
        return nullcontext(tuple(_gathered(p, p.dtype) for p in parameters))


def write_tensors(tensors: Mapping[str, Any], folder: Path, group: Any = None) -> FinishWriting | None:
    """Write shards into `folder`, each rank its own; every rank must call it, and see the same folder.

    With a `group` of these ranks that nothing else uses, a thread writes a copy of them; return a function that waits
    for its end.
    """
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    # Nothing is copied ahead: the thread would wait for a stream of the first GPU, and take memory there on each rank.
    writer = FileSystemWriter(folder, per_thread_copy_ahead=0)
    if group is None:
        with collective_errors(), _own_errors():
            state_dict_saver.save(dict(tensors), storage_writer=writer)
        return None
    stager = DefaultStager(StagingOptions(False, False, False, False))  # as torch chooses where it makes the writer
    with collective_errors():
        writing = state_dict_saver.async_save(
            dict(tensors), storage_writer=writer, async_stager=stager, process_group=group
        )
    assert isinstance(writing, Future)

    def finish_writing() -> None:
        try:
            with collective_errors(), _own_errors():
                writing.result()
        finally:
            stager.close()  # else its copies of the weights stay until the collector finds them

    return finish_writing


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise the error of the rank that failed first in place of torch's list of all, so that its type is known."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as exc:
        first, _ = next(iter(exc.failures.values()))
        raise first from exc


def own_group() -> Any:
    """Return a group of all ranks for a second thread, because one group would mix up the messages of two threads."""
    return dist.new_group(backend="gloo")


def read_tensors(tensors: Mapping[str, Any], folder: Path) -> None:
    """Fill shards from `folder`, which any number of ranks may have written. Raises: CheckpointError if they differ."""
    from torch.distributed.checkpoint import state_dict_loader

    with boundary(CheckpointError, f"{folder} does not fit the model"), collective_errors():
        state_dict_loader.load(dict(tensors), checkpoint_id=folder)


def _gathered(p: Any, dtype: torch.dtype) -> Tensor:
    """Return a divided tensor whole, in new memory; every rank must call it."""
    mesh = p.device_mesh
    rows: Tensor = p.to_local().detach().to(dtype)
    rows_per_rank = -(-p.shape[0] // mesh.size())
    if rows.shape[0] < rows_per_rank:  # the last ranks may have fewer rows, or none
        rows = torch.cat([rows, rows.new_zeros(rows_per_rank - rows.shape[0], *rows.shape[1:])])
    whole = rows.new_empty(rows_per_rank * mesh.size(), *rows.shape[1:])
    gather(whole, rows.contiguous(), mesh.get_group())
    return whole[: p.shape[0]]


def _set(p: Any, rows: Tensor, share: float) -> None:
    """Set this rank's rows of a divided parameter to share * rows + (1 - share) * the present ones."""
    present_rows = p.to_local()
    rows = rows.to(present_rows.device, present_rows.dtype)
    # lerp at 1 may round; a copy must be exact.
    present_rows.lerp_(rows, share) if share < 1 else present_rows.copy_(rows)


def _like(p: Any, rows: Tensor, mesh: Any = None) -> Any:
    """Return this rank's `rows` as a tensor that is divided as `p` is, over `mesh` if that is another one."""
    from torch.distributed.tensor import DTensor

    mesh = p.device_mesh if mesh is None else mesh
    return DTensor.from_local(rows, mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
