"""Which server answers which request: groups and episodes stay together, and no server is idle while responses wait."""

import heapq
import itertools
import random
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from tests.models.families import build
from tests.rollout.fake_server import FakeServer, Posted, pool_of
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.server_pool import IN_A_ROW, Deal, ResponseIndex

A, B, C = servers = ["a", "b", "c"]
"""A deal only tells servers apart."""


def all_of(requests: Sequence[Request]) -> list[ResponseIndex]:
    return [(i, j) for i, r in enumerate(requests) for j in range(len(r.seeds))]


def deal_of(requests: Sequence[Request], of: Sequence[str]) -> Deal:
    return Deal(all_of(requests), requests, of)


def worked(deal: Deal, threads: dict[str, int], seconds: dict[str, float]) -> dict[str, list[ResponseIndex]]:
    """Which server answers what, if each takes so long for a response by a clock that is only counted."""
    answered: dict[str, list[ResponseIndex]] = {server: [] for server in threads}
    order = itertools.count()
    free = [(0.0, next(order), server) for server, num in threads.items() for _ in range(num)]
    while free:
        now, _, server = heapq.heappop(free)
        if (index := deal.take(server)) is not None:
            answered[server].append(index)
            heapq.heappush(free, (now + seconds[server], next(order), server))
    assert deal.left() == []
    return answered


def num_split(answered: dict[str, list[ResponseIndex]]) -> int:
    """The number of groups that more than one server answered."""
    of: dict[int, set[str]] = {}
    for server, indices in answered.items():
        for i, _ in indices:
            of.setdefault(i, set()).add(server)
    return sum(len(some) > 1 for some in of.values())


def test_a_group_goes_to_one_server_and_the_quicker_server_gets_more_groups():
    requests = [Request((i,), tuple(range(8))) for i in range(24)]
    answered = worked(deal_of(requests, servers[:2]), {A: 4, B: 4}, {A: 0.002, B: 0.008})
    assert sorted(i for some in answered.values() for i in some) == all_of(requests)
    assert num_split(answered) <= 1, "the last one, which both work on"
    assert len(answered[A]) > 1.5 * len(answered[B]) > 0


def test_an_idle_server_helps_the_one_with_the_longest_queue():
    deal = deal_of([Request((1,), (10, 11, 12, 13)), Request((2,), (20, 21))], servers)
    assert [deal.take(server) for server in (A, B)] == [(0, 0), (1, 0)]
    assert deal.take(C) == (0, 3), "from the end"
    assert [deal.take(server) for server in (B, A, A)] == [(1, 1), (0, 1), (0, 2)]
    assert [deal.take(server) for server in servers] == [None] * 3


def test_after_a_stop_nobody_takes_more():
    deal = deal_of([Request((1,), (1, 2, 3))], [A, B])
    assert deal.take(A) == (0, 0)
    deal.stop()
    assert deal.take(A) is deal.take(B) is None


@pytest.mark.parametrize("num_servers", [2, 3])
def test_episodes_stay_and_groups_do_as_far_as_all_servers_have_episodes(tmp_path, num_servers):
    """Also with one request a call, as where episodes do not go in step."""
    rng, keys = random.Random(num_servers), range(60)
    with ExitStack() as stack:
        fakes = [stack.enter_context(FakeServer()) for _ in range(num_servers)]
        policy = EngineModel.of(build("qwen2", {}), (1, 5))
        engine = pool_of(policy, VllmConfig(urls=tuple(f.url for f in fakes)), tmp_path, channel=Posted)
        stack.callback(engine.close)
        engine.publish(1)

        def answered(calls):
            """Episode -> the server that answered its turn."""
            for fake in fakes:
                fake.seeds.clear()
            for call in calls:
                engine.generate([Request((3, key), (key,), (key,)) for key in call], Sampling(9))
            return {seed: number for number, fake in enumerate(fakes) for seed in fake.seeds}

        homes = {key: key // IN_A_ROW % num_servers for key in keys}
        assert answered([key] for key in rng.sample(keys, len(keys))) == homes
        together = answered([keys])
        assert together.keys() == homes.keys()
        assert sum(together[key] != homes[key] for key in keys) <= IN_A_ROW, "those of the longest queue"
