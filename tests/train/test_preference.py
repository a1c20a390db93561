"""The update of preference losses: one denominator a step, whatever the micro-batches, padding and ranks."""

import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.models.families import VOCAB, with_exact_norms
from tests.oracles.preferences import Side, divergence, mean_loss
from tests.train.batches import OPTIMIZER, policy
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import DataError
from verizero.pipeline.preferences.base import load_preference
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.preference import (
    PreferenceBatch,
    PreferenceRow,
    PreferenceSettings,
    mismatched,
    preference_update,
    side_logprobs,
)

LOSSES = [
    *((name, {}) for name in ("dpo", "ipo", "kto", "orpo", "simpo", "robust", "hinge", "exo", "apo_zero", "apo_down")),
    *((name, {}) for name in ("apo_zero_unpaired", "sppo", "nca", "cpo", "bco", "discopop")),
    ("dpo", {"length_average": True}),
]


def rows_of(num=6, seed=0, labels=False):
    rng = random.Random(seed)

    def text(most):
        return tuple(rng.choices(range(2, VOCAB), k=rng.randint(1, most)))

    rows = [PreferenceRow(text(4), text(8), text(8)) for _ in range(num)]
    if not labels:
        return rows
    return [PreferenceRow(r.prompt_ids, r.chosen_ids if i % 3 else None, r.rejected_ids) for i, r in enumerate(rows)]


def settings(tokens=4096, temperature=1.0):
    return PreferenceSettings(0, temperature, tokens)


def backend_of(drift=0, packing="auto"):
    backend = Backend(with_exact_norms(policy(drift)), config=TrainConfig(packing=packing))
    backend.start(OPTIMIZER, 10)
    return backend


def batch_of(rows, temperature=1.0):
    """With the log-probs of another policy as the reference's."""
    return _batch_of(tuple(rows), temperature)


@cache
def _batch_of(some, temperature):
    other, rows = backend_of(drift=9), list(some)
    shifted = mismatched(rows)
    at = settings(temperature=temperature)
    ref, shifted_ref = (side_logprobs(other, x, "policy", at) for x in (rows, shifted))
    return PreferenceBatch(rows, ref, shifted, shifted_ref)


def is_of_labels(name):
    return load_preference(name)[0].from_labels


def with_shared_prompts(rows):
    """The rows with long prompts; two rows have the same one."""
    rng = random.Random(3)
    prompts = [tuple(rng.choices(range(2, VOCAB), k=24)) for _ in rows]
    return [replace(row, prompt_ids=prompts[i // 2]) for i, row in enumerate(rows)]


@cache
def policies():
    """The policy before its update, and the reference."""
    return backend_of().model, backend_of(drift=9).model


@cache
def side(prompt, response, temperature):
    """A response's log-probs by transformers' own forward over it alone."""
    each = []
    for model in policies():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        each.append((logits / temperature).log_softmax(-1))
    lp, ref = ([float(x[t, y]) for t, y in enumerate(response)] for x in each)
    return Side(lp, ref)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("name", "params"), LOSSES)
def test_loss_and_z_are_those_of_the_double_on_the_models_token_logprobs(name, params, temperature):
    rows = rows_of(labels=is_of_labels(name))
    z = divergence([side(r.prompt_ids, y, temperature) for r in mismatched(rows) for y in r.sides if y is not None])
    chosen = [side(r.prompt_ids, r.chosen_ids, temperature) for r in rows if r.chosen_ids is not None]
    rejected = [side(r.prompt_ids, r.rejected_ids, temperature) for r in rows if r.rejected_ids is not None]
    loss = load_preference(name, params)
    metrics = preference_update(backend_of(), *loss, batch_of(rows, temperature), settings(40, temperature))
    assert metrics["loss"] == pytest.approx(mean_loss(name, chosen, rejected, z, params), rel=1e-6)
    if name == "kto":
        assert metrics["preference/z"] == pytest.approx(z, rel=1e-6, abs=1e-9)
        assert "preference/accuracy" not in metrics
    if (name, params) == ("dpo", {}):
        wins = [w.h > r.h for w, r in zip(chosen, rejected, strict=True)]
        assert metrics["preference/accuracy"] == sum(wins) / len(wins)
        gap = sum(w.h - r.h for w, r in zip(chosen, rejected, strict=True)) / len(rows)
        assert metrics["preference/margin"] == pytest.approx(0.1 * gap, rel=1e-6)


def test_each_prompt_meets_the_responses_of_another_prompt():
    a, b, c = (PreferenceRow((x,), (x, 1), (x, 2)) for x in (3, 4, 5))
    found = mismatched([a, a, b, a, c])
    assert [r.prompt_ids for r in found] == [(3,), (3,), (4,), (3,), (5,)]
    assert [r.chosen_ids for r in found] == [(4, 1), (4, 1), (3, 1), (5, 1), (3, 1)]


def test_responses_to_one_prompt_alone_have_no_others():
    row = PreferenceRow((3,), (4,), None)
    with pytest.raises(DataError, match="2 responses all answer one prompt"):
        mismatched([row, row])
