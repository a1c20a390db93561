"""A term of distillation in the update of RL: the sum of both gradients, whatever the cut into micro-batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import VOCAB
from tests.train.batches import distance, frozen, groups_of, parts_of, policy, settings_of, weights
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.distillation import (
    Distillation,
    DistillRow,
    DistillSettings,
    ModelTeacher,
    Teacher,
    distill_update,
)
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.step import update
from verizero.pipeline.types import Group

OBJECTIVE = Objective("forward_kl", temperature=0.8)
PLAIN = OptimizerConfig(learning_rate=1e-3, max_grad_norm=None)


@dataclass(frozen=True)
class Kept(Ranks):
    """Keeps the gradient of each optimiser step."""

    def sum_gradients(self, parameters: Any) -> None:
        kept.append([p.grad.clone() for p in parameters])


kept: list[list[Tensor]] = []


def taught() -> Teacher:
    return ModelTeacher(policy(50))


def rows_of(groups: Sequence[Group]) -> list[DistillRow | None]:
    """A row for each response with a reward, but every third, whose teacher reads another prompt."""
    rng = random.Random(4)
    rollouts = [m.rollout for g in groups for m in g.members if m.reward is not None]
    rows = [
        DistillRow("a", tuple(r.prompt_ids), tuple(rng.choices(range(2, VOCAB), k=6)), tuple(r.response_ids))
        for r in rollouts
    ]
    return [None if i % 3 == 2 else row for i, row in enumerate(rows)]


def term(rows: Sequence[DistillRow | None], coef: float, tokens: int, teacher: Teacher | None = None) -> Distillation:
    settings = DistillSettings(pad_id=0, micro_batch_tokens=tokens)
    return Distillation(coef, {"a": teacher or taught()}, rows, OBJECTIVE, settings, {"distill/unhinted": 7.0})


def backend_of() -> Backend:
    backend = Backend(policy(), ranks=Kept())
    backend.start(PLAIN, 10)
    backend.reference = frozen(policy(100))
    return backend


def trained(
    distillation: Distillation | None, tokens: int = 4096, **params: Any
) -> tuple[dict[str, float], dict[str, Tensor], list[list[Tensor]]]:
    """Metrics, weights and the gradients of each optimiser step of an update by GRPO with that term."""
    kept.clear()
    parts, backend = parts_of("grpo", kl_coef=0.1, **params), backend_of()
    metrics = update(backend, parts, groups_of(), settings_of(parts, tokens, distillation=distillation))
    return metrics, weights(backend), list(kept)


def test_the_gradient_is_that_of_the_algorithm_and_the_coefficient_times_that_of_distillation() -> None:
    rows = rows_of(groups_of())
    plain, _, (of_rewards,) = trained(None)
    metrics, _, (both,) = trained(term(rows, 0.25, 4096))
    kept.clear()
    alone = distill_update(
        backend_of(), {"a": taught()}, [r for r in rows if r is not None], OBJECTIVE, DistillSettings(0, 4096)
    )
    (of_teacher,) = kept
    # A power of two: the model's norms compute in float32, and round the backward of another factor.
    for sum_, one, other in zip(both, of_rewards, of_teacher, strict=True):
        torch.testing.assert_close(sum_, one + 0.25 * other, rtol=1e-10, atol=1e-13)
    assert metrics["loss/distill"] == pytest.approx(0.25 * alone["loss"], rel=1e-12)
    assert metrics["distill/kl"] == pytest.approx(alone["distill/kl"], rel=1e-12)
    assert (metrics["distill/rows"], metrics["distill/tokens"]) == (alone["rows"], alone["tokens/trained"])
    assert metrics["distill/unhinted"] == 7.0
    same = plain.keys() - {"grad_norm", "update_norm"}
    assert {name: metrics[name] for name in same} == pytest.approx({name: plain[name] for name in same}, rel=1e-9)


@pytest.mark.parametrize("params", [{}, {"num_minibatches": 2, "num_epochs": 2}], ids=str)
def test_micro_batches_change_nothing_and_each_minibatch_has_the_term_of_its_own_rows(params: Any) -> None:
    rows = rows_of(groups_of())
    whole, after, steps = trained(term(rows, 0.3, 4096), **params)
    for tokens in (1, 30):
        cut, others, _ = trained(term(rows, 0.3, tokens), tokens, **params)
        # The model's norms compute in float32, and AdamW divides by the size of a gradient.
        assert cut == pytest.approx(whole, rel=1e-6, abs=1e-9)
        assert distance(after, others) < 1e-7
    num = sum(r is not None for r in rows)
    assert whole["distill/rows"] == num / params.get("num_minibatches", 1), "a mean over the optimiser steps"
    assert len(steps) == params.get("num_minibatches", 1) * params.get("num_epochs", 1)
    _, without, _ = trained(None, **params)
    assert distance(after, without) > 1e-5


def test_without_a_row_there_is_no_term_and_a_teacher_that_is_no_number_is_refused() -> None:
    rows = rows_of(groups_of())
    _, without, _ = trained(None)
    metrics, after, _ = trained(term([None] * len(rows), 0.3, 4096))
    assert distance(after, without) == 0.0
    assert (metrics["distill/rows"], metrics["distill/unhinted"]) == (0.0, 7.0)
    assert "loss/distill" not in metrics
    broken = policy(50)
    with torch.no_grad():
        next(broken.parameters()).fill_(float("nan"))
    backend = backend_of()
    before = weights(backend)
    parts = parts_of("grpo")
    settings = settings_of(parts, distillation=term(rows, 0.3, 30, ModelTeacher(broken)))
    with pytest.raises(NonFiniteError, match="divergence to the teacher is nan"):
        update(backend, parts, groups_of(), settings)
    assert distance(weights(backend), before) == 0.0
    assert all(p.grad is None for p in backend.model.parameters())
