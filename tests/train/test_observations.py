"""Observed tokens in the loss: against a slow double, under any cut, once each, and absent unless asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import VOCAB
from tests.oracles.observations import answers, observation_loss
from tests.train.batches import backend_of, gradient_of, groups_of, parts_of, settings_of
from tests.train.episodes import context, episodes_of, rollout_of
from tests.train.sampled import MAX, model_of
from tests.train.sampled import groups_of as sampled_groups
from tests.train.test_episode_rows import apart
from tests.train.test_episodes import cut_groups, solved
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rows import observed_spans, trained_rows
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import collate, idle_micro_batch, micros_of
from verizero.pipeline.train.replay import replay_at
from verizero.pipeline.train.step import update
from verizero.pipeline.types import Episode, Group, Turn

COEF = 0.7
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"kl_coef": 0.1, "num_minibatches": 1}),
    "gspo": ("gspo", {}),
    "overlong": ("dapo", {"overlong_filter": True, "entropy_coef": 0.1}),
    "turns": ("dr_grpo", {"credit": "turns"}),
}


def rewritten(groups: list[Group]) -> list[Group]:
    """The groups with some tokens of each second row's first prompt new, as after a template that writes it again."""

    def marked(row: tuple[Turn, ...], number: int) -> tuple[Turn, ...]:
        new = 1 + len(row[0].observed) // 2
        return (dataclasses.replace(row[0], num_new=new), *row[1:]) if number and row[0].trains else row

    def changed(member: Any) -> Any:
        episode = member.rollout.episode
        rows = tuple(marked(row, number) for number, row in enumerate(episode.rows))
        rollout = dataclasses.replace(member.rollout, episode=dataclasses.replace(episode, rows=rows))
        return dataclasses.replace(member, rollout=rollout)

    return [dataclasses.replace(g, members=tuple(changed(m) for m in g.members)) for g in groups]


@pytest.mark.parametrize("name", PARTS)
def test_loss_and_gradient_are_those_of_rl_and_of_the_slow_double(name: str) -> None:
    """All other numbers, lengths, ratios, KL and entropy among them, are those of an update without the term."""
    groups, parts = rewritten(cut_groups()), parts_of(PARTS[name][0], **PARTS[name][1])
    theirs = backend_of()

    def logprob(ids: tuple[int, ...]) -> Tensor:
        logits = theirs.model(input_ids=torch.tensor([ids[:-1]])).logits[0, -1] / 0.8
        return logits.log_softmax(-1)[ids[-1]]

    members = [m.rollout for g in groups for m in g.members if m.reward is not None]
    if name == "overlong":
        members = [r for r in members if r.episode is None or r.episode.ending != "tokens"]
    shown = [x for r in members if r.episode is not None for x in answers(r.episode.rows)]
    assert any(row for _, row in shown)
    extra = observation_loss(COEF, shown, logprob)
    theirs.backward(extra)
    metrics, gradient = solved(parts, groups, observation_coef=COEF)
    plain, without = solved(parts, groups)
    assert metrics.pop("loss/observation") == pytest.approx(extra.item(), rel=1e-10)
    assert metrics.pop("observation/tokens") == len(shown)
    assert metrics.pop("loss/total") == pytest.approx(plain.pop("loss/total") + extra.item(), rel=1e-10)
    assert metrics == pytest.approx(plain, rel=1e-12, abs=1e-12)
    # Rotations of positions are computed in float32, and for beginnings of rows in other vectors than for rows.
    near = 16 * torch.finfo(torch.float32).eps * float(gradient.abs().max())
    torch.testing.assert_close(gradient, without + gradient_of(theirs), rtol=0, atol=near)
    assert float(gradient_of(theirs).abs().max()) > 1e-3


def test_a_token_counts_once_and_no_prompt_does() -> None:
    first = Turn((7, 8), (3, 1), (-0.1, -0.1), "stop", 3)
    second = Turn((4, 5, 6), (9, 1), (-0.1, -0.1), "stop", 3)
    again = Turn((4, 5, 7), (9, 1), (-0.1, -0.1), "stop", 3)  # a branch: the same beginning of another answer
    written = Turn((7, 8, 3, 4, 5, 6, 2, 2), (9, 1), (-0.1, -0.1), "stop", 3, num_new=2)
    other = Turn((2, 2), (9, 1), (-0.1, -0.1), "stop", 3)  # an agent's other conversation
    rows = ((first, second), (context(first), again), (written,), (other,))
    episode = Episode(rows, ())
    assert observed_spans(trained_rows(rollout_of("p", 0, episode))) == [[(4, 7)], [(6, 7)], [(6, 8)], []]
    places = [(row, len(ids) - 1) for ids, row in answers(rows)]
    assert places == [(0, 4), (0, 5), (0, 6), (1, 6), (2, 6), (2, 7)]


def test_random_episodes_have_the_places_of_the_slow_double() -> None:
    for seed in range(20):
        for group in rewritten(episodes_of(seed=seed)):
            for member in group.members:
                episode = member.rollout.episode
                assert episode is not None
                spans = observed_spans(trained_rows(member.rollout))
                places = [(n, t) for n, own in enumerate(spans) for begin, end in own for t in range(begin, end)]
                assert places == [(row, len(ids) - 1) for ids, row in answers(episode.rows)]


def test_single_responses_have_nothing_observed() -> None:
    parts = parts_of("grpo")
    assert solved(parts, groups_of(), observation_coef=COEF)[0].keys() == solved(parts, groups_of())[0].keys()
    assert observed_spans(trained_rows(groups_of()[0].members[0].rollout)) == [[]]


def test_without_a_coefficient_no_observed_token_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, groups = parts_of("grpo"), episodes_of()
    sampled = collate(groups, 0, observations=True)
    num, more = int(sampled.response_mask.sum()), int(sampled.extras["observation_mask"].sum())
    for coef, wanted in ((0.0, num), (COEF, num + more)):
        backend, trained = backend_of(), []
        compute = backend.logprobs

        def watched(
            ids: Any, where: Tensor, *rest: Any, compute: Any = compute, seen: Any = trained, **own: Any
        ) -> Any:
            seen.append(int(where.sum()) if torch.is_grad_enabled() else 0)
            return compute(ids, where, *rest, **own)

        monkeypatch.setattr(backend, "logprobs", watched)
        metrics = update(backend, parts, groups, settings_of(parts, observation_coef=coef))
        assert sum(trained) == wanted
        assert ("loss/observation" in metrics) == (coef > 0)
    assert "observation_mask" not in collate(groups, 0).extras


def test_idle_micro_batches_train_no_observation() -> None:
    batch = collate(episodes_of(), 0, observations=True)
    assert float(batch.extras["observation_mask"].sum()) > 0
    assert float((batch.extras["observation_mask"] * batch.response_mask).sum()) == 0
    assert float(idle_micro_batch(batch).extras["observation_mask"].sum()) == 0
    micros = micros_of(batch, [0, 1, 2], 10_000)
    assert [float(m.extras["observation_mask"].sum()) for _, m, _ in micros] == [
        float(batch.extras["observation_mask"][:3].sum())
    ]


@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe"])
def test_records_of_sampling_stay_those_of_sampled_tokens(name: str) -> None:
    """Sets cut off by top-p are of sampled tokens: an observed one, not in a set, has the whole vocabulary."""
    model = model_of(name)
    sampling = Sampling(MAX, 0.8, 0.8, 6, max_kept=VOCAB, keep_routing="moe" in name)
    batch, backend = collate(apart(sampled_groups(model, sampling), 0), 0, observations=True), Backend(model)
    trains, observed = batch.response_mask > 0, batch.extras["observation_mask"] > 0
    assert bool(observed.any())

    def at(where: Tensor) -> Tensor:
        with torch.no_grad():
            return backend.logprobs(batch.input_ids, where, 0.8, replay=replay_at(batch.records, where))[0]

    both, alone = at(trains | observed), at(observed)
    torch.testing.assert_close(both[trains], at(trains)[trains], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(both[observed], alone[observed], rtol=1e-6, atol=1e-6)
    assert bool(both[observed].isfinite().all())
