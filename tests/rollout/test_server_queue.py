"""Which server answers which request: groups and episodes stay together, and no server is idle while one is full."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from verizero.pipeline.rollout.engine import Request
from verizero.pipeline.rollout.server_queue import LEAD, Deal, Homes, ResponseIndex

A, B, C = servers = ["a", "b", "c"]
"""A deal only tells servers apart."""


def all_of(requests: Sequence[Request]) -> list[ResponseIndex]:
    return [(i, j) for i, r in enumerate(requests) for j in range(len(r.seeds))]


def deal_of(requests: Sequence[Request], of: Sequence[str], num_threads: int, homes: Homes | None = None) -> Deal:
    return Deal(all_of(requests), requests, of, homes or Homes(), num_threads)  # type: ignore[arg-type]


class Waits(Exception):
    """A thread would wait for others now."""


def worked(deal: Deal, threads: dict[str, int], seconds: dict[str, float]) -> dict[str, list[ResponseIndex]]:
    """Which server answers what, if each takes so long for a response by a clock that is only counted."""

    def waits() -> None:
        raise Waits

    deal._changed.wait = waits  # type: ignore[method-assign, assignment]
    answered: dict[str, list[ResponseIndex]] = {server: [] for server in threads}
    idle: list[Any] = [server for server, num in threads.items() for _ in range(num)]
    busy: list[tuple[float, int, Any, ResponseIndex]] = []
    now, order = 0.0, itertools.count()
    while True:
        for server in list(idle):
            with suppress(Waits):
                index = deal.take(server)
                idle.remove(server)
                if index is not None:
                    heapq.heappush(busy, (now + seconds[server], next(order), server, index))
        if not busy:
            break
        now, _, server, index = heapq.heappop(busy)
        answered[server].append(index)
        deal.end(server)
        idle.append(server)
    assert deal.left() == []
    return answered


def num_split(answered: dict[str, list[ResponseIndex]]) -> int:
    """The number of groups that more than one server answered."""
    of: dict[int, set[str]] = {}
    for server, indices in answered.items():
        for i, _ in indices:
            of.setdefault(i, set()).add(server)
    return sum(len(some) > 1 for some in of.values())


def test_a_group_goes_to_one_server_and_the_quicker_server_gets_more_groups() -> None:
    requests = [Request((i,), tuple(range(8))) for i in range(24)]
    answered = worked(deal_of(requests, servers[:2], 4), {A: 4, B: 4}, {A: 0.002, B: 0.008})
    assert sorted(i for some in answered.values() for i in some) == all_of(requests)
    assert num_split(answered) <= 1, "the last one, which both work on"
    assert len(answered[A]) > 1.5 * len(answered[B]) > 0


def test_an_idle_server_helps_a_full_one_and_no_other() -> None:
    requests = [Request((1,), (10, 11, 12, 13))]
    deal = deal_of(requests, [A, B], 2)
    assert deal.take(A) == (0, 0)  # type: ignore[arg-type]
    waits = threading.Thread(target=lambda: taken.append(deal.take(B)))  # type: ignore[arg-type]
    taken: list[ResponseIndex | None] = []
    waits.start()
    waits.join(0.1)
    assert waits.is_alive(), "A has a thread that will take the next one"
    assert deal.take(A) == (0, 1)  # type: ignore[arg-type]
    waits.join(PATIENCE_S)
    assert taken == [(0, 3)], "from the end"
    deal.end(A)  # type: ignore[arg-type]
    assert deal.take(A) == (0, 2)  # type: ignore[arg-type]
    assert deal.take(B) is None  # type: ignore[arg-type]


def test_what_a_lost_server_owes_goes_to_the_others() -> None:
    requests = [Request((1,), (10, 11, 12)), Request((2,), (20, 21))]
    deal = deal_of(requests, [A, B], 1)
    first = deal.take(A)  # type: ignore[arg-type]
    assert first == (0, 0)
    deal.lose(A, first)  # type: ignore[arg-type]
    assert deal.take(A) is None  # type: ignore[arg-type]
    taken = []
    while (index := deal.take(B)) is not None:  # type: ignore[arg-type]
        taken.append(index)
        deal.end(B)  # type: ignore[arg-type]
    assert sorted(taken) == all_of(requests)


def test_after_a_stop_nobody_takes_more_and_nobody_waits() -> None:
    deal = deal_of([Request((1,), (1, 2, 3))], [A, B], 2)
    assert deal.take(A) is not None  # type: ignore[arg-type]
    waits = threading.Thread(target=lambda: deal.take(B))  # type: ignore[arg-type]
    waits.start()
    deal.stop()
    waits.join(PATIENCE_S)
    assert not waits.is_alive()
    assert deal.take(A) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [4, 8, 30])
@pytest.mark.parametrize("num_servers", [2, 3])
def test_episodes_stay_and_groups_do_as_far_as_all_servers_have_episodes(size: int, num_servers: int) -> None:
    of, homes, rng = servers[:num_servers], Homes(), random.Random(size)
    groups = 60 // size
    keys = [(g, g * size + j) for g in range(groups) for j in range(size)]
    first = {key: homes.of(key, (g,), of) for g, key in keys}  # type: ignore[arg-type]
    counts = Counter(first.values())
    assert max(counts.values()) - min(counts.values()) <= LEAD
    if size <= LEAD:
        assert all(len({first[key] for g, key in keys if g == group}) == 1 for group in range(groups))
    for turn in range(3):  # each with a history of its own, in any order
        for _, key in rng.sample(keys, len(keys)):
            assert homes.of(key, (turn, key), of) == first[key]  # type: ignore[arg-type]
    lost = of[0]
    for _, key in keys:
        assert homes.of(key, (9, key), of[1:]) != lost  # type: ignore[arg-type]
        if first[key] != lost:
            assert homes.of(key, (9, key), of[1:]) == first[key]  # type: ignore[arg-type]


def test_an_episode_whose_turn_was_sampled_elsewhere_goes_on_there() -> None:
    homes = Homes()
    keyed = [Request((1, i), (i,), (i,)) for i in range(4)]
    for i in range(4):
        homes.move(i, A)  # type: ignore[arg-type]
    answered = worked(deal_of(keyed, [A, B], 1, homes), {A: 1, B: 1}, {A: 0.1, B: 0.001})
    assert answered[B]
    again = worked(deal_of(keyed, [A, B], 4, homes), {A: 4, B: 4}, {A: 0.001, B: 0.001})
    assert {s: sorted(some) for s, some in again.items()} == {s: sorted(some) for s, some in answered.items()}
