"""One module with its optimiser, whole in every process or divided among ranks: what all trainers have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import CheckpointError, Unsupported
from verizero.pipeline.models.lora import Adapted, as_they_are
from verizero.pipeline.models.quantized import with_rest
from verizero.pipeline.models.saved_names import pieces
from verizero.pipeline.models.scalar_head import Head, with_scalar_head
from verizero.pipeline.train.checkpoint import FinishWriting
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import schedule
from verizero.pipeline.train.ranks import Ranks

POLICY, REFERENCE = "gradient norm", "reference"
"""Begin error messages about the policy, and about the reference, which has no gradient."""
MOMENTS = ("exp_avg", "exp_avg_sq")
STATE, WHOLE = "trainer.json", "trainer.pt"
"""The files of a checkpoint with its state, and with what is whole in the first process."""
POLICY_PART = "policy"


class Trained(ABC):
    """A module that `start` gives an optimiser; without one it is frozen.

    `torch_trained.py`, `fsdp_trained.py` and `deepspeed_trained.py` have one class each. All ranks must call every
    method that computes, gathers, reads or writes.
    """

    backend: str
    """The value of `train.backend`."""
    model: Any
    whose: str
    ranks: Ranks
    device: torch.device
    config: OptimizerConfig | None
    total_steps: int
    """Updates that the schedule of the learning rate spans."""
    num_updates: int
    is_divided: bool = False
    """The weights are shards: whole only while the module's own layers compute, and in `gathered`."""
    all_write: bool = False
    """All ranks write files of the policy's Hugging Face folder, not rank 0 alone."""
    scale: int = 1
    """`backward` multiplies the loss by it."""
    divides_classifiers: bool = False
    """A reward model is divided as the policy is; else every rank has a whole one."""
    gives_adapters: bool = True
    """An engine can have the policy's adapters alone."""

    def __init__(self, model: Any, whose: str, ranks: Ranks, device: torch.device | None = None) -> None:
        """`whose` begins error messages ("gradient norm")."""
        self.model = model
        self.whose = whose
        self.ranks = ranks
        self.device = device or model.device
        self.config = None
        self.total_steps = self.num_updates = 0

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward. Weights may be kept in another one."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make a fresh optimiser for `total_steps` updates."""
        self.config, self.total_steps, self.num_updates = optimizer, total_steps, 0
        self._restart(optimizer)

    def change(self, optimizer: OptimizerConfig) -> None:
        """Set learning rate, clipping and so on; schedule and moments stay."""
        self.config = optimizer

    def stop(self) -> None:
        """Drop the optimiser that `start` made; the weights stay."""
        self.config = None
        self.total_steps = self.num_updates = 0

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model), where divided weights outside blocks are whole."""
        return compute(self.model)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient; the loss is this rank's share of a sum."""
        with fixed_order():
            loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def require_finite(self) -> None:
        """Raise NonFiniteError if the gradient is not finite on some rank; the gradient stays."""

    def step(self) -> tuple[float, float]:
        """Take one clipped AdamW update, and return the gradient's norm and the learning rate. The gradient is gone.

        Raises: NonFiniteError if the gradient is not finite; weights and moments are as before.
        """
        assert self.config is not None
        rate = schedule(self.config, self.num_updates, self.total_steps)
        norm = self._update(self.config, rate)
        self.num_updates += 1
        return norm, rate

    def discard(self) -> None:
        """Delete the gradient."""
        for p in self.model.parameters():
            p.grad = None

    def gathered(self, dtype: torch.dtype | None = None) -> Iterator[dict[str, Tensor]]:
        """Yield whole weights by name, a block at a time; divided ones are rounded to `dtype` before they are gathered.

        A block of divided weights takes memory until its tensors are dropped.
        """
        own = dict(self.model.named_parameters())
        for names in pieces(own):
            with self.whole(*(own[name] for name in names)) as weights:
                # Detached, because a divided parameter is empty again after the block.
                yield {n: with_rest(p.detach(), p) for n, p in zip(names, weights, strict=True)}

    def whole(self, *parameters: Any) -> AbstractContextManager[tuple[Tensor, ...]]:
        """Return a context with some of the module's parameters whole."""
        return as_they_are(*parameters)

    def take(self, source: Any, share: float = 1.0) -> None:
        """Set the weights to share * source + (1 - share) * weights. `source`: a module, or a `Trained`.

        Of a `Trained` only the weights with a name in both are read. Raises: CheckpointError if a module lacks one.
        """
        self.take_blocks([self._all_of(source)] if isinstance(source, torch.nn.Module) else source.gathered(), share)

    def _all_of(self, source: torch.nn.Module) -> dict[str, Tensor]:
        """Return the weights of `source` by name. Raises: CheckpointError if one of this module is not there."""
        theirs: dict[str, Tensor] = dict(source.named_parameters())
        for name, _ in self.model.named_parameters():
            if name not in theirs:
                raise CheckpointError(f"the weights to read have no {name!r}: they are of another architecture")
        return theirs

    def take_blocks(self, blocks: Iterable[Mapping[str, Tensor]], share: float = 1.0) -> None:
        """Set the weights to share * theirs + (1 - share) * weights. `blocks`: their whole weights, some at a time."""
        raise Unsupported(f"{type(self).__name__} takes no weights of others")

    def place(self, is_used: bool) -> None:
        """Move the weights to the device if they are used next, else to the CPU's memory."""
        raise Unsupported(f"{type(self).__name__} stays on its device")

    @abstractmethod
    def frozen(self, empty: Any, blocks: Iterable[Mapping[str, Tensor]]) -> Trained:
        """Return a module like `empty` with these whole weights and without an optimiser, a reference."""

    @abstractmethod
    def like(self, model: Any, whose: str) -> Trained:
        """Return another module that is trained as this one is."""

    def classifier(
        self, head: Head, whose: str, what: str, whole: Callable[[], Any], fill: Callable[[Trained], None]
    ) -> Trained:
        """Return a classifier of one label: its blocks are a copy of the policy's, its head is zero.

        `whole()` is the policy as a plain module; `fill` sets the weights that the policy has too. `what` begins the
        message. Raises: ConfigError if transformers has no such classifier of this architecture.
        """
        return self.like(with_scalar_head(whole(), head, what), whose)

    def savable(self, is_first: bool) -> Any:
        """Return a module with `save_pretrained`, which each rank that gets one must call; None: nothing to save."""
        return self.model if is_first else None

    def write(
        self,
        folder: Path,
        state: dict[str, Any],
        parts: Mapping[str, Trained],
        in_background: bool,
        finish_model: Callable[[], list[Path]] = list,
    ) -> FinishWriting | None:
        """Write a checkpoint of this module, and of a policy's "reference" and "critic", if `parts` has them.

        `state`: more facts for `read_state`. `in_background`: a thread may write a copy; then return a function that
        waits for its end. `finish_model` waits for the policy's Hugging Face folder, and returns this rank's files.
        """
        finish_writing = self._write(folder, parts, in_background, finish_model)
        if self.ranks.is_first:
            contents = {part: trained.content(part) for part, trained in {POLICY_PART: self, **parts}.items()}
            with (folder / WHOLE).open("wb") as file:  # given a path, torch hides a full disk's error
                torch.save({part: content for part, content in contents.items() if content}, file)
            (folder / STATE).write_text(json.dumps({"backend": self.backend, **self.metadata(), **state}))
        return finish_writing

    @abstractmethod
    def _write(
        self,
        folder: Path,
        parts: Mapping[str, Trained],
        in_background: bool,
        finish_model: Callable[[], list[Path]],
    ) -> FinishWriting | None:
        """Write what is divided, and weights in folders of their own; see `write`."""

    def content(self, part: str) -> dict[str, Any]:
        """Return what rank 0 writes of this module, as `part`, into the file of what is whole."""
        return {}

    def read_state(self, folder: Path) -> dict[str, Any]:
        """Return what `write` wrote: `metadata`, state, and each part as "whole". Raises: CheckpointError."""
        if not (folder / STATE).exists():
            raise CheckpointError(
                f"{folder} has no {STATE}: another version of verizero wrote it; "
                f"start a new run with model.path: {folder / 'model'}"
            )
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
        if state.get("backend") != self.backend:
            raise CheckpointError(
                f"{folder} was not written by train.backend={self.backend}; continue with the backend that wrote it, "
                f"or start a new run with model.path: {folder / 'model'}"
            )
        # To the CPU, page by page: the file names rank 0's GPU, to which every rank would read it.
        return state | {"whole": torch.load(folder / WHOLE, map_location="cpu", mmap=True, weights_only=True)}

    @abstractmethod
    def read(self, folder: Path, state: dict[str, Any], part: str = "") -> None:
        """Restore weights and optimiser from a checkpoint. `part`: "", "reference" or "critic", as what it was written.

        Raises: CheckpointError if they do not fit the module.
        """

    def read_adapters(self, adapted: Adapted, folder: Path) -> None:
        """Restore the policy's adapters from a checkpoint. Raises: CheckpointError if they are of another base."""
        adapted.load(folder)

    def metadata(self) -> dict[str, Any]:
        """Return settings and number of updates, for a checkpoint."""
        config = None if self.config is None else self.config.model_dump()
        return {"config": config, "total_steps": self.total_steps, "num_updates": self.num_updates}

    def _trained(self) -> list[tuple[str, Any]]:
        """Return the weights that take a gradient, with their names."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    @abstractmethod
    def _restart(self, optimizer: OptimizerConfig) -> None:
        """Make a fresh optimiser."""

    @abstractmethod
    def _update(self, config: OptimizerConfig, rate: float) -> float:
        """Take one clipped update at that rate, delete the gradient, and return its norm."""


class AnyForward(torch.nn.Module):
    """The root module that FSDP and DeepSpeed wrap, as they only hook forwards; in its own it runs any function."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model)."""
        return compute(self.model)


@torch.no_grad()
def mix_in(ours: Tensor, theirs: Tensor, share: float) -> None:
    """Set `ours` to share * theirs + (1 - share) * ours."""
    theirs = theirs.to(ours.device, ours.dtype)
    # lerp at 1 may round; a copy must be exact.
    ours.lerp_(theirs, share) if share < 1 else ours.copy_(theirs)
