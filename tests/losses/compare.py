"""One loss on one batch by its paper, by this project and by TRL: values, and how far gradients are apart."""

from dataclasses import dataclass
from unittest.mock import patch

import torch
import transformers
from torch import Tensor

from tests.losses.policy_rows import GENERATIONS, LONGEST, OPTIMIZER, move, scored
from tests.oracles import advantages as advantage_oracle
from tests.oracles import rl as oracle
from tests.oracles.preferences import mean_loss
from tests.preferences.sides import Random
from tests.preferences.trainers import gradient_of, our_loss, their_dpo, their_kto, their_pairwise, trainer_of
from tests.train.batches import frozen
from verizero.pipeline.algorithms.base import load_algorithm, weighted
from verizero.pipeline.rl.loss import LossInputs, policy_loss
from verizero.pipeline.train import step
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import micros_of
from verizero.pipeline.train.step import Settings, prepare

DRIFT = 0.4
"""KTO's mean log-ratio of responses to other prompts."""
Gradient = dict[str, Tensor]
Solved = tuple[float, Gradient]


@dataclass(frozen=True)
class Result:
    """Values of one loss, and distances of gradients as shares of ours."""

    paper: float
    ours: float
    named: float
    asked: float
    asked_apart: float
    same_apart: float
    """Of our loss with the numbers that make it TRL's."""


def compare(case, folder, out):
    """Compute one case; `folder` has the tiny model, `out` is empty."""
    if case.trainer.rpartition(".")[2] in ("GRPO", "GMPO"):
        return _policy(case, folder, out)
    return _pairs(case)


def _apart(a, b):
    size = torch.cat([g.flatten() for g in b.values()]).norm()
    return float(torch.cat([(a[name] - b[name]).flatten() for name in b]).norm() / size)


def _policy(case, folder, out):
    named, _ = _their_policy(case, folder, out, case.named)
    (asked, their_gradient), rows = _their_policy(case, folder, out, case.asked)
    (ours, gradient), inputs, parts = _our_policy(case, folder, rows, {})
    same = gradient
    if case.same:
        (_, same), *_ = _our_policy(case, folder, rows, case.same)
    paper = oracle.loss(parts, _rows_of(parts, inputs, rows, case))
    return Result(paper, ours, named[0], asked, _apart(their_gradient, gradient), _apart(their_gradient, same))


def _their_policy(case, folder, out, arguments):
    """Return TRL's loss and gradient after the policy has moved, on rewards of one or two functions."""
    if arguments.get("multi_objective_aggregation"):
        arguments = {"reward_weights": [1.0, 1.0], **arguments}
    trainer, inputs, rows = scored(folder, out, arguments, case.trainer)
    move(trainer.model, 5, 0.02)
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return (float(loss.detach()), {n: p.grad.clone() for n, p in trainer.model.named_parameters()}), rows


def _our_policy(case, folder, rows, changes):
    """Return our loss and gradient by the preset on the same rows, what the loss was given, and the preset's parts."""
    load = transformers.AutoModelForCausalLM
    name, params = case.ours
    # a second minibatch would compare to the log-probs from before the policy moved
    parts = weighted(load_algorithm(name, {**params, **changes, "num_minibatches": 2})[1], ()).resolve(LONGEST)
    backend = Backend(load.from_pretrained(folder, dtype=torch.float64))
    backend.start(OPTIMIZER, 2)
    if parts.needs_reference:
        backend.reference = frozen(load.from_pretrained(folder, dtype=torch.float64))
        move(backend.reference.model)
    settings = Settings(0, 1.0, 10_000, 0, LONGEST)
    prepared = prepare(backend, parts, rows.groups(parts.needs_components), settings)
    move(backend.model, 5, 0.02)
    micros = micros_of(prepared.batch, range(len(rows.responses)), 10_000, backend.ranks)
    given = []

    def recorded(parts, inputs, totals):
        given.append(inputs)
        return policy_loss(parts, inputs, totals)

    with patch.object(step, "policy_loss", recorded):
        metrics = step._policy_gradient(backend, parts, prepared, micros, settings, 1)
    order = micros[0].rows.argsort()
    inputs = LossInputs(
        **{
            key: value[order] if isinstance(value := getattr(given[0], key), Tensor) else None
            for key in ("logprobs", "advantages", "response_mask", "old_logprobs", "ref_logprobs", "rollout_logprobs")
        }
    )
    gradient = {n: p.grad.clone() for n, p in backend.model.named_parameters() if p.grad is not None}
    return (metrics["loss/total"], gradient), inputs, parts


def _rows_of(parts, inputs, rows, case):
    """Return the rows of the double: log-probs as the models gave them, advantages of its own."""
    groups = [i // GENERATIONS for i in range(len(rows.responses))]
    advantages = _advantages(parts, rows, groups)
    out = []
    for i, mask in enumerate(inputs.response_mask > 0):
        lp, old, ref, gen = (
            [0.0] * int(mask.sum()) if x is None else x[i][mask].tolist()
            for x in (inputs.logprobs, inputs.old_logprobs, inputs.ref_logprobs, inputs.rollout_logprobs)
        )
        out.append(oracle.Row(lp, old, ref, gen, [advantages[i]] * len(lp), [0.0] * len(lp)))
    return out


def _advantages(parts, rows, groups):
    first, o = [r[0] for r in rows.rewards], parts.advantage.options
    if parts.advantage.name == "normalize_then_sum":
        return advantage_oracle.normalize_then_sum(rows.rewards, groups, [1.0, 1.0], int(o["ddof"]), float(o["eps"]))
    if parts.advantage.name == "group_mean":
        return advantage_oracle.group_norm(first, groups, "none", 0, 0.0)
    assert parts.advantage.name == "group_norm"
    return advantage_oracle.group_norm(first, groups, "group", int(o["ddof"]), float(o["eps"]))


def _pairs(case):
    batch, (name, params) = Random(7), case.ours
    z = DRIFT if name == "kto" else 0.0
    ours, gradient = our_loss(name, batch, z, **params)
    same = our_loss(name, batch, z, **{**params, **case.same})[1]
    paper = mean_loss(name, *batch.lists(), z, {**params, **case.paper})
    named = gradient_of(batch, lambda lp: _their_pairs(case, batch, lp, case.named))[0]
    asked, their_gradient = gradient_of(batch, lambda lp: _their_pairs(case, batch, lp, case.asked))
    by_pair = [{"": g} for g in (their_gradient, gradient, same)]
    return Result(paper, ours, named, asked, *(_apart(by_pair[0], other) for other in by_pair[1:]))


def _their_pairs(case, batch, lp, arguments):
    rest = {"beta": 0.1, **arguments}
    if case.trainer == "DPO":
        kinds = rest.pop("loss_type")
        rest["loss_types"] = [kinds] if isinstance(kinds, str) else kinds
        rest["loss_weights"] = rest.get("loss_weights") or [1.0] * len(rest["loss_types"])
        return their_dpo(batch, lp, **rest)
    if case.trainer == "KTO":
        drift = torch.full((len(lp),), DRIFT, dtype=lp.dtype)
        weights = {"desirable_weight": 1.0, "undesirable_weight": 1.0}
        return their_kto(batch, lp, (drift, torch.zeros_like(drift)), **{**rest, **weights})
    defaults = {"label_smoothing": 0.0, "cpo_alpha": 1.0, "simpo_gamma": 0.5, "alpha": 0.0}
    return their_pairwise(trainer_of(f"{case.trainer}Trainer", **{**defaults, **rest}), batch, lp, prompt=3)
