"""Generation that runs ahead of the update, in a thread of its own.

Which weights draw which response is decided by the number of the step and never by the clock: flights are launched, and
weights handed over, at fixed places of the loop, and the thread does them in that order. So equal recipes give equal
bytes here too, and a checkpoint holds what is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pipeline.config.run import RunConfig
from pipeline.errors import EngineError
from pipeline.rollout.continuation import Asked, Flight, fly
from pipeline.rollout.engine import Engine
from pipeline.run.dealing import share_of
from pipeline.run.state import Launched
from pipeline.train.ranks import Ranks
from pipeline.types import Prompt, Rollout

if TYPE_CHECKING:
    from pipeline.rollout.collect import Renders
    from pipeline.run.session import Session


@dataclass
class _Flying:
    launched: Launched
    flight: Flight
    done: Future[None]


class RunAhead:
    """The flights under way, oldest first, and the thread that does them."""

    def __init__(self, stretch: int | None, held: Any = None) -> None:
        """`stretch`: tokens of a response between two hand-overs of weights; None: whole responses.

        `held`: the module that the engine reads weights from, where that is not the trainer's: then weights are handed
        over while a flight is under way, in a copy that waits for its end. Else a hand-over waits for it.
        """
        self.stretch, self.held = stretch, held
        self.flying: deque[_Flying] = deque()
        self._thread = ThreadPoolExecutor(1, "generation")
        self._last: Future[None] | None = None

    def oldest(self) -> list[Prompt] | None:
        """The prompts of the oldest flight; None where there is none."""
        return self.flying[0].launched.prompts if self.flying else None

    def launch(self, launched: Launched, flight: Flight, engine: Engine, renderer: Renders, seed: int) -> None:
        """Draw the flight, or its first stretch, as soon as everything before it is done."""
        done = self._do(lambda: fly(flight, engine, renderer, seed, self.stretch))
        self.flying.append(_Flying(launched, flight, done))

    def go_on(self, engine: Engine, renderer: Renders, seed: int) -> None:
        """A further stretch of every flight under way, where there are stretches."""
        if self.stretch is None:
            return
        for one in self.flying:
            flight = one.flight
            one.done = self._do(lambda flight=flight: fly(flight, engine, renderer, seed, self.stretch))  # type: ignore[misc]

    def land(self, engine: Engine, renderer: Renders, seed: int) -> list[list[Rollout]]:
        """What came of the oldest flight, by kind asked; what is open of it is drawn to its end."""
        one = self.flying.popleft()
        one.done.result()
        if self.stretch is not None:
            self._do(lambda: fly(one.flight, engine, renderer, seed, None)).result()
        return one.flight.drawn

    def settle(self) -> None:
        """Return when the thread has done all it was given. Raises: what a flight or a hand-over raised."""
        if self._last is not None:
            self._last.result()
        for one in self.flying:
            one.done.result()

    def publish(self, engine: Engine, version: int, model: Any) -> None:
        """The engine takes the weights of `model`. Flights launched before this are of older ones."""
        if self.held is None:
            self.settle()
            confirm(engine, version)
            return
        held, weights = self.held, {name: w.detach().clone() for name, w in model.state_dict().items()}

        def take() -> None:
            held.load_state_dict(weights)
            confirm(engine, version)

        self._do(take)

    def drawn(self, ranks: Ranks) -> list[Launched]:
        """All flights with what was drawn of them on every rank, for a checkpoint; every rank is to ask."""
        self.settle()
        for one in self.flying:
            one.launched.rollouts = _gathered(one, ranks)
        return [one.launched for one in self.flying]

    def restore(self, launched: Launched, flight: Flight, ranks: Ranks) -> None:
        """A flight of a checkpoint goes on; this rank has its share of it, whatever ranks there were."""
        places = share_of(ranks, launched.prompts).places
        for (_, samples, _), rollouts in zip(flight.asked, launched.rollouts, strict=True):
            flight.drawn.append([r for place in places for r in rollouts[place * samples : (place + 1) * samples]])
        done: Future[None] = Future()
        done.set_result(None)
        self.flying.append(_Flying(launched, flight, done))

    def forget(self) -> None:
        """Drop all flights: nothing is left to train on them."""
        self.settle()
        self.flying.clear()

    def close(self) -> None:
        """End the thread after what it is doing now."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _do(self, work: Callable[[], None]) -> Future[None]:
        before, self._last = self._last, self._thread.submit(_after(self._last, work))
        if before is not None and before.done():
            before.result()
        return self._last


def run_ahead(config: RunConfig, model: Any) -> RunAhead | None:
    """What generates ahead, where the recipe asks for it. Without stretches of responses, weights that a flight under
    way is not to see wait in a copy: `model` is copied once for the engine to read from, where that is needed."""
    how = config.rollout
    if how.max_staleness == 0:
        return None
    if how.in_flight == "interrupt" or how.max_staleness == 1:
        return RunAhead(how.interrupt_tokens)
    import copy

    return RunAhead(None, copy.deepcopy(model).requires_grad_(False))


def hand_over(session: Session, version: int) -> None:
    """The engine takes the policy's present weights. Raises: EngineError if it then reports others."""
    model = session.backend.whole_model()
    if session.runahead is not None:
        session.runahead.publish(session.engine, version, model)
    else:
        confirm(session.engine, version)


def confirm(engine: Engine, version: int) -> None:
    """The engine takes weights and reports their version. Raises: EngineError if it reports another."""
    engine.publish(version)
    if engine.version != version:
        raise EngineError(
            f"the engine reports weights of version {engine.version} after version {version} was published; restart "
            "the engine"
        )


def flight_of(launched: Launched, own: Sequence[Prompt], asked: Sequence[Asked]) -> Flight:
    """The flight of this rank's share of the prompts."""
    return Flight(tuple(own), tuple(asked), (launched.step, "ahead", launched.number))


def _after(before: Future[None] | None, work: Callable[[], None]) -> Callable[[], None]:
    """The work, unless what was to be done before it failed."""

    def run() -> None:
        if before is not None and before.done() and before.exception() is not None:
            raise EngineError("what was to be generated or published before this failed") from before.exception()
        with torch.no_grad():
            work()

    return run


def _gathered(one: _Flying, ranks: Ranks) -> list[list[Rollout]]:
    places = share_of(ranks, one.launched.prompts).places
    found = ranks.gather((places, one.flight.drawn))
    whole: list[list[Rollout]] = []
    for kind, (_, samples, _) in enumerate(one.flight.asked):
        by_place = {
            place: drawn[kind][i * samples : (i + 1) * samples]
            for theirs, drawn in found
            for i, place in enumerate(theirs)
        }
        whole.append([r for place in range(len(one.launched.prompts)) for r in by_place[place]])
    return whole
