"""The update of preference losses: one denominator a step, whatever the micro-batches, padding and ranks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.errors import DataError, NonFiniteError
from pipeline.preferences.base import load_preference
from pipeline.train.preference import (
    PreferenceBatch,
    PreferenceRow,
    PreferenceSettings,
    mismatched,
    preference_update,
    side_logprobs,
)
from pipeline.train.ranks import Ranks
from pipeline.train.torch_backend import TorchBackend
from tests.models.families import VOCAB
from tests.oracles.preferences import Side, divergence, mean_loss
from tests.train.batches import OPTIMIZER, policy

LOSSES = ["dpo", "ipo", "kto", "orpo", "simpo"]


def rows_of(num: int = 6, seed: int = 0, labels: bool = False) -> list[PreferenceRow]:
    rng = random.Random(seed)

    def text(most: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(2, VOCAB), k=rng.randint(1, most)))

    rows = [PreferenceRow(text(4), text(8), text(8)) for _ in range(num)]
    if not labels:
        return rows
    return [PreferenceRow(r.prompt_ids, r.chosen_ids if i % 3 else None, r.rejected_ids) for i, r in enumerate(rows)]


def settings(tokens: int = 4096) -> PreferenceSettings:
    return PreferenceSettings(pad_id=0, temperature=1.0, micro_batch_tokens=tokens)


def backend_of(ranks: Ranks | None = None, drift: int = 0) -> TorchBackend:
    backend = TorchBackend(policy(drift), ranks or Ranks())
    backend.start(OPTIMIZER, 10)
    return backend


def batch_of(rows: list[PreferenceRow]) -> PreferenceBatch:
    """With the log-probs of another policy as the reference's."""
    other = backend_of(drift=9)
    shifted = mismatched(rows)
    ref, shifted_ref = (side_logprobs(other, x, "policy", settings()) for x in (rows, shifted))
    return PreferenceBatch(rows, ref, shifted, shifted_ref)


@dataclass(frozen=True)
class Alone(Ranks):
    """A rank of several in one process: what the others would add comes from `others`."""

    others: tuple[Tensor, ...] = ()

    def all_reduce(self, values: Tensor) -> Tensor:
        for other in self.others:
            if other.shape == values.shape:
                return values + other
        return values

    def sum_gradients(self, parameters: Any) -> None:
        self_gradients.append([p.grad.clone() for p in parameters])


self_gradients: list[list[Tensor]] = []


def updated(name: str, rows: list[PreferenceRow], tokens: int) -> tuple[dict[str, float], list[Tensor]]:
    backend = backend_of()
    metrics = preference_update(backend, *load_preference(name), batch_of(rows), settings(tokens))
    return metrics, [p.detach().clone() for p in backend.model.parameters()]


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_and_padding_change_nothing(name: str) -> None:
    rows = rows_of(labels=name == "kto")
    whole, weights = updated(name, rows, 10_000)
    for tokens in (1, 30, 60):
        cut, others = updated(name, rows, tokens)
        assert cut == pytest.approx(whole, rel=1e-9)
        for a, b in zip(weights, others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["dpo", "orpo", "kto"])
def test_the_gradients_of_two_ranks_add_up_to_that_of_one(name: str) -> None:
    rows = rows_of(5, labels=name == "kto")
    batch = batch_of(rows)
    z_of_all = side_logprobs(backend_of(), batch.mismatched, "policy", settings()).nan_to_num()
    grads = []
    for size in (1, 2):
        self_gradients.clear()
        for rank in range(size):
            own = torch.zeros_like(z_of_all)
            if size == 2:  # what the other rank finds of the mismatched responses
                own = z_of_all - _own(rank, batch)
            backend = backend_of(Alone(rank, size, (own,)))
            preference_update(backend, *load_preference(name), batch, settings(30))
        grads.append([sum(g) for g in zip(*self_gradients, strict=True)])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def _own(rank: int, batch: PreferenceBatch) -> Tensor:
    return side_logprobs(backend_of(Alone(rank, 2)), batch.mismatched, "policy", settings(30)).nan_to_num()


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_z_are_those_of_the_double_on_the_models_token_logprobs(name: str) -> None:
    rows = rows_of(labels=name == "kto")
    backend, other = backend_of(), backend_of(drift=9)

    def side(prompt: tuple[int, ...], response: tuple[int, ...]) -> Side:
        found = []
        for model in (backend.model, other.model):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
            found.append([float(logits[len(prompt) - 1 + t, y]) for t, y in enumerate(response)])
        return Side(*found)

    z = divergence([side(r.prompt_ids, y) for r in mismatched(rows) for y in r.sides if y is not None])
    chosen = [side(r.prompt_ids, r.chosen_ids) for r in rows if r.chosen_ids is not None]
    rejected = [side(r.prompt_ids, r.rejected_ids) for r in rows if r.rejected_ids is not None]
    metrics = preference_update(backend, *load_preference(name), batch_of(rows), settings(40))
    assert metrics["loss"] == pytest.approx(mean_loss(name, chosen, rejected, z, {}), rel=1e-6)
    if name == "kto":
        assert metrics["preference/z"] == pytest.approx(z, rel=1e-6, abs=1e-9)
        assert "preference/accuracy" not in metrics
    if name == "dpo":
        wins = [w.h > r.h for w, r in zip(chosen, rejected, strict=True)]
        assert metrics["preference/accuracy"] == sum(wins) / len(wins)
        gap = sum(w.h - r.h for w, r in zip(chosen, rejected, strict=True)) / len(rows)
        assert metrics["preference/margin"] == pytest.approx(0.1 * gap, rel=1e-6)


def test_an_update_moves_the_margin_up() -> None:
    backend, batch = backend_of(), batch_of(rows_of())
    margins = [
        preference_update(backend, *load_preference("dpo"), batch, settings())["preference/margin"] for _ in range(5)
    ]
    assert margins == sorted(margins)
    assert margins[-1] > margins[0] + 1e-3


def test_a_loss_that_is_not_finite_is_refused_and_the_weights_stay() -> None:
    backend, batch = backend_of(), batch_of(rows_of())
    before = [p.detach().clone() for p in backend.model.parameters()]
    ref = batch.ref.clone()  # type: ignore[union-attr]
    ref[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="learning rate"):
        preference_update(backend, *load_preference("ipo"), PreferenceBatch(batch.rows, ref), settings())
    assert all(p.grad is None for p in backend.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, backend.model.parameters(), strict=True))


def test_each_prompt_meets_the_responses_of_another_prompt() -> None:
    a, b, c = (PreferenceRow((x,), (x, 1), (x, 2)) for x in (3, 4, 5))
    found = mismatched([a, a, b, a, c])
    assert [r.prompt_ids for r in found] == [(3,), (3,), (4,), (3,), (5,)]
    assert [r.chosen_ids for r in found] == [(4, 1), (4, 1), (3, 1), (5, 1), (3, 1)]


def test_responses_to_one_prompt_alone_have_no_others() -> None:
    row = PreferenceRow((3,), (4,), None)
    with pytest.raises(DataError, match="2 responses all answer one prompt"):
        mismatched([row, row])
