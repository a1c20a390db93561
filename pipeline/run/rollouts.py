"""The sources of rollouts: the protocol, and the one that generates when it is called; `ahead_source` has the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from verizero.pipeline.errors import CheckpointError, EngineError, boundary
from verizero.pipeline.rollout.engine import Engine
from verizero.pipeline.rollout.generate import Count, Generation, ResponseKind, generate_rollouts
from verizero.pipeline.run.state import InFlightBatch
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import EndedResponse, Prompt, Rollout

WEIGHTS_FILE = "published.pt"
Parity = Literal["unchecked", "equal", "differs"]


class EarlyReader(Protocol):
    """Called with responses that have ended."""

    def __call__(self, ended: Sequence[EndedResponse], offset: int = 0) -> None:
        """Take the responses; return at once. `offset`: index of their kind's first response in the whole call."""
        ...


class RolloutSource:
    """Responses of the policy to prompts, with the weights that were published last.

    This one generates when it is called, and no batch is ever in flight; `AheadSource` has other methods for that.
    """

    def __init__(self, generation: Generation, ranks: Ranks, keeps_weights: bool = False) -> None:
        """`keeps_weights`: the engine may keep weights over several updates, so a checkpoint needs a copy of them."""
        self.generation, self.ranks = generation, ranks
        self.parity: Parity = "unchecked"
        """The result of this process's comparisons of log-probs of engine and trainer."""
        self._keeps_weights = keeps_weights
        self._published: dict[str, Any] = {}

    @property
    def engine(self) -> Engine:
        """The engine of `generation`."""
        return self.generation.engine

    @property
    def in_flight(self) -> Sequence[InFlightBatch]:
        """The batches that are being generated for later steps, oldest first."""
        return ()

    def generate(
        self,
        prompts: Sequence[Prompt],
        kinds: Sequence[ResponseKind],
        stream: tuple[int, int],
        reader: EarlyReader | None,
        count: Count | None = None,
    ) -> list[Rollout]:
        """Return the responses to this rank's `prompts`, all of the first kind, then all of the next.

        If a batch is in flight, the oldest one is completed and returned in their place. `stream` (RL step, attempt)
        names the random numbers of responses that are sampled now; `reader` and `count` hear of those.
        """
        return self.sample(prompts, kinds, stream, reader, count)

    def sample(
        self,
        prompts: Sequence[Prompt],
        kinds: Sequence[ResponseKind],
        stream: Sequence[int],
        reader: EarlyReader | None,
        count: Count | None = None,
    ) -> list[Rollout]:
        """Sample responses now, with the engine's present weights, in the same order. Batches in flight stay there."""
        rollouts: list[Rollout] = []
        for name, samples, sampling in kinds:
            # The reader numbers the responses of all kinds in one list.
            of_kind = None if reader is None else partial(reader, offset=len(rollouts))
            rollouts += generate_rollouts(
                self.generation, prompts, samples, sampling, name, *stream, reader=of_kind, count=count
            )

        return rollouts

    def start(self, batch: InFlightBatch, kinds: Sequence[ResponseKind]) -> None:
        """Start to generate a batch for a later step. Raise EngineError here: this source has the present step only."""
        raise EngineError("a synchronous source cannot generate for a later step; set rollout.max_staleness above 0")

    def publish(self, backend: Backend, version: int) -> None:
        """Give the engine the policy's weights, and copy them if a checkpoint may need them later.

        Raise EngineError if the engine then reports another version.
        """
        backend.update_engine_module()
        confirm_published(self.engine, version)
        self._copy_weights(backend)

    def wait(self) -> None:
        """Return when everything asked so far is generated and published. Raise whatever error occurred in it."""

    def free_memory(self) -> None:
        """Let an engine on the trainer's GPU give its memory back until the next publish or sample.

        Called before anything trains; it does nothing while batches are in flight.
        """
        self.engine.rest()

    def snapshot(self) -> list[InFlightBatch]:
        """Return the batches in flight for a checkpoint, on rank 0 with all responses. Every rank must call it."""
        return []

    def restore(self, batch: InFlightBatch, kinds: Sequence[ResponseKind]) -> None:
        """Continue a batch of a checkpoint, of which this rank takes its share, whatever number of ranks there was.

        Here it is dropped: the recipe does not generate for later steps any more.
        """

    def drop(self) -> None:
        """Drop all batches in flight: no later step trains on them."""

    def save_weights(self, folder: Path, policy_version: int) -> None:
        """Write the copy of the engine's weights if the policy has trained since."""
        # Equal versions mean that the policy's own file is enough.
        if self._published and self.engine.version != policy_version:
            with (folder / WEIGHTS_FILE).open("wb") as file:  # given a path, torch hides the error of a full disk
                torch.save({"version": self.engine.version, "weights": self._published}, file)

    def publish_after_start(self, backend: Backend, version: int, checkpoint: Path | None) -> None:
        """Give a new engine its weights: the policy's, or the older ones that it had at the checkpoint.

        Raise CheckpointError if the checkpoint's weights do not fit the policy.
        """
        path = None if checkpoint is None else checkpoint / WEIGHTS_FILE
        if path is None or not path.is_file():
            self.publish(backend, version)
            self.wait()
            return
        model = backend.model
        # The engine can read only from the policy's module, so that takes the old weights for a moment.
        present = {name: w.detach().clone() for name, w in model.state_dict().items()}
        with boundary(CheckpointError, f"{path} does not fit the policy"):
            saved = torch.load(path, map_location="cpu", weights_only=True)
            model.load_state_dict(saved["weights"])  # the engine reads from the policy's module
            self.engine.publish(saved["version"])
            self._copy_weights(backend)
            # If the load failed the run ends, so nothing needs to be put back before.
            model.load_state_dict(present)

    def close(self) -> None:
        """Close the engine, and end environments elsewhere and the threads of all."""
        self.engine.close()
        if self.generation.episode_setup is not None:
            self.generation.episode_setup.close()

    def _copy_weights(self, backend: Backend) -> None:
        if self._keeps_weights:
            weights = backend.model.state_dict()
            self._published = {name: w.detach().to("cpu", copy=True) for name, w in weights.items()}


def confirm_published(engine: Engine, version: int) -> None:
    """Let the engine take the weights. Raise EngineError if it then reports another version."""
    engine.publish(version)
    if engine.version != version:
        raise EngineError(
            f"the engine reports weights of version {engine.version} after version {version} was published; restart "
            "the engine"
        )
