"""A module whose weights, gradients and optimiser state torch's FSDP2 divides among ranks.

Each rank has its rows of every weight, in float32 whatever the model's type, on a single rank too. A block's weights
are gathered while the block computes, in the model's own number type, and gradients are summed over ranks in float32.
With an engine that needs no module (vLLM), no rank ever has the whole model in memory. On several nodes there may be
replicas, each divided among neighbouring ranks, whose gradients are summed once an update. Source: arXiv:2304.11277,
section 3.2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from verizero.pipeline.config.auto import num_replicas
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, ConfigError, boundary
from verizero.pipeline.models.adapted_layers import plain_name
from verizero.pipeline.models.compiled import Compiling, compile_blocks
from verizero.pipeline.models.load import blocks_of, recompute_activations
from verizero.pipeline.models.lora import Adapted, is_factor
from verizero.pipeline.models.quantized import divisible, with_rest
from verizero.pipeline.models.saved_names import as_saved, hashed, on_meta, pieces, sum_of_bits, without_memory
from verizero.pipeline.models.scalar_head import Head, of_one_label
from verizero.pipeline.models.streamed import Files, Streamed, weights_of
from verizero.pipeline.train.checkpoint import FinishWriting, Seal, seals
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import adamw, checked_norm, clipped_step
from verizero.pipeline.train.ranks import ALONE, Ranks, collective_errors, join_alone, ranks_of_node
from verizero.pipeline.train.trained import MOMENTS, POLICY, REFERENCE, AnyForward, Trained, mix_in

SHARDS = "shards"
NUM_PARTS = 4
"""On the CPU a block's gradients are summed over ranks in so many parts."""


@dataclass(frozen=True, slots=True)
class Division:
    """The settings by which the modules of a policy are divided and computed."""

    ranks: Ranks
    dtype: torch.dtype
    """The number type of forward, backward and saved weights."""
    device: torch.device
    recompute: bool
    """Activations are computed again in the backward pass."""
    offload: bool
    """The CPU has the optimiser's state and updates the weights, and has a reference that waits."""
    compiling: Compiling | None
    mesh: Any
    """The ranks that divide this rank's replica."""
    cpu_mesh: Any
    """The same ranks, for tensors that `offload` keeps on the CPU."""
    twins: Ranks
    """The ranks that have the same rows in other replicas, and this one."""


class FsdpTrained(Trained):
    """A model divided among all ranks, with AdamW over its shards after `start`."""

    backend = "fsdp"
    is_divided = all_write = True
    divides_classifiers = True

    def __init__(
        self,
        model: Any,
        whose: str,
        how: Division,
        half: torch.dtype | None = None,
        trains: bool = True,
        read: Callable[[Any], None] | None = None,
    ) -> None:
        """Divide `model` in place. If its parameters are on `meta`, weights are undefined until something sets them.

        `half`: the number type of forward and backward; None for that of each weight. `read` gives each part of the
        model its weights before it is divided.
        """
        super().__init__(model.eval(), whose, how.ranks, how.device)
        self.how = how
        self.optimizer: torch.optim.AdamW | None = None
        self._rows: dict[str, Tensor] = {}
        """This rank's rows of the trained weights, by name, as plain tensors: the optimiser's parameters.

        They are the weights themselves, or with `offload` copies of them on the CPU.
        """
        self._resting: dict[str, tuple[Tensor, int]] = {}
        """While they rest on the CPU: by name, this rank's rows, and the bytes of their storage on the device."""
        self._is_summed = False
        """The gradient is summed over replicas."""
        self._writers: Any = None
        """The process group for writing shards in the background."""
        compile_blocks(model, how.compiling)
        self._empty: Any = None
        """The module on `meta`, where the weights are not a policy's."""
        self.shell = divided(model, how.mesh, half, self.device, how.recompute and trains, read)

    @classmethod
    def of(cls, model: Any, whose: str, how: Division) -> FsdpTrained:
        """Divide `model`, which is on `meta`, in float32; its weights are undefined until something sets them."""
        half = None if how.dtype == torch.float32 else how.dtype
        return cls(model.float().requires_grad_(True), whose, how, half)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward; the shards are float32."""
        return self.how.dtype

    def stop(self) -> None:
        """Drop the optimiser and its rows."""
        super().stop()
        self.optimizer, self._rows = None, {}

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model), called where the weights outside blocks are whole; blocks gather theirs."""
        with _collective_errors_amid():
            return self.shell(compute)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient, summed over the ranks of a replica: the loss is a rank's share of a sum."""
        assert not self._is_summed, "a backward between `require_finite` and `step`"
        with _collective_errors_amid(), fixed_order():
            loss.backward()  # type: ignore[no-untyped-call]

    def require_finite(self) -> None:
        """Raise NonFiniteError if the gradient is not finite on some rank; the gradient stays."""
        self._finite_norm()

    def discard(self) -> None:
        """Delete the gradient."""
        super().discard()
        self._is_summed = False
        for p in self._rows.values():
            p.grad = None

    def gathered(self, dtype: torch.dtype | None = None) -> Iterator[dict[str, Tensor]]:
        """Return whole weights by name, a block at a time; see `Trained.gathered`."""
        shards = dict(self.model.named_parameters())

        def block(names: Sequence[str]) -> dict[str, Tensor]:
            # The caller may be in inference mode, whose tensors could not be trained with afterwards.
            with torch.inference_mode(False), torch.no_grad(), collective_errors():
                return {n: with_rest(_gathered(shards[n], dtype or shards[n].dtype), shards[n]) for n in names}

        return map(block, pieces(shards))  # a generator's variable would keep a block while the next one is gathered

    def whole(self, *parameters: Any) -> AbstractContextManager[tuple[Tensor, ...]]:
        """Return a context with the divided tensors gathered."""
        with torch.no_grad(), collective_errors():
            return nullcontext(tuple(_gathered(p, p.dtype) for p in parameters))

    @torch.no_grad()
    def take(self, source: Any, share: float = 1.0) -> None:
        """Set the weights to share * source + (1 - share) * weights; this rank reads its own rows.

        `source`: a whole module, a module on `meta` with its weights in files (`models.streamed`), or another that FSDP
        divides, of which only the weights with a name in both are read. Raises: CheckpointError if a module lacks one.
        """
        is_divided = isinstance(source, FsdpTrained)
        theirs: dict[str, Any] = dict(source.model.named_parameters()) if is_divided else self._all_of(source)
        files = None if is_divided else weights_of(source)
        for name, p in self.model.named_parameters():
            if files is not None:
                mix_in(p.to_local(), files.rows(name, own_rows(p)), share)
            elif not is_divided:
                mix_in(p.to_local(), theirs[name][own_rows(p)], share)
            elif name in theirs:
                mix_in(p.to_local(), theirs[name].to_local(), share)
        self._renew()

    @torch.no_grad()
    def take_blocks(self, blocks: Iterable[Mapping[str, Tensor]], share: float = 1.0) -> None:
        """Set the weights to share * theirs + (1 - share) * weights; see `Trained.take_blocks`."""
        shards = dict(self.model.named_parameters())
        for block in blocks:
            for name in shards.keys() & block.keys():
                mix_in(shards[name].to_local(), block[name][own_rows(shards[name])], share)
            del block  # before the next one comes
        self._renew()

    @torch.no_grad()
    def take_files(self, files: Files, names: Callable[[str], str], values: Mapping[str, Tensor]) -> None:
        """Set each weight to this rank's rows of `values`, if its name is there, else of `files`, by names(name)."""
        for name, p in self.model.named_parameters():
            rows = own_rows(p)
            mix_in(p.to_local(), values[name][rows] if name in values else files.rows(names(name), rows), 1.0)
        self._renew()

    def place(self, is_used: bool) -> None:
        """Move the rows to the device if they are used next, else to the CPU's memory."""
        if is_used == (not self._resting):
            return
        device_rows = {name: p.to_local().detach() for name, p in self.model.named_parameters()}
        for name, rows in device_rows.items():
            if is_used:
                cpu_rows, num_bytes = self._resting.pop(name)
                rows.untyped_storage().resize_(num_bytes)
                rows.copy_(cpu_rows)
            else:
                # With the bytes of the storage, as it has padding.
                self._resting[name] = rows.to("cpu", copy=True), rows.untyped_storage().nbytes()
                rows.untyped_storage().resize_(0)

    def frozen(self, empty: Any, blocks: Iterable[Mapping[str, Tensor]]) -> Trained:
        """Return a divided module like `empty`, in its own number type, with these weights; it takes no gradient."""
        made = FsdpTrained(copy.deepcopy(empty).requires_grad_(False), REFERENCE, self.how, trains=False)
        made.take_blocks(blocks)
        return made

    def like(self, model: Any, whose: str) -> Trained:
        """Divide another module, which is on `meta`, as this one is."""
        return FsdpTrained.of(model, whose, self.how)

    def classifier(
        self, head: Head, whose: str, what: str, whole: Callable[[], Any], fill: Callable[[Trained], None]
    ) -> Trained:
        """Return a divided classifier of one label on a copy of the policy's blocks; see `Trained.classifier`."""
        import transformers

        with boundary(ConfigError, what):
            maker = getattr(transformers, f"AutoModelFor{head}")
            model = on_meta(maker, of_one_label(self.model.config), torch.float32)
        empty = without_memory(model)
        made = FsdpTrained.of(model, whose, self.how)
        made._empty = empty
        with torch.no_grad():
            for p in made.model.parameters():
                p.to_local().zero_()
            fill(made)
        return made

    def savable(self, is_first: bool) -> Any:
        """Return what writes a module of `classifier` a block at a time, on each rank; see `Trained.savable`."""
        blocks = lambda: map(partial(as_saved, self._empty), self.gathered(self.dtype))  # noqa: E731
        return Streamed(self._empty, blocks, 0 if is_first else 1)

    def _write(
        self,
        folder: Path,
        parts: Mapping[str, Trained],
        in_background: bool,
        finish_model: Callable[[], list[Path]],
    ) -> FinishWriting | None:
        """Write all shards, each rank its own."""
        tensors = self.tensors()
        for part, trained in parts.items():
            if isinstance(trained, FsdpTrained):
                tensors |= {f"{part}/{name}": t for name, t in trained.tensors().items()}
        if in_background and self._writers is None:
            self._writers = own_group()
        return write_tensors(tensors, folder / SHARDS, self._writers if in_background else None, finish_model)

    def read(self, folder: Path, state: dict[str, Any], part: str = "") -> None:
        """Restore shards that any number of ranks may have written; see `Trained.read`."""
        prefix = f"{part}/" if part else ""
        read_tensors({f"{prefix}{name}": t for name, t in self.tensors().items()}, folder / SHARDS)
        if self.config is not None:
            self.num_updates = (state[part] if part else state)["num_updates"]
            self._renew()
            for name in self._rows:  # AdamW corrects its bias by the number of updates
                self._moments(name)["step"].fill_(float(self.num_updates))

    def read_adapters(self, adapted: Adapted, folder: Path) -> None:
        """Check that a checkpoint's adapters are of this base; they are among the shards."""
        adapted.check_base(folder)

    def tensors(self) -> dict[str, Any]:
        """Return what a checkpoint holds, by name: shards of weights and, with an optimiser, of moments.

        They are the tensors that are trained, so a reader may also write into them.
        """
        parameters = self._trained() or list(self.model.named_parameters())  # of a reference, which does not train: all
        tensors: dict[str, Any] = {f"{name}/weight": p.detach() for name, p in parameters}
        if self.optimizer is not None:
            for name, p in parameters:
                state = self._moments(name)
                tensors |= {f"{name}/{key}": self._like(p, state[key]) for key in MOMENTS}
        return tensors

    def _restart(self, optimizer: OptimizerConfig) -> None:
        rows = {n: p.to_local().detach() for n, p in self._trained()}
        on_cpu = self.how.offload
        self._rows = {n: torch.nn.Parameter(p.to("cpu", copy=True) if on_cpu else p) for n, p in rows.items()}
        self.discard()
        self.optimizer = adamw(self._rows.values(), optimizer)

    def _update(self, config: OptimizerConfig, rate: float) -> float:
        assert self.optimizer is not None
        try:
            norm = self._finite_norm()
            for name, gradient in self._gradients().items():
                self._rows[name].grad = gradient.to(self._rows[name].device)
            norm_at_rows = norm.to("cpu") if self.how.offload else norm
            clipped_step(self.optimizer, config, list(self._rows.values()), norm_at_rows, rate)
            if self.how.offload:
                for name, p in self._trained():
                    p.to_local().detach().copy_(self._rows[name].detach())
        finally:
            self.discard()
        return float(norm)

    def _moments(self, name: str) -> dict[str, Any]:
        """Return AdamW's state of this rank's rows; before the first update, make it as AdamW would."""
        assert self.optimizer is not None
        rows = self._rows[name]
        state: dict[str, Any] = self.optimizer.state[rows]
        if not state:
            state["step"] = torch.zeros((), device=rows.device, dtype=torch.float32)
            state |= {key: torch.zeros_like(rows) for key in MOMENTS}
        return state

    def _gradients(self) -> dict[str, Tensor]:
        """Return this rank's rows of the gradient, by name, summed over replicas."""
        rows = {name: p.grad.to_local() for name, p in self._trained() if p.grad is not None}
        if not self._is_summed:
            self.how.twins.sum_gradients(rows.values())
            self._is_summed = True
        return rows

    def _like(self, p: Any, rows: Tensor) -> Any:
        """Return this rank's `rows` as a tensor that is divided as `p` is, on the CPU too."""
        from torch.distributed.tensor import DTensor

        mesh = self.how.cpu_mesh if rows.device.type == "cpu" else self.how.mesh
        return DTensor.from_local(rows, mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())

    @torch.no_grad()
    def _renew(self) -> None:
        """Copy the weights to the optimiser's rows on the CPU, after something else has set them."""
        if self.how.offload:
            for name, p in self._trained():
                if name in self._rows:
                    self._rows[name].copy_(p.to_local())

    def _finite_norm(self) -> Tensor:
        """Return the norm of the gradient over all ranks. Raises: NonFiniteError if it is not finite."""
        gradients = list(self._gradients().values())
        norm_of_rank = (
            torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros((), device=self.model.device)
        )
        # All replicas have the same rows; the sum is over all of them, so that no two can differ in the last bit.
        square = self.ranks.all_reduce(norm_of_rank.double().square()) / self.how.twins.size
        return checked_norm(square.sqrt().float(), self.whose, self.num_updates)


def fsdp_policy(
    model: Any,
    config: TrainConfig,
    ranks: Ranks,
    adapted: Adapted | None,
    compiling: Compiling | None,
    device: torch.device,
) -> FsdpTrained:
    """Return a divided policy: a copy of `model`, which is whole, or on `meta` with its weights in files.

    `adapted`: the adapters in `model`, if they alone are trained; then `model` itself is divided, because `adapted`
    refers to its modules, and number types stay.
    """
    join_alone(str(device))
    memory = 0 if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory
    num_parameters, smallest = sum(p.numel() for p in model.parameters()), min(ranks.gather(memory))
    replicas = num_replicas(config, num_parameters, smallest, ranks.size, ranks_of_node(ranks.size))
    mesh, twins = meshes_of(ranks, device, replicas)
    offload = config.offload != "none"
    on_gpu = offload and device.type != "cpu"
    cpu_mesh = meshes_of(ranks, torch.device("cpu"), replicas)[0] if on_gpu else mesh
    how = Division(ranks, model.dtype, device, config.recomputes, offload, compiling, mesh, cpu_mesh, twins)
    if adapted is None:
        policy = FsdpTrained.of(without_memory(model), POLICY, how)
        policy.take(model)
        return policy
    if adapted.is_quantized:

        def read(part: Any) -> None:
            adapted.read(part)
            divisible(part)

        policy = FsdpTrained(model, POLICY, how, read=read)
        for layer in model.modules():  # the fingerprint is that of the base's numbers, before they were put in bits
            with_rest(layer._parameters.get("weight"), layer)
        return policy
    values, files = {}, weights_of(model)
    if files is not None:
        values = {name: p.detach() for name, p in model.named_parameters() if p.device.type != "meta"}
        for layer in adapted.layers.values():
            layer.lora_A.to("meta")
            layer.lora_B.to("meta")
    policy = FsdpTrained(model, POLICY, how)
    if files is not None:
        policy.take_files(files, plain_name, values)
    base = [(n, p) for n, p in policy.model.named_parameters() if not is_factor(n)]
    replica = Ranks(mesh.get_local_rank(), mesh.size(), group=mesh.get_group())
    sums = replica.all_reduce(torch.stack([sum_of_bits(p.to_local()) for _, p in base])).tolist()
    adapted.base = hashed((plain_name(n), p.shape, total) for (n, p), total in zip(base, sums, strict=True))
    return policy


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


def write_tensors(
    tensors: Mapping[str, Any], folder: Path, group: Any = None, finish_model: Callable[[], list[Path]] = list
) -> FinishWriting | None:
    """Write shards into `folder`, each rank its own; every rank must call it, and see the same folder.

    With a `group` of these ranks that nothing else uses, a thread writes a copy of them; return a function that waits
    for its end. `finish_model` waits for the model's files, and returns those of this rank.
    """
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    # Nothing is copied ahead: the thread would wait for a stream of the first GPU, and take memory there on each rank.
    writer = FileSystemWriter(folder, per_thread_copy_ahead=0)
    if group is None:
        with collective_errors(), _own_errors():
            state_dict_saver.save(dict(tensors), storage_writer=writer)
            finish_model()
            dist.barrier()
        return None
    stager = DefaultStager(StagingOptions(False, False, False, False))  # as torch chooses where it makes the writer
    with collective_errors():
        writing = state_dict_saver.async_save(
            dict(tensors), storage_writer=writer, async_stager=stager, process_group=group
        )
    assert isinstance(writing, Future)

    def finish_writing() -> Mapping[str, Seal]:
        try:
            with collective_errors(), _own_errors():
                writing.result()
        finally:
            stager.close()  # else its copies of the weights stay until the collector finds them
        return _seals_of_ranks(folder, group, finish_model)

    return finish_writing


def _seals_of_ranks(folder: Path, group: Any, finish_model: Callable[[], list[Path]]) -> Mapping[str, Seal]:
    """Return the seals of all shards in `folder` and of the model's files, each read by the rank that wrote it.

    Every rank must call it.
    """
    try:
        written = [*finish_model(), *folder.glob(f"__{dist.get_rank(group)}_*")]
        mine: Any = seals(folder.parent, written)
    except Exception as exc:  # the others wait for an answer
        mine = exc
    by_rank: list[Any] = [None] * dist.get_world_size(group)
    with collective_errors():
        dist.all_gather_object(by_rank, mine, group=group)
    for part in by_rank:
        if isinstance(part, Exception):
            raise part
    return {name: seal for part in by_rank for name, seal in part.items()}


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
    mesh: Any,
    dtype: torch.dtype | None,
    device: torch.device,
    recompute: bool,
    read: Callable[[Any], None] | None = None,
) -> torch.nn.Module:
    """Divide `model` in place: each block, each untied embedding, the rest as one. Return its root, an `AnyForward`.

    `mesh`: the ranks that divide it. `read(part)` gives a part its weights, so that one after another is whole; without
    it those on `meta` have none.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if recompute:
        recompute_activations(model)
    # Inputs have the right type already: the model is in half precision itself.
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    shell = AnyForward(model)
    # Tied embeddings must be gathered together: they are with the rest, whole throughout forward and backward.
    embedding, head = model.get_input_embeddings(), getattr(model, "lm_head", None)
    is_tied = head is not None and head.weight is embedding.weight
    untied = [] if is_tied else [m for m in (embedding, head) if m is not None]
    for block in [*blocks_of(model), *untied, shell]:
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


def meshes_of(ranks: Ranks, device: torch.device, replicas: int) -> tuple[Any, Ranks]:
    """Return the ranks that divide this rank's replica, as torch's mesh, and those that have its rows in all replicas.

    Ranks with neighbouring numbers, which are on the same node, divide a replica.
    """
    from torch.distributed.device_mesh import init_device_mesh

    if replicas == 1:
        return init_device_mesh(device.type, (ranks.size,)), ALONE
    mesh = init_device_mesh(device.type, (replicas, ranks.size // replicas), mesh_dim_names=("replicas", "rows"))
    return mesh["rows"], Ranks(mesh.get_local_rank("replicas"), replicas, group=mesh.get_group("replicas"))


def own_rows(p: Any) -> slice:
    """Return this rank's rows of a divided parameter; rows are divided as by `torch.chunk`."""
    mesh, num = p.device_mesh, p.shape[0]
    rows_per_rank = -(-num // mesh.size())
    start = min(mesh.get_local_rank() * rows_per_rank, num)
    return slice(start, min(start + rows_per_rank, num))


def gather(whole: Tensor, own: Tensor, group: Any) -> None:
    """Fill `whole` with the tensors `own` of all ranks, one after another."""
    # torch renamed this collective, and the one below: the old name warns where there is a new one.
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    call(whole, own, group=group)


def _scatter(own: Tensor, whole: Tensor, group: Any, op: Any) -> None:
    """Fill `own` with this rank's part of the sum of all ranks' tensors `whole`."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(own, whole, op=op, group=group)
