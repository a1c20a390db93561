"""Rows of episodes as tensors: written out one by one, with the records of their sampling, and against the engine."""

import dataclasses
import math
import random
from types import SimpleNamespace

import pytest
import torch

from tests.models.families import VOCAB
from tests.train.batches import backend_of, stale, with_rollouts
from tests.train.batches import groups_of as responses
from tests.train.episodes import END, context, episodes_of, rollout_of, wrapped
from tests.train.sampled import MAX, groups_of, model_of
from verizero.pipeline.data.pairs import PairingConfig, pairs_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.loop.rounds import logprob_gap
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.run.teachers import distill_rows
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import collate, replay_of, rows_of, turn_table
from verizero.pipeline.types import Episode, KeptTokens, Turn


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["episodes", "single responses"])
def test_a_batch_is_its_rows_written_out_one_by_one(kind, seed):
    """The padding is the token that ends turns, which is observed and sampled too: lengths are never read from ids."""
    groups = episodes_of(num=5, seed=seed, versions=(1, 3))
    if kind == "single responses":
        groups = wrapped(stale(responses(5, 4, seed), 1, 1, version=1))
    batch = collate(groups, END)
    members = [(g, m) for g, x in enumerate(groups) for m in x.members if m.reward is not None]
    width = batch.input_ids.shape[1]
    assert (batch.episode_ids is None) == (batch.turn_ids is None) == (kind == "single responses")
    assert batch.input_ids.dtype == batch.attention_mask.dtype == torch.int64
    assert batch.response_mask.dtype == torch.float32
    row = 0
    for e, (g, m) in enumerate(members):
        number = 0
        for turns in m.rollout.episode.rows:
            ids, mask, logprobs, numbers, versions = [], [], [], [], []
            for t in turns:
                observed, sampled = len(t.observed), len(t.sampled)
                ids += [*t.observed, *t.sampled]
                mask += [0.0] * observed + [float(t.trains)] * sampled
                logprobs += [0.0] * observed + [x * t.trains for x in t.logprobs]
                numbers += [-1] * observed + [number if t.trains else -1] * sampled
                versions += [t.policy_version] * t.trains
                number += t.trains
            rest = width - len(ids)
            assert batch.input_ids[row].tolist() == ids + [END] * rest
            assert batch.attention_mask[row].tolist() == [1] * len(ids) + [0] * rest
            assert batch.response_mask[row].tolist() == mask + [0.0] * rest
            assert torch.equal(batch.rollout_logprobs[row], torch.tensor(logprobs + [0.0] * rest, dtype=torch.float32))
            assert int(batch.extras["policy_version"][row]) == min(versions)
            assert int(batch.group_ids[row]) == g
            assert float(batch.rewards[row]) == m.reward
            if kind == "episodes":
                assert batch.turn_ids[row].tolist() == numbers + [-1] * rest
                assert int(batch.episode_ids[row]) == e
            else:
                assert bool(batch.truncated[row]) == (m.rollout.finish_reason == "length")
            row += 1
    assert row == len(batch.rewards)
    assert width == int(batch.attention_mask.sum(1).max())


def test_turns_have_their_rewards():
    groups = episodes_of(num=2)
    rewards = turn_table(groups)
    members = [m.rollout.turns for x in groups for m in x.members if m.reward is not None]
    for e, turns in enumerate(members):
        own = [math.nan if t.reward is None else t.reward for t in turns]
        wanted = torch.tensor(own + [math.nan] * (rewards.shape[1] - len(own)), dtype=torch.float64)
        torch.testing.assert_close(rewards[e], wanted, equal_nan=True)


def experts_of(routing, start, stop):
    size = routing.layers * routing.top_k * 2
    return dataclasses.replace(routing, experts=routing.experts[start * size : stop * size])


def select_answers(kept, start, stop):
    first, last = sum(kept.sizes[:start]), sum(kept.sizes[:stop])
    return KeptTokens(kept.sizes[start:stop], kept.ids[4 * first : 4 * last])


def taken_apart(rollout, a, b, *, forked):
    """The response as an episode: its tokens a to b were observed, those before and after sampled, records as such.

    With `forked` the last turn is alone in a second row, which shares the first turn.
    """
    n, r = len(rollout.prompt_ids), rollout

    def turn(observed, start, stop):
        routing = None
        if r.routing is not None:
            before = 0 if start == 0 else n + a - 1
            routing = experts_of(r.routing, before, n + stop - 1)
        kept = None if r.kept is None else select_answers(r.kept, start, stop)
        return Turn(
            observed, r.response_ids[start:stop], r.logprobs[start:stop], "stop", r.policy_version, kept, routing
        )

    first = turn(r.prompt_ids, 0, a)
    second = turn(r.response_ids[a:b], b, len(r.response_ids))
    if not forked:
        return rollout_of(r.prompt_id, r.sample, Episode(((first, second),), ()))
    return rollout_of(r.prompt_id, r.sample, Episode(((first,), (context(first), second)), ()))


def apart(groups, seed):
    """The groups with every response of four tokens and more taken apart, half of them with a fork."""
    draw = random.Random(seed)

    def cut(rollout):
        if len(rollout.response_ids) < 4:
            return rollout
        a = draw.randint(1, len(rollout.response_ids) - 3)
        b = draw.randint(a + 1, len(rollout.response_ids) - 1)
        return taken_apart(rollout, a, b, forked=draw.random() < 0.5)

    return with_rollouts(groups, cut)


@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe"])
def test_with_their_records_tokens_have_the_engines_logprobs_around_holes(name):
    sampling = Sampling(MAX, 0.8, 0.8, 6, max_kept=VOCAB, keep_routing="moe" in name)
    model = model_of(name)
    groups = apart(groups_of(model, sampling), 0)
    batch = collate(groups, 0)
    assert int(batch.turn_ids.max()) == 1
    backend = Backend(model)
    rows = list(range(len(batch.rewards)))
    for chosen in (rows, rows[::-1][:5], rows[3:4]):
        micro = rows_of(batch, chosen)
        where = micro.response_mask > 0
        with torch.no_grad():
            ours, _ = backend.logprobs(micro.input_ids, where, 0.8, replay=replay_of(micro))
        assert float((ours - micro.rollout_logprobs).abs()[where].max()) < 1e-5
    gap = logprob_gap(backend, [m.rollout for g in groups for m in g.members], 0.8)
    assert gap.largest < 1e-5
    assert gap.num_tokens == sum(m.rollout.num_sampled for g in groups for m in g.members)


def test_parity_reads_every_sampled_token_of_every_row():
    groups = episodes_of()
    backend = backend_of()
    rollouts = [m.rollout for g in groups for m in g.members]
    gap = logprob_gap(backend, rollouts, 1.0)
    gaps = []
    for rollout in rollouts:
        for turns in rollout.episode.rows:
            ids = [i for t in turns for i in (*t.observed, *t.sampled)]
            logprobs = backend.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1).detach()
            place = 0
            for t in turns:
                place += len(t.observed)
                for token, engine in zip(t.sampled, t.logprobs, strict=True):
                    if t.trains:
                        gaps.append(abs(float(logprobs[place - 1, token]) - engine))
                    place += 1
    assert gap.num_tokens == len(gaps)
    assert gap.mean == pytest.approx(sum(gaps) / len(gaps), rel=1e-9)
    assert gap.largest == pytest.approx(max(gaps), rel=1e-9)


def test_pairs_of_episodes_are_refused():
    with pytest.raises(DataError, match=r"a pair of responses .* is an episode of \d turns"):
        pairs_of(episodes_of()[0], PairingConfig(), random.Random(0))


def test_distillation_of_episodes_is_refused():
    own = SimpleNamespace(is_policy=False, feedback=None)
    teachers = {"teachers": {}, "all_teachers": {"teacher": own}, "has_own_teacher": False}
    section = SimpleNamespace(**teachers, stale_weights=None)
    renderer = SimpleNamespace(prompt_ids=None, new_prompt_ids=None)  # what a teacher's own prompt would need
    run = SimpleNamespace(data=SimpleNamespace(renderer=renderer))
    with pytest.raises(DataError, match="distillation reads single responses, and response 0 to 'p0' is an episode"):
        distill_rows(run, section, episodes_of(), None, 0)
    rows, _ = distill_rows(run, section, groups_of(model_of("qwen2"), Sampling(MAX)), None, 0)
    assert len(rows) == 10
