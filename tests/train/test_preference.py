"""The update of preference losses: one denominator a step, whatever the micro-batches, padding and ranks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor

from tests.models.families import VOCAB, with_exact_norms
from tests.oracles.preferences import Side, divergence, mean_loss, wpo_weight
from tests.train.batches import OPTIMIZER, policy, recorded_step, without_tree
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import DataError, NonFiniteError
from verizero.pipeline.preferences.base import load_preference
from verizero.pipeline.train.preference import (
    PreferenceBatch,
    PreferenceRow,
    PreferenceSettings,
    mismatched,
    preference_update,
    side_logprobs,
)
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.torch_backend import TorchBackend

Packing = Literal["auto", "off"]
LOSSES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("dpo", "ipo", "kto", "orpo", "simpo", "robust", "hinge", "exo", "apo_zero", "apo_down")),
    *((name, {}) for name in ("apo_zero_unpaired", "sppo", "nca", "cpo", "bco", "aot", "discopop", "mpo")),
    ("dpo", {"ld_alpha": 0.3}),
    ("dpo", {"wpo": True}),
    ("orpo", {"wpo": True}),
    ("dpo", {"length_average": True}),
    ("dpo", {"f_divergence": "forward_kl"}),
    ("hinge", {"f_divergence": "js_divergence"}),
    ("robust", {"f_divergence": "alpha_divergence", "f_alpha": 0.3}),
]


def rows_of(num: int = 6, seed: int = 0, labels: bool = False) -> list[PreferenceRow]:
    rng = random.Random(seed)

    def text(most: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(2, VOCAB), k=rng.randint(1, most)))

    rows = [PreferenceRow(text(4), text(8), text(8)) for _ in range(num)]
    if not labels:
        return rows
    return [PreferenceRow(r.prompt_ids, r.chosen_ids if i % 3 else None, r.rejected_ids) for i, r in enumerate(rows)]


def settings(tokens: int = 4096, temperature: float = 1.0, tail_weight: float = 1.0) -> PreferenceSettings:
    return PreferenceSettings(0, temperature, tokens, tail_weight)


def backend_of(
    ranks: Ranks | None = None, drift: int = 0, dtype: torch.dtype = torch.float64, packing: Packing = "auto"
) -> TorchBackend:
    model = with_exact_norms(policy(drift, dtype))
    backend = TorchBackend(model, ranks or Ranks(), config=TrainConfig(packing=packing))
    backend.start(OPTIMIZER, 10)
    return backend


def batch_of(rows: list[PreferenceRow], temperature: float = 1.0, tail_weight: float = 1.0) -> PreferenceBatch:
    """With the log-probs of another policy as the reference's."""
    return _batch_of(tuple(rows), temperature, tail_weight)


@cache
def _batch_of(some: tuple[PreferenceRow, ...], temperature: float, tail_weight: float) -> PreferenceBatch:
    other, rows = backend_of(drift=9), list(some)
    shifted = mismatched(rows)
    at = settings(temperature=temperature, tail_weight=tail_weight)
    ref, shifted_ref = (side_logprobs(other, x, "policy", at) for x in (rows, shifted))
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


def updated(
    name: str, params: dict[str, Any], rows: list[PreferenceRow], tokens: int
) -> tuple[dict[str, float], list[Tensor]]:
    backend, loss = backend_of(), load_preference(name, params)
    tail = loss[0].tail_weight
    batch = batch_of(rows, tail_weight=tail)
    metrics = preference_update(backend, *loss, batch, settings(tokens, tail_weight=tail))
    return metrics, [p.detach().clone() for p in backend.model.parameters()]


def is_of_labels(name: str) -> bool:
    return load_preference(name)[0].from_labels


@pytest.mark.parametrize(("name", "params"), LOSSES)
def test_micro_batches_padding_and_order_change_nothing(name: str, params: dict[str, Any]) -> None:
    rows = rows_of(labels=is_of_labels(name))
    whole, weights = updated(name, params, rows, 10_000)
    for tokens in (1, 30):
        same(updated(name, params, rows, tokens), (whole, weights))
    if name != "kto":  # whose mismatched responses are those of the next row
        same(updated(name, params, rows[::-1], 30), (whole, weights))


def with_shared_prompts(rows: list[PreferenceRow]) -> list[PreferenceRow]:
    """The rows with long prompts; two rows have the same one."""
    rng = random.Random(3)
    prompts = [tuple(rng.choices(range(2, VOCAB), k=24)) for _ in rows]
    return [replace(row, prompt_ids=prompts[i // 2]) for i, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("name", "params", "dtype", "exact"),
    [*((*loss, torch.float64, 1e-12) for loss in LOSSES), ("dpo", {}, torch.float32, 1e-5)],
)
def test_prompts_are_computed_once_for_both_sides_and_change_nothing(
    name: str, params: dict[str, Any], dtype: torch.dtype, exact: float
) -> None:
    rows, loss = with_shared_prompts(rows_of(labels=is_of_labels(name))), load_preference(name, params)
    batch, at = batch_of(rows, tail_weight=loss[0].tail_weight), settings(90, tail_weight=loss[0].tail_weight)
    found, tokens = [], []
    for packing in get_args(Packing):
        backend = backend_of(dtype=dtype, packing=packing)
        backend.can_pack()  # its proof computes rows of its own
        gradients, seen = list[Tensor](), list[int]()
        backend.step = recorded_step(backend, gradients)  # type: ignore[method-assign]
        hook = lambda _, given, seen=seen: seen.append(given[0].numel())  # noqa: E731
        backend.model.get_input_embeddings().register_forward_pre_hook(hook)
        found.append((preference_update(backend, *loss, batch, at), gradients[0]))
        tokens.append(sum(seen))
    (ours, gradient), (wanted, other) = found
    assert tokens[0] < 0.75 * tokens[1]
    assert ours["tree/ratio"] > 1.5
    assert without_tree(ours) == pytest.approx(without_tree(wanted), rel=100 * exact, abs=exact)
    assert float((gradient - other).abs().max() / other.abs().max()) < exact


def same(one: tuple[dict[str, float], list[Tensor]], other: tuple[dict[str, float], list[Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-9)
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "params"), LOSSES)
def test_the_gradients_of_two_ranks_add_up_to_that_of_one(name: str, params: dict[str, Any]) -> None:
    loss = load_preference(name, params)
    rows = with_shared_prompts(rows_of(5, labels=is_of_labels(name)))
    at = settings(90, tail_weight=loss[0].tail_weight)
    batch = batch_of(rows, tail_weight=at.tail_weight)
    # what is summed over ranks before the update: log-probs of these
    shared = batch.rows if loss[0].sorts_pairs else batch.mismatched
    of_all = side_logprobs(backend_of(), shared, "policy", at).nan_to_num()
    grads = []
    for size in (1, 2):
        self_gradients.clear()
        for rank in range(size):
            own = torch.zeros_like(of_all)
            if size == 2:  # what the other rank finds
                own = of_all - side_logprobs(backend_of(Alone(rank, 2)), shared, "policy", at).nan_to_num()
            preference_update(backend_of(Alone(rank, size, (own,))), *loss, batch, at)
        grads.append([sum(g) for g in zip(*self_gradients, strict=True)])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


@cache
def policies() -> tuple[Any, Any]:
    """The policy before its update, and the reference."""
    return backend_of().model, backend_of(drift=9).model


@cache
def side(prompt: tuple[int, ...], response: tuple[int, ...], temperature: float) -> Side:
    """A response's log-probs by transformers' own forward over it alone."""
    each = []
    for model in policies():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        each.append((logits / temperature).log_softmax(-1))
    lp, ref = ([float(x[t, y]) for t, y in enumerate(response)] for x in each)
    return Side(lp, ref, wpo_weight(lp, each[0].exp().tolist()))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("name", "params"), LOSSES)
def test_loss_z_and_weight_are_those_of_the_double_on_the_models_token_logprobs(
    name: str, params: dict[str, Any], temperature: float
) -> None:
    rows = rows_of(labels=is_of_labels(name))
    z = divergence([side(r.prompt_ids, y, temperature) for r in mismatched(rows) for y in r.sides if y is not None])
    chosen = [side(r.prompt_ids, r.chosen_ids, temperature) for r in rows if r.chosen_ids is not None]
    rejected = [side(r.prompt_ids, r.rejected_ids, temperature) for r in rows if r.rejected_ids is not None]
    loss = load_preference(name, params)
    at = settings(40, temperature, loss[0].tail_weight)
    metrics = preference_update(backend_of(), *loss, batch_of(rows, temperature, at.tail_weight), at)
    assert metrics["loss"] == pytest.approx(mean_loss(name, chosen, rejected, z, params), rel=1e-6)
    assert "preference/clamped" not in metrics
    assert ("preference/weight" in metrics) == ("wpo" in params)
    if "wpo" in params:
        weights = [w.weight * r.weight for w, r in zip(chosen, rejected, strict=True)]
        assert metrics["preference/weight"] == pytest.approx(sum(weights) / len(rows), rel=1e-9)
    if name == "kto":
        assert metrics["preference/z"] == pytest.approx(z, rel=1e-6, abs=1e-9)
        assert "preference/accuracy" not in metrics
    if (name, params) == ("dpo", {}):
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


def test_responses_whose_reward_is_clamped_are_counted_over_all_micro_batches() -> None:
    batch = batch_of(rows_of())
    assert batch.ref is not None
    ref = batch.ref.clone()
    ref[1], ref[4, 1] = ref[1] + 300, ref[4, 1] + 300
    backend, loss = backend_of(), load_preference("dpo", {"f_divergence": "forward_kl"})
    metrics = preference_update(backend, *loss, PreferenceBatch(batch.rows, ref), settings(30))
    assert metrics["preference/clamped"] == 3


def test_the_weights_of_pairs_have_no_gradient() -> None:
    """With log-ratios where the loss is flat, only the weights could move the policy."""
    backend, batch = backend_of(), batch_of(rows_of())
    here = side_logprobs(backend, batch.rows, "policy", settings())
    ref = here - torch.tensor([1e6, 2e6], dtype=torch.float64)
    loss = load_preference("apo_down", {"wpo": True})
    metrics = preference_update(backend, *loss, PreferenceBatch(batch.rows, ref), settings())
    assert metrics["loss"] == pytest.approx(2 * metrics["preference/weight"], rel=1e-12)
    assert metrics["grad_norm"] == 0


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
