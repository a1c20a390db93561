"""The sources of rollouts: the protocol, and the one that generates when it is called; `ahead_source` has the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, Protocol

from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Engine
from verizero.pipeline.rollout.generate import Count, Generation, ResponseKind, generate_rollouts
from verizero.pipeline.run.state import InFlightBatch
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import EndedResponse, Prompt, Rollout

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

    def __init__(self, generation: Generation, ranks: Ranks) -> None:
        self.generation, self.ranks = generation, ranks
        self.parity: Parity = "unchecked"
        """The result of this process's comparisons of log-probs of engine and trainer."""

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
        """Give the engine the policy's weights. Raise EngineError if it then reports another version."""
        backend.update_engine_module()
        confirm_published(self.engine, version)

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

    def close(self) -> None:
        """Close the engine, and end the environments' threads."""
        self.engine.close()
        if self.generation.episode_setup is not None:
            self.generation.episode_setup.close()


def confirm_published(engine: Engine, version: int) -> None:
    """Let the engine take the weights. Raise EngineError if it then reports another version."""
    engine.publish(version)
    if engine.version != version:
        raise EngineError(
            f"the engine reports weights of version {engine.version} after version {version} was published; restart "
            "the engine"
        )
