"""The source of rollouts that generates while earlier batches train.

A thread of its own generates. The step's number decides which weights sample which response, never the clock: batches
are started and weights published at fixed places of the loop, and the thread does both in that order. So equal recipes
give equal bytes here too, and a checkpoint holds the batches in flight. With `rollout.max_staleness` k, the batch of
step s is sampled by the weights after s - k updates, the first batches by the first weights, refills by the present.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from verizero.pipeline.errors import EngineError
from verizero.pipeline.models.strictness import unswitched
from verizero.pipeline.rollout.generate import Count, Generation, ResponseKind, generate_rollouts
from verizero.pipeline.run.dealing import share_of
from verizero.pipeline.run.rollouts import EarlyReader, RolloutSource, confirm_published
from verizero.pipeline.run.state import InFlightBatch
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import Prompt, Rollout

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
            with unswitched():
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
