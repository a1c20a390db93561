"""Servers: work goes where there is room, a lost one's is sampled again elsewhere, versions are confirmed."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.models.families import build
from tests.rollout.fake_server import FakeServer, Posted, pool_of
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_arguments import flags

REQUESTS = [Request((3, 4), tuple(range(100, 130))), Request((8,), tuple(range(7, 27)))]
NOWHERE = Path("/nowhere")
"""Of logs of servers that a run starts itself."""


def engine_of(*fakes, peers=None, **options):
    config = VllmConfig(urls=tuple(f.url for f in fakes), **{"request_timeout_s": 120, "concurrency": 4, **options})
    policy = EngineModel.of(build("qwen2", {}), (1, 5))
    engine = pool_of(policy, config, NOWHERE, peers, None if "transfer" in options else Posted)
    engine.publish(3)
    return engine


@pytest.fixture
def stack():
    with ExitStack() as all_of:
        yield all_of


def check_answers(engine):
    """Each response is the one of its own seed, from any server."""
    heard = []
    answers = engine.generate(REQUESTS, Sampling(9), heard.extend)
    ended = {(e.request, e.sample): e.token_ids for e in heard}
    assert ended == {(i, j): c.token_ids for i, some in enumerate(answers) for j, c in enumerate(some)}
    assert len(heard) == len(ended), "once each, also where a server was lost"
    for request, completions in zip(REQUESTS, answers, strict=True):
        assert [c.token_ids for c in completions] == [(s % 50, request.prompt_ids[-1]) for s in request.seeds]
        assert all(c.logprobs == tuple(-t / 10 for t in c.token_ids) for c in completions)


def test_an_episode_keeps_the_server_of_its_group_until_that_is_lost(stack):
    first, second = stack.enter_context(FakeServer()), stack.enter_context(FakeServer("dies", after=20))
    engine = engine_of(first, second, concurrency=16)  # no queue, of which the other server would take
    groups = [Request((3, i), tuple(range(8 * i, 8 * i + 8)), tuple(range(8 * i, 8 * i + 8))) for i in range(4)]
    engine.generate(groups, Sampling(9))
    of = {0: sorted(first.seeds), 1: sorted(second.seeds)}
    assert of == {0: [*groups[0].seeds, *groups[2].seeds], 1: [*groups[1].seeds, *groups[3].seeds]}
    later = [Request((3, i, j), (100 + j,), (j,)) for i, r in enumerate(groups) for j in reversed(r.keys)]
    answers = engine.generate(later, Sampling(9))
    assert [some[0].token_ids[0] for some in answers] == [r.seeds[0] % 50 for r in later]
    assert len(second.seeds) == 20, "it died while it owed answers"
    assert {s - 100 for s in second.seeds[16:]} < set(of[1])
    assert {s - 100 for s in first.seeds[16:]} >= set(of[0])


GENERATE, BRIEF = "/inference/v1/generate", {"request_timeout_s": 3600, "health_timeout_s": 10}


@pytest.mark.run
@pytest.mark.parametrize(
    ("behaviour", "after", "options", "words", "resampled"),
    [
        ("dies", 5, {}, "", True),
        ("fails", 5, {}, "not today", True),
        ("lies", 5, {}, "version lied", True),
        ("hangs", 5, BRIEF, f"{GENERATE}.*rollout.vllm.health_timeout_s=10", True),
        ("stalls", 5, BRIEF, f"{GENERATE}.*rollout.vllm.health_timeout_s=10", True),
        ("bare", 0, {}, "/collective_rpc.*status 404", False),
        ("another", 0, {}, "/collective_rpc.*b'OK'", False),
        ("stale", 0, {}, "version old", False),
    ],
)
def test_a_bad_server_is_dropped_and_what_it_owed_is_sampled_elsewhere(
    stack, behaviour, after, options, words, resampled
):
    bad = stack.enter_context(FakeServer(behaviour, after))
    good = stack.enter_context(FakeServer(behind=bad if resampled else None))
    engine = engine_of(bad, good, **options)
    assert resampled or [s.url for s in engine.servers] == [good.url], "it never had the weights"
    check_answers(engine)
    counts = engine.counts()
    assert (counts["servers/alive"], counts["servers/lost"]) == (1.0, 1.0)
    assert resampled <= counts["servers/resampled"] <= 4 * resampled
    assert re.search(f"{re.escape(bad.url)}.*{words}", engine.lost[0])
    check_answers(engine)
    assert engine.counts() == counts
    if after == 0:
        engine.publish(4)
        assert len(engine.lost) == 1 + (behaviour == "bare"), "that one says a version: it may have been started again"


def test_threads_may_ask_at_once_while_a_server_is_lost(stack):
    bad, good = stack.enter_context(FakeServer("dies", after=20)), stack.enter_context(FakeServer())
    engine = engine_of(bad, good)
    assert engine.answers_threads
    prompt = REQUESTS[0].prompt_ids
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(engine.generate, [Request(prompt, (seed,), (seed,))], Sampling(9)) for seed in range(100)]
        answers = [future.result() for future in asked]
    assert [a[0][0].token_ids for a in answers] == [(seed % 50, prompt[-1]) for seed in range(100)]
    counts = engine.counts()
    assert (counts["servers/alive"], counts["servers/lost"]) == (1.0, 1.0)
    assert 1 <= counts["servers/resampled"] <= 16
    assert len(engine.lost) == 1


def test_a_server_that_was_started_again_is_asked_no_more_before_it_has_the_weights(stack):
    again, good = stack.enter_context(FakeServer()), stack.enter_context(FakeServer())
    engine, with_base = engine_of(again, good), list[bool]()
    published = engine.setup.policy.published
    policy = SimpleNamespace(published=lambda base: with_base.append(base) or published(base))
    engine.setup = replace(engine.setup, policy=policy)
    again.start_again()
    check_answers(engine)
    assert engine.counts()["servers/lost"] == 1
    assert "version default" in engine.lost[0]
    assert "version 3@" in engine.lost[0]
    asked, sent = again.num_asked, again.num_updates
    check_answers(engine)
    assert again.num_asked == asked
    engine.publish(4)
    assert (again.num_updates, again.version) == (sent + 1, good.version)
    check_answers(engine)
    assert engine.counts()["servers/alive"] == 2
    assert engine.counts()["servers/lost"] == 1
    engine.publish(5)
    assert with_base == [True, False], "it has lost the base of adapters too"


def test_another_runs_weights_of_the_same_number_are_not_ours(stack):
    fake = stack.enter_context(FakeServer())
    ours, theirs = engine_of(fake), engine_of(fake)
    check_answers(theirs)
    with pytest.raises(EngineError, match=r"rollout\.vllm\.urls"):
        ours.generate(REQUESTS, Sampling(9))


class Rank:
    """One of several threads that stand for ranks."""

    def __init__(self, rank, said, meeting):
        self.rank, self.size, self.said, self.meeting = rank, len(said), said, meeting

    def gather(self, value):
        self.said[self.rank] = value
        self.meeting.wait(60)
        found = list(self.said)
        self.meeting.wait(60)
        return found


def by_ranks(work, size=2):
    """What each rank's work returns or raises."""
    said, meeting = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, Rank(rank, said, meeting)) for rank in range(size)]
        return [f.exception() or f.result() for f in futures]


def test_ranks_ask_the_same_servers_and_the_first_sends_the_weights(stack):
    fakes = [stack.enter_context(FakeServer()) for _ in range(2)]

    def work(rank):
        engine = engine_of(*fakes, peers=rank)
        check_answers(engine)
        return engine

    assert [e.version for e in by_ranks(work)] == [3, 3]
    assert sum(f.num_asked for f in fakes) == 100
    assert [f.num_updates for f in fakes] == [1, 1]


def test_a_server_that_one_rank_lost_is_lost_to_all(stack):
    bad = stack.enter_context(FakeServer("fails", after=10))
    good = stack.enter_context(FakeServer(behind=bad))

    def work(rank):
        engine = engine_of(bad, good, peers=rank)
        if rank.rank == 1:
            check_answers(engine)
        alive = len(engine.servers)
        engine.publish(4)
        return alive, engine

    (before, first), (there, second) = by_ranks(work)
    assert (before, there) == (2, 1)
    assert first.counts() == second.counts()
    assert (first.counts()["servers/alive"], first.counts()["servers/lost"]) == (1, 1)
    assert first.counts()["servers/resampled"] >= 1
    assert first.lost == second.lost
    assert bad.num_updates == 1
    assert first.servers[0].url == second.servers[0].url == good.url


def test_where_no_server_takes_the_weights_all_ranks_say_so(stack):
    fake = stack.enter_context(FakeServer("stale"))
    for said in by_ranks(lambda rank: engine_of(fake, peers=rank)):
        assert isinstance(said, EngineError)
        assert fake.url in str(said)


@pytest.mark.run
def test_a_server_that_takes_long_and_is_healthy_has_its_time(stack):
    engine = engine_of(stack.enter_context(FakeServer("takes long", after=49)), health_timeout_s=10)
    check_answers(engine)
    assert engine.counts()["servers/lost"] == 0
    late = engine_of(stack.enter_context(FakeServer("hangs")), request_timeout_s=2)
    with pytest.raises(EngineError, match=r"rollout\.vllm\.request_timeout_s=2"):
        late.generate(REQUESTS, Sampling(9))


def test_the_last_servers_loss_ends_the_run_with_its_reason(stack):
    engine = engine_of(stack.enter_context(FakeServer("fails", after=5)))
    with pytest.raises(EngineError, match=r"(?s)rollout\.vllm\.urls.*status 500.*not today"):
        engine.generate(REQUESTS, Sampling(9))


def wrong(*asked):
    raise TypeError("a mistake in the client")


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [("refuses", EngineError, r"status 400.*not today"), ("well", TypeError, "a mistake in the client")],
)
def test_a_request_that_is_refused_and_a_client_that_is_wrong_are_nobodys_loss(stack, behaviour, error, words):
    engine = engine_of(*(stack.enter_context(FakeServer(behaviour)) for _ in range(2)))
    if behaviour == "well":
        for server in engine.servers:
            server.sample = wrong
    with pytest.raises(error, match=words):
        engine.generate(REQUESTS, Sampling(9))
    assert engine.counts()["servers/lost"] == 0


def test_a_server_that_does_not_come_for_weights_is_not_waited_for(stack):
    fake = stack.enter_context(FakeServer("fails"))
    with pytest.raises(EngineError, match="init_weight_transfer_engine: status 500"):
        engine_of(fake, transfer="gloo", request_timeout_s=3600)


def test_an_address_that_is_none_is_refused():
    policy = EngineModel.of(build("qwen2", {}), (1,))
    with pytest.raises(EngineError, match=r"rollout\.vllm\.urls: 'localhost:8000'"):
        pool_of(policy, VllmConfig(urls=("localhost:8000",)), NOWHERE)


def test_arguments_become_flags():
    given = {
        "max_num_seqs": 4,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "weight_transfer_config": {"a": 1},
    }
    assert flags(given) == [
        *("--max-num-seqs", "4", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--weight-transfer-config", '{"a": 1}'),
    ]
