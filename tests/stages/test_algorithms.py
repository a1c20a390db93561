"""Inputs of algorithms other than rewards, compared to what the loop's own records say they should be."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.sections import OptimizerConfig
from pipeline.errors import DataError
from pipeline.loop.steps import Generated, rl_steps, with_baseline
from pipeline.report.progress import Silent
from pipeline.rl.credit import compute_advantages
from pipeline.rl.shaping import length_penalty
from pipeline.run.opening import opened
from pipeline.seeds import stream
from pipeline.train.step import update
from pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict
from tests.stages.sessions import run_all
from tests.stages.tiny import tiny
from tests.train.batches import backend_of, groups_of, parts_of, settings_of, weights

RATE = 1e-3
NEARLY_LINEAR = OptimizerConfig(learning_rate=RATE, betas=(0.0, 0.0), eps=1e6, max_grad_norm=None)
"""g / (|g| + eps) is g / eps for gradients far below a million."""
CARRIES = ("rl.select.keep=informative", "rl.prompts_per_step=2", "rl.select.max_refills=6", "sft.steps=120")
SHORT = [
    "rl.rounds=1",
    "rl.steps_per_round=3",
    "rl.select.keep=all",
    "sft.steps=60",
    "evaluation.before_training=false",
]
SHORT += ["evaluation.limit=1"]


@functools.cache
def run(*overrides: str) -> tuple[list[dict[str, float]], dict[str, list[tuple[tuple[Any, ...], Any]]]]:
    """The metrics of each RL step of the tiny recipe, and every call of each phase: its arguments and its result."""
    calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}

    def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            kept = result.rollouts if isinstance(result, Generated) else result
            calls.setdefault(phase, []).append((arguments, kept))
            return result

        return call

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with opened(tiny(overrides=[*SHORT, *overrides]), folder, folder, "auto", Silent()) as session:
            run_all(session, wrap)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [r["metrics"] for r in rows if r["kind"] == "step" and r["stage"] == "rl"], calls


class TestGreedyBaseline:
    REMAX = ("rl.algorithm={name: remax}",)

    def test_each_prompt_has_one_greedy_response_more(self) -> None:
        _, calls = run(*self.REMAX)
        for (prompts, _), rollouts in calls["generate"]:
            assert len(rollouts) == len(prompts) * (6 + 1)
            assert [r.prompt_id for r in rollouts[-len(prompts) :]] == [p.id for p in prompts]

    def test_the_baseline_is_the_greedy_responses_own_reward(self) -> None:
        steps, calls = run(*self.REMAX)
        for ((prompts, rollouts), (groups, tally)), metrics in zip(calls["verify"], steps, strict=True):
            assert tally.total == len(rollouts)
            for prompt, greedy, group in zip(prompts, rollouts[-len(prompts) :], groups, strict=True):
                assert group.greedy_reward is not None
                right = greedy.finish_reason == "stop" and greedy.text.endswith(f"\\boxed{{{prompt.reference}}}")
                assert group.greedy_reward == float(right)
                assert len(group.members) == 6
            known = [g.greedy_reward for g in groups]
            assert metrics["reward/greedy"] == pytest.approx(sum(known) / len(known))

    def test_greedy_responses_do_not_disturb_the_sampled_ones(self) -> None:
        _, remax = run(*self.REMAX)
        _, plain = run("rl.algorithm={name: reinforce}")
        ((prompts, _), with_greedy), ((same, _), without) = remax["generate"][0], plain["generate"][0]
        assert prompts == same
        assert with_greedy[: -len(prompts)] == without

    def test_tokens_of_baselines_are_counted(self) -> None:
        steps, calls = run(*self.REMAX)
        num = [sum(len(r.response_ids) for r in rollouts) for _, rollouts in calls["generate"]]
        assert [m["tokens/generated"] for m in steps] == [float(sum(num[: i + 1])) for i in range(len(num))]

    def test_length_counts_against_the_baseline_as_against_the_others(self) -> None:
        from pipeline.rl.parts import Shaping

        shaping = Shaping(overlong_buffer=0.5, token_budget=8, token_budget_penalty=0.25)

        def group(*lengths: int) -> Group:
            prompt = Prompt("p", "?", "exact", "x")
            rollouts = [Rollout("p", i, (1,), (2,) * n, (-1.0,) * n, "", "stop", 0) for i, n in enumerate(lengths)]
            return Group(prompt, tuple(ScoredRollout(r, Verdict("graded", 1.0), 1.0) for r in rollouts))

        (found,) = with_baseline([group(3, 4)], [group(9)], shaping, 10)
        assert found.greedy_reward == 1.0 + length_penalty(shaping, 9, 10)
        assert found.greedy_reward < 1.0 - 0.25

    def test_a_prompt_whose_baseline_was_not_graded_does_not_train(self) -> None:
        config = tiny(overrides=[*SHORT, *self.REMAX, "stages=[rl]"])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with opened(config, folder, folder, "auto", Silent()) as session:
                rollout = Rollout("p", 0, (1,), (2,), (-1.0,), "", "stop", 0)
                members = tuple(ScoredRollout(rollout, Verdict("graded", r), r) for r in (0.0, 1.0))
                lost, good = (Group(Prompt("p", "?", "exact", "x"), members, greedy_reward=g) for g in (None, 0.0))
                kept, counts = rl_steps(session).select([lost, good])
        assert kept == [good]
        assert (counts["kept"], counts["infrastructure"]) == (1, 1)


class TestComponents:
    TWO = (
        "rl.algorithm={name: gdpo}",
        "scoring.components=[{verifier: {name: length, params: {max_length: 30, buffer: 25}}, weight: 0.25}]",
        "scoring.truncated=null",
    )

    def test_the_reward_is_the_weighted_sum_and_components_are_the_verifiers_own(self) -> None:
        _, calls = run(*self.TWO)
        members = [m for _, (groups, _) in calls["verify"] for g in groups for m in g.members]
        shorts = set()
        for m in members:
            right, short = m.components
            over = len(m.rollout.text) - 5
            wanted = 0.0 if m.rollout.finish_reason == "length" else min(1.0, max(0.0, 1 - over / 25))
            assert short == pytest.approx(wanted)
            assert right == m.verdict.score
            assert m.reward == pytest.approx(right + 0.25 * short)
            shorts.add(short)
        assert len(shorts) > 3

    def test_gdpo_normalises_each_and_weighs_them_as_the_recipe_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []

        def watched(parts: Any, inputs: Any, **rest: Any) -> Any:
            out = compute_advantages(parts, inputs, **rest)
            seen.append((parts, inputs, out))
            return out

        monkeypatch.setattr("pipeline.train.step.compute_advantages", watched)
        run.__wrapped__(*self.TWO)
        for parts, inputs, out in seen:
            weights = parts.advantage.options["weights"]
            assert weights == (1.0, 0.25)
            wanted = slow_gdpo(inputs.reward_components.tolist(), inputs.group_ids.tolist(), weights)
            first = [out.advantages[i][inputs.response_mask[i] > 0][0] for i in range(len(wanted))]
            assert [float(a) for a in first] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
            assert max(wanted) > 0.5

    def test_another_algorithm_takes_the_sum(self) -> None:
        steps, calls = run("rl.algorithm={name: grpo}", *self.TWO[1:])
        for (groups,), metrics in calls["update"]:
            rewards = [m.reward for g in groups for m in g.members]
            assert metrics["reward/mean"] == pytest.approx(sum(rewards) / len(rewards), rel=1e-5)
        assert all(m["reward/component/1"] > 0 for m in steps)

    def test_evaluation_asks_the_rows_own_verifier_alone(self) -> None:
        config = tiny(overrides=[*SHORT, *self.TWO])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with opened(config, folder, folder, "auto", Silent()) as session:
                prompts = {p.id: p for p in session.run.data.evaluation}
                first = next(iter(prompts))
                rollout = Rollout(first, 0, (1,), (2,), (-1.0,), "no", "stop", 0)
                (plain,), _ = session.workers.graders.scorer.score(prompts, [rollout])
                (summed,), _ = session.workers.graders.scorer.score(prompts, [rollout], with_components=True)
        assert plain.components == ()
        assert summed.components == (plain.reward, 1.0)


class TestTerms:
    def test_demonstrations_join_each_update_of_a_run_without_sft_too(self) -> None:
        few = ("rl.ptx_batch_size=5", "stages=[rl]")
        plain, _ = run("rl.algorithm={name: reinforce}", *few)
        text, _ = run("rl.algorithm={name: reinforce, ptx_coef: 0.5}", *few)
        assert all("loss/ptx" not in m for m in plain)
        # five demonstrations of sums of one digit; an untrained model finds each of its 56 tokens alike
        assert all(5 * 8 < m["ptx/tokens"] < 5 * 50 for m in text)
        assert text[0]["loss/ptx"] == pytest.approx(0.5 * math.log(56), rel=0.05)
        assert len({m["loss/ptx"] for m in text}) == len(text)

    def test_an_update_with_demonstrations_is_the_sum_of_both_gradients(self) -> None:
        """Against the formula: with a step that is linear in the gradient, the moves add up."""
        texts = (((3, 4, 5, 6), 1), ((7, 8, 9), 2))
        moves = {}
        for coef in (0.0, 0.5):
            parts = parts_of("grpo", ptx_coef=coef, kl_coef=0.0)
            backend = backend_of(0, NEARLY_LINEAR)
            before = weights(backend)
            update(backend, parts, groups_of(), settings_of(parts, texts=texts, texts_per_update=3))
            moves[coef] = {k: v - before[k] for k, v in weights(backend).items()}
        drawn = [stream(5, "ptx", 2, 0)]
        chosen = [drawn[0].choice(texts) for _ in range(3)]
        policy = backend_of().model
        loss, num = torch.zeros((), dtype=torch.float64), 0
        for ids, skip in chosen:
            logits = policy(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            for t in range(skip, len(ids)):
                loss, num = loss - logits[t - 1, ids[t]], num + 1
        torch.autograd.backward(loss / num)
        for name, p in policy.named_parameters():
            assert p.grad is not None
            found = (moves[0.5][name] - moves[0.0][name]) / -RATE
            torch.testing.assert_close(found * NEARLY_LINEAR.eps, 0.5 * p.grad, rtol=1e-3, atol=1e-7)

    def test_demonstrations_are_wanted_where_there_are_none(self) -> None:
        parts = parts_of("grpo", ptx_coef=0.5)
        with pytest.raises(DataError, match=r"ptx_coef is 0\.5 and there are no demonstrations"):
            update(backend_of(), parts, groups_of(), settings_of(parts))

    def test_the_entropy_bonus_follows_its_target_and_is_used(self) -> None:
        adaptive = "entropy_target: 9.0, entropy_step: 0.25, entropy_max: 0.5"
        steps, _ = run(f"rl.algorithm={{name: reinforce, {adaptive}}}", "rl.steps_per_round=5")
        # entropy is below any 9 nats: the coefficient rises by a quarter to its bound; a step sees the one before it
        coefs = [0.0, 0.25, 0.5, 0.5, 0.5]
        assert [m["loss/entropy"] for m in steps] == pytest.approx(
            [-c * m["entropy"] for c, m in zip(coefs, steps, strict=True)], rel=1e-4
        )
        assert steps[-1]["entropy"] > steps[0]["entropy"]

    def test_the_temperature_falls_linearly_and_sampling_and_training_share_it(self) -> None:
        steps, calls = run("rl.algorithm={name: grpo, temperature_end: 0.5, kl_coef: 0}", "rl.rounds=2")
        wanted = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
        assert [m["temperature"] for m in steps] == pytest.approx(wanted)
        # the engine's and the trainer's log-probs agree only at the same temperature
        assert all(abs(m["mismatch/k3"]) < 1e-6 for m in steps)
        assert len(calls["generate"]) == 6

    @pytest.mark.integration
    def test_groups_carried_over_are_off_policy_in_the_next_step(self) -> None:
        steps, _ = run("rl.algorithm={name: grpo, kl_coef: 0}", "rl.steps_per_round=8", *CARRIES)
        carried = [m for m in steps if m["groups/carried_in"] > 0 and not m["update/skipped"]]
        assert carried, "no group was carried over: the recipe no longer shows it"
        for m in carried:
            assert m["rows/off_policy"] == 6 * min(2, m["groups/carried_in"])
            # their ratio is against what the engine said when it sampled them, so it is not 1 at the first update
            assert m["policy_kl/k3"] > 0
        fresh = [m for m in steps if m["groups/carried_in"] == 0 and not m["update/skipped"]]
        assert all("rows/off_policy" not in m and abs(m["policy_kl/k3"]) < 1e-9 for m in fresh)


def slow_gdpo(rows: Sequence[Sequence[float]], groups: Sequence[int], weights: Sequence[float]) -> list[float]:
    """By the formula, with loops: normalise within the group, weigh, sum, whiten over the batch."""

    def normal(xs: Sequence[float], x: float) -> float:
        mean = sum(xs) / len(xs)
        spread = math.sqrt(sum((y - mean) ** 2 for y in xs) / (len(xs) - 1))
        return 0.0 if max(xs) == min(xs) else (x - mean) / (spread + 1e-6)

    total = [
        sum(
            w * normal([r[k] for r, h in zip(rows, groups, strict=True) if h == g], row[k])
            for k, w in enumerate(weights)
        )
        for row, g in zip(rows, groups, strict=True)
    ]
    return [normal(total, x) for x in total]
