"""The update of distillation: one mean a step whatever micro-batches, order and ranks; each kind of teacher."""

import json
import random
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.json_server import serving as serving_json
from tests.models.families import VOCAB, tiny, with_exact_norms
from tests.train.batches import (
    OPTIMIZER,
    distance,
    frozen,
    groups_of,
    parts_of,
    policy,
    settings_of,
    watched,
    weights,
)
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.config.teaching import TeacherConfig
from verizero.pipeline.errors import DataError, EngineError
from verizero.pipeline.models import runs
from verizero.pipeline.models.forward import logits_at
from verizero.pipeline.rl.distillation import compare
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.distillation import (
    Distillation,
    DistillRow,
    DistillSettings,
    ModelTeacher,
    ReferenceTeacher,
    ServedTeacher,
    distill_update,
)
from verizero.pipeline.train.step import update

OBJECTIVES = [
    Objective(temperature=0.8),
    Objective("forward_kl", "top_k", top_k=3),
    Objective(over="sampled"),
    Objective(over="sampled", stale_weights="token", stale_cap=1.1),
]
SERVABLE = [
    Objective("forward_kl", "top_k", top_k=4),
    Objective("reverse_kl", "top_k", top_k=4),
    Objective(over="sampled"),
]


def rows_of(num=7, seed=0, teachers="ab"):
    """Responses to prompts that the teachers read differently; up to four rows have the same prompts."""
    rng = random.Random(seed)

    def text(least, most):
        return tuple(rng.choices(range(2, VOCAB), k=rng.randint(least, most)))

    prompts = [(text(4, 7), text(4, 9)) for _ in range(0, num, 4)]
    rows = [DistillRow(teachers[i % len(teachers)], *prompts[i // 4], text(1, 8)) for i in range(num)]
    # Every third is of an older policy, where weights ask for it.
    return [
        replace(r, rollout_logprobs=tuple(rng.uniform(-4, -2) for _ in r.response_ids)) if i % 3 == 1 else r
        for i, r in enumerate(rows)
    ]


def exact(seed=0):
    """A policy or teacher whose numbers differ by float64's rounding alone, however its rows are laid out."""
    return with_exact_norms(policy(seed))


def settings(tokens=4096):
    return DistillSettings(pad_id=0, micro_batch_tokens=tokens)


def backend_of(packing="auto"):
    backend = Backend(exact(), config=TrainConfig(packing=packing))
    backend.start(OPTIMIZER, 10)
    return backend


def held():
    return {"a": ModelTeacher(exact(50)), "b": ModelTeacher(exact(60))}


def updated(rows, objective, tokens=4096, teachers=None, packing="auto"):
    backend = backend_of(packing=packing)
    metrics = distill_update(backend, teachers or held(), rows, objective, settings(tokens))
    return metrics, weights(backend)


def test_either_forward_is_a_tree_that_a_micro_batch_holds(monkeypatch):
    """Each has its own: prompts of the teacher differ in rows that share the policy's, and the other way round."""
    first, other, end = (10,) * 20, (11,) * 20, (12, 2)
    alike = [DistillRow("a", first, first, (i, 2)) for i in range(3, 7)]
    of_teacher = [DistillRow("a", (i, *first), other, end) for i in range(3, 7)]
    of_policy = [DistillRow("a", other, (i, *first), end) for i in range(3, 7)]
    sizes = []
    monkeypatch.setattr(runs, "states", lambda *x, states=runs.states: (sizes.append(len(x[1])), states(*x))[1])
    rows, objective = [*alike, *of_teacher, *of_policy], OBJECTIVES[0]
    found, after = updated(rows, objective, 60)
    of_flat_rows = updated(rows, objective, packing="off")[1]
    assert distance(after, of_flat_rows) < 1e-12
    assert found["tree/ratio"] == pytest.approx(sum(r.longest for r in rows) / (28 + 8 * 23))
    assert max(sizes) <= 60
    assert sum(sizes) < 1.25 * sum(r.longest for r in rows), "of both forwards"


def test_a_teacher_that_cannot_be_packed_pads():
    teachers = {name: ModelTeacher(tiny("gemma2 with softcapping", dtype=torch.float64)) for name in "ab"}
    seen = [updated(rows_of(), OBJECTIVES[0], 60, teachers, packing) for packing in ("auto", "off")]
    assert seen[0][0]["tree/ratio"] > 1.1
    assert distance(seen[0][1], seen[1][1]) < 1e-8  # the teacher's norms are in float32


def test_loss_and_gradient_are_those_of_the_mean_over_the_tokens_of_both_teachers():
    rows, objective, policy, backend = rows_of(), OBJECTIVES[0], exact(), backend_of()
    metrics, (gradient,) = watched(backend, lambda: distill_update(backend, held(), rows, objective, settings()))
    total, tokens, by_teacher = 0.0, 0, {}
    for row in rows:
        teacher = held()[row.teacher].model
        each = [torch.tensor([[*p, *row.response_ids]]) for p in (row.prompt_ids, row.teacher_prompt_ids)]
        where = [torch.arange(x.shape[1])[None] >= x.shape[1] - len(row.response_ids) for x in each]
        mine, theirs = (logits_at(m, x, w) for m, x, w in zip((policy, teacher), each, where, strict=True))
        found = compare(mine, torch.tensor(row.response_ids), theirs, objective).divergence
        total, tokens = total + found.sum(), tokens + len(found)
        by_teacher.setdefault(row.teacher, []).extend(found.tolist())
    assert metrics["loss"] == pytest.approx(float(total.detach()) / tokens, rel=1e-12)
    wanted = torch.autograd.grad(total / tokens, list(policy.parameters()))
    torch.testing.assert_close(gradient, torch.cat([g.flatten() for g in wanted]), rtol=1e-9, atol=1e-12)
    assert metrics["distill/kl"] == pytest.approx(metrics["loss"], rel=1e-12)
    for name, values in by_teacher.items():
        assert metrics[f"distill/kl/{name}"] == pytest.approx(sum(values) / len(values), rel=1e-12)
    assert (metrics["tokens/trained"], metrics["rows"]) == (tokens, len(rows))


def test_stale_tokens_and_those_whose_weight_was_cut_are_counted():
    rows = [replace(r, rollout_logprobs=None) for r in rows_of()]
    objective = Objective(over="sampled", stale_weights="token", stale_cap=1.5)
    fresh, after = updated(rows, objective)
    assert (fresh["distill/stale"], fresh["distill/stale_clamped"]) == (0.0, 0.0)
    assert "distill/stale_weight" not in fresh
    rows[2] = replace(rows[2], rollout_logprobs=(-100.0,) * len(rows[2].response_ids))
    rows[3] = replace(rows[3], rollout_logprobs=(0.0,) * len(rows[3].response_ids))
    stale, others = updated(rows, objective)
    cut, uncut = len(rows[2].response_ids), len(rows[3].response_ids)
    total = sum(len(r.response_ids) for r in rows)
    assert stale["distill/stale"] == pytest.approx((cut + uncut) / total)
    assert stale["distill/stale_clamped"] == pytest.approx(cut / total)
    assert 1.5 * cut / (cut + uncut) < stale["distill/stale_weight"] < (1.5 * cut + uncut) / (cut + uncut)
    assert distance(after, others) > 1e-5


@pytest.mark.parametrize("whole", [False, True])
def test_its_own_teacher_is_the_reference_with_another_prompt(whole):
    backend, rows = backend_of(), rows_of(teachers="a")
    backend.reference = frozen(exact(50))
    own = {"a": ReferenceTeacher(backend, whole)}
    metrics = distill_update(backend, own, rows, OBJECTIVES[0], settings(30))
    wanted, after = updated(rows, OBJECTIVES[0])
    assert metrics == pytest.approx(wanted, rel=1e-9)
    assert distance(weights(backend), after) < 1e-12


@pytest.mark.parametrize("objective", SERVABLE, ids=str)
def test_a_server_teaches_what_its_model_would(objective):
    rows = rows_of(teachers="a")
    wanted, after = updated(rows, objective)
    with serving(Served(exact(50), refusals=2)) as served:
        teacher = ServedTeacher(TeacherConfig(url=served.url, model="big"), objective.top_k, VOCAB, backoff_s=0.0)
        found, others = updated(rows, objective, 30, {"a": teacher})
    assert found == pytest.approx(wanted, rel=1e-9)
    assert distance(after, others) < 1e-11
    assert len(served.asked) == len(rows) + 2
    assert {(b["path"], b["model"], b["prompt_logprobs"]) for b in served.asked} == {
        ("/v1/completions", "big", objective.top_k)
    }
    assert sorted(b["prompt"] for b in served.asked[2:])[0] in [[*r.teacher_prompt_ids, *r.response_ids] for r in rows]


def test_what_a_server_cannot_give_is_said():
    rows, objective = rows_of(teachers="a"), Objective(over="top_k", top_k=5)
    with serving(Served(exact(50), max_logprobs=4)) as served:
        server = TeacherConfig(url=served.url, model="big", retries=1)
        with pytest.raises(EngineError, match=r"greater than max allowed.*prompt_logprobs=5.*--max-logprobs"):
            updated(rows, objective, teachers={"a": ServedTeacher(server, 5, VOCAB, 0.0)})
        served.max_logprobs = 20
        with pytest.raises(DataError, match=f"has a token .* policy {VOCAB - 3} tokens"):
            updated(rows, objective, teachers={"a": ServedTeacher(server, 5, VOCAB - 3, 0.0)})
    with pytest.raises(EngineError, match="check that it runs"):
        updated(rows, objective, teachers={"a": ServedTeacher(server, 5, VOCAB, 0.0)})


def term_of(groups, tokens=4096, coef=0.25):
    """A term in an update of RL: a row for each response but every third, whose teacher reads another prompt."""
    rng = random.Random(4)
    rows = [
        DistillRow("a", tuple(r.prompt_ids), tuple(rng.choices(range(2, VOCAB), k=6)), tuple(r.response_ids))
        for r in (m.rollout for g in groups for m in g.members if m.reward is not None)
    ]
    rows = [None if i % 3 == 2 else row for i, row in enumerate(rows)]
    objective, teachers = Objective("forward_kl", temperature=0.8), {"a": ModelTeacher(exact(50))}
    return Distillation(coef, teachers, rows, objective, settings(tokens), {"distill/unhinted": 7.0})


def test_a_term_adds_the_coefficient_times_its_gradient_to_that_of_the_algorithm():
    def updated_with(term, **params):
        backend, parts = backend_of(), parts_of("grpo", kl_coef=0.1, **params)
        backend.reference = frozen(exact(100))
        how = settings_of(parts, 4096, distillation=term)
        return watched(backend, lambda: update(backend, parts, groups_of(), how))

    term, backend = term_of(groups_of()), backend_of()
    rows = [row for row in term.rows if row is not None]
    (plain, (of_rewards,)), (metrics, (both,)) = updated_with(None), updated_with(term)
    alone, (of_teacher,) = watched(
        backend, lambda: distill_update(backend, term.teachers, rows, term.objective, term.settings)
    )
    torch.testing.assert_close(both, of_rewards + 0.25 * of_teacher, rtol=1e-10, atol=1e-13)
    assert metrics["loss/distill"] == pytest.approx(0.25 * alone["loss"], rel=1e-12)
    assert metrics["distill/kl"] == pytest.approx(alone["distill/kl"], rel=1e-12)
    assert (metrics["distill/rows"], metrics["distill/tokens"]) == (alone["rows"], alone["tokens/trained"])
    assert metrics["distill/unhinted"] == 7.0
    same = plain.keys() - {"grad_norm", "update_norm"}
    assert {name: metrics[name] for name in same} == pytest.approx({name: plain[name] for name in same}, rel=1e-9)
    halves, _ = updated_with(term, num_minibatches=2)
    assert halves["distill/rows"] == len(rows) / 2, "each minibatch has the term of its own rows"
    without, (as_plain,) = updated_with(replace(term, rows=[None] * len(term.rows)))
    assert torch.equal(as_plain, of_rewards)
    assert (without["distill/rows"], "loss/distill" in without) == (0.0, False)


class Served:
    """The model, the requests so far, and how often each prompt is refused before it is answered."""

    def __init__(self, model, max_logprobs=20, refusals=0):
        self.model, self.max_logprobs = model, max_logprobs
        self.left = refusals
        self.asked = []
        self.url = ""

    @torch.no_grad()
    def answer(self, body):
        """The reply of vllm serve: the first token has no entry, each other one the k most likely and itself."""
        ids, k = body["prompt"], body["prompt_logprobs"]
        logits = self.model(input_ids=torch.tensor([ids])).logits[0].double()
        log_q = logits.log_softmax(-1)
        places = [None]
        for t in range(1, len(ids)):
            row = log_q[t - 1]
            order = row.argsort(descending=True, stable=True).tolist()
            rank = {token: number for number, token in enumerate(order, 1)}
            named = dict.fromkeys([ids[t], *order[:k]])
            places.append(
                {str(i): {"logprob": float(row[i]), "rank": rank[i], "decoded_token": f"<{i}>"} for i in named}
            )
        return {"choices": [{"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": places}]}

    def reply(self, path, content, key):
        body = json.loads(content)
        self.asked.append({**body, "path": path})
        if self.left > 0:
            self.left -= 1
            return 503, None
        if body["prompt_logprobs"] > self.max_logprobs:
            text = f"Requested prompt logprobs of {body['prompt_logprobs']}, which is greater than max allowed"
            return 400, {"error": {"message": text}}
        return 200, self.answer(body)


@contextmanager
def serving(served):
    """Serve until the block ends; `url` is the base URL."""
    with serving_json(served.reply) as address:
        served.url = f"{address}/v1"
        yield served
