"""The sources of rollouts, one that generates when it is called and one ahead of training; and the ranks' shares.

`AheadSource` has a thread of its own. The step's number decides which weights sample which response, never the clock:
batches are started and weights published at fixed places of the loop, and the thread does both in that order. So equal
recipes give equal bytes here too, and a checkpoint holds the batches in flight. With `rollout.max_staleness` k, the
batch of step s is sampled by the weights after s - k updates, the first batches by the first weights, refills by the
present.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import torch

from verizero.pipeline.errors import EngineError
from verizero.pipeline.models.strictness import turn
from verizero.pipeline.rollout.engine import Engine
from verizero.pipeline.rollout.generate import Count, Generation, ResponseKind, generate_rollouts
from verizero.pipeline.run.state import InFlightBatch
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import EndedResponse, Group, Prompt, Rollout

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


@dataclass(frozen=True, slots=True)
class RankPrompts:
    """The prompts of this rank, and the index of each among all prompts."""

    prompts: list[Prompt]
    indices: list[int]


def share_of(ranks: Ranks, prompts: Sequence[Prompt]) -> RankPrompts:
    """Return this rank's prompts in their order: all of them where there is one rank.

    A prompt that occurs twice goes to one rank both times: its second random numbers depend on the first draw.
    """
    owner: dict[str, int] = {}
    for p in prompts:
        # Dealt in turn by first occurrence, so every rank computes the same owners without a message.
        owner.setdefault(p.id, len(owner) % ranks.size)
    indices = [i for i, p in enumerate(prompts) if owner[p.id] == ranks.rank]
    return RankPrompts([prompts[i] for i in indices], indices)


def gather_groups(
    ranks: Ranks, share: RankPrompts, columns: Sequence[Sequence[Group]], tally: GradingTally
) -> tuple[list[list[Group]], GradingTally]:
    """Gather the groups of all ranks in the order of the step's prompts, and add up the ranks' tallies.

    `columns`: lists of this rank's groups, each with one group for each prompt of its share, e.g. of samples and of
    greedy responses.
    """
    if ranks.size == 1:
        return [list(c) for c in columns], tally
    gathered = ranks.gather((share.indices, columns, tally))
    whole: list[list[Group]] = []
    for i in range(len(columns)):
        # Indices into the whole step: with them the order is that of one process.
        by_index = {
            index: group for indices, theirs, _ in gathered for index, group in zip(indices, theirs[i], strict=True)
        }
        whole.append([by_index[index] for index in range(len(by_index))])
    return whole, sum_of_tallies([tally for _, _, tally in gathered])


def sum_of_tallies(tallies: Sequence[GradingTally]) -> GradingTally:
    """Return the sum of the ranks' tallies. Ranks grade at the same time, so the busiest one's seconds count."""
    statuses: Counter[str] = Counter()
    for t in tallies:
        statuses.update(t.statuses)
    return GradingTally(
        dict(statuses), sum(t.retried for t in tallies), sum(t.seconds for t in tallies), max(t.busy_s for t in tallies)
    )


CPU = torch.device("cpu")
T = TypeVar("T")


@dataclass
class _InFlight:
    batch: InFlightBatch
    rollouts: Future[list[list[Rollout]]]
    """The responses of this rank: for each kind, prompt by prompt."""
    kinds: tuple[ResponseKind, ...]


class AheadSource(RolloutSource):
    """Generates batches for later steps in a thread of its own, and those of the present step as they are needed."""

    def __init__(
        self, generation: Generation, ranks: Ranks, engine_copy: Any = None, device: torch.device = CPU
    ) -> None:
        """Make the source and its thread.

        `engine_copy`: the module that the engine reads weights from, if that is not the trainer's. Then new weights can
        be published while a batch is being generated: a copy waits for its end. Otherwise publishing waits for it.
        `device`: where the policy is.
        """
        super().__init__(generation, ranks)
        self._engine_copy, self._device = engine_copy, device
        self._queue: deque[_InFlight] = deque()
        self._thread = ThreadPoolExecutor(1, "generation")
        self._last: Future[Any] | None = None
        self._rests = False
        """The engine rests, or has been woken by the trainer's thread since."""

    @property
    def in_flight(self) -> Sequence[InFlightBatch]:
        """The batches in flight, oldest first."""
        return [entry.batch for entry in self._queue]

    def generate(
        self,
        prompts: Sequence[Prompt],
        kinds: Sequence[ResponseKind],
        stream: tuple[int, int],
        reader: EarlyReader | None,
        count: Count | None = None,
    ) -> list[Rollout]:
        """Return the oldest batch in flight; if there is none, sample now with the engine's present weights."""
        if not self._queue:
            self.wait()
            return self.sample(prompts, kinds, stream, reader, count)
        # The oldest first: the thread completes batches in the order of their start.
        return [rollout for of_kind in self._queue.popleft().rollouts.result() for rollout in of_kind]

    def start(self, batch: InFlightBatch, kinds: Sequence[ResponseKind]) -> None:
        """Generate the batch as soon as everything before it is done."""
        if self._rests:
            # Some engines wake with the policy's weights. The thread would read them while the policy trains on.
            self.wait()
            self.engine.generate([], kinds[0].sampling)
            self._rests = False
        prompts, stream = share_of(self.ranks, batch.prompts).prompts, (batch.step, "ahead", batch.number)

        def generate() -> list[list[Rollout]]:
            # Random numbers are named by the step, so they depend on neither engine nor time.
            return [
                generate_rollouts(self.generation, prompts, kind.samples, kind.sampling, kind.stream, *stream)
                for kind in kinds
            ]

        self._queue.append(_InFlight(batch, self._submit(generate), tuple(kinds)))

    def publish(self, backend: Backend, version: int) -> None:
        """Give the engine the policy's weights. Batches that were started before are sampled by older ones."""
        if self._engine_copy is None:
            self.wait()
            backend.update_engine_module()
            confirm_published(self.engine, version)
            return
        weights = {name: w.detach().clone() for name, w in backend.whole_model().state_dict().items()}

        def take_weights() -> None:
            # Runs in the generating thread, hence between two batches and never inside one.
            with turn("unswitched"):
                self._engine_copy.load_state_dict(weights)
                confirm_published(self.engine, version)

        self._submit(take_weights)

    def wait(self) -> None:
        """Return when the thread has done everything. Raise whatever error a batch or a publish raised."""
        # A publish has no entry in the queue, and the last task fails if any before it did.
        if self._last is not None:
            self._last.result()
        for entry in self._queue:
            entry.rollouts.result()

    def free_memory(self) -> None:
        """Let the engine give its memory back if no batch is in flight, as in stages that sample nothing."""
        # The thread of a batch in flight would wake the engine with the weights of an update that is half done.
        if not self._queue:
            self.wait()
            self.engine.rest()
            self._rests = True

    def snapshot(self) -> list[InFlightBatch]:
        """Return the batches in flight, on rank 0 with the responses that all ranks have so far."""
        self.wait()
        return [replace(entry.batch, rollouts=self._gathered(entry)) for entry in self._queue]

    def restore(self, batch: InFlightBatch, kinds: Sequence[ResponseKind]) -> None:
        """Put the batch into the queue with this rank's share of its responses."""
        indices, done = share_of(self.ranks, batch.prompts).indices, Future[list[list[Rollout]]]()
        # Responses are stored in the order of all prompts, so any number of ranks can take shares.
        done.set_result(
            [
                [r for index in indices for r in rollouts[index * kind.samples : (index + 1) * kind.samples]]
                for kind, rollouts in zip(kinds, batch.rollouts, strict=True)
            ]
        )
        self._queue.append(_InFlight(replace(batch, rollouts=[]), done, tuple(kinds)))

    def drop(self) -> None:
        """Drop all batches in flight."""
        self.wait()
        self._queue.clear()

    def close(self) -> None:
        """End the thread after its present task, then the engine."""
        # The engine must not be closed under a task that uses it.
        self._thread.shutdown(wait=True, cancel_futures=True)
        super().close()

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        before, last = self._last, self._thread.submit(_on_device(self._device, _unless_failed(self._last, work)))
        self._last = last
        if before is not None and before.done():
            before.result()  # report an earlier error now instead of at the next wait
        return last

    def _gathered(self, entry: _InFlight) -> list[list[Rollout]]:
        """Return the responses of all ranks by kind, in the order of the batch's prompts; empty on ranks above 0."""
        # A collective: all ranks hold the same batches in the same order, so they meet here for each.
        gathered = self.ranks.gather((share_of(self.ranks, entry.batch.prompts).indices, entry.rollouts.result()))
        if not self.ranks.is_first:
            return []
        whole: list[list[Rollout]] = []
        for index, kind in enumerate(entry.kinds):
            by_index = {
                prompt: rollouts[index][i * kind.samples : (i + 1) * kind.samples]
                for indices_of_rank, rollouts in gathered
                for i, prompt in enumerate(indices_of_rank)
            }
            whole.append([r for prompt in range(len(entry.batch.prompts)) for r in by_index[prompt]])
        return whole


def _unless_failed(before: Future[Any] | None, work: Callable[[], T]) -> Callable[[], T]:
    """Return the work, which raises instead if the task before it failed: its weights or tokens would be wrong."""

    def run() -> T:
        if before is not None and before.done() and before.exception() is not None:
            raise EngineError("an earlier generation or publish of the same thread failed") from before.exception()
        # Gradient mode belongs to a thread, and this one does not inherit the trainer's.
        with torch.no_grad():
            return work()

    return run


def _on_device(device: torch.device, work: Callable[[], T]) -> Callable[[], T]:
    """Wrap work for another thread: synchronise the GPU before and after it.

    A new thread begins with the first GPU, whatever its rank uses, and vLLM may give each thread a CUDA stream.
    """
    if device.type != "cuda":
        return work
    # Weights that this thread is still copying must be there before the other thread reads them.
    torch.cuda.synchronize(device)

    def run() -> T:
        torch.cuda.set_device(device)
        try:
            return work()
        finally:
            torch.cuda.synchronize(device)

    return run
