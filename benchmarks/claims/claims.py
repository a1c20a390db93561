"""The published claims that are tested, each with its arms, its statistic and its rule.

What was published, the test, the statistic and the rule in words are in claims.md. All of it is committed before a
claim's first run. An entry: name, title, arms (name -> changes of the demo), seeds, statistic, rule.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.report.intervals import Estimate

Outcome = Literal["holds", "fails", "not at this scale"]
Runs = Mapping[str, Path]
"""Arm -> the folder of its run."""
DEMO, COIN = "configs/demo.yaml", "benchmarks/claims/recipes/random_rewards.yaml"
TOKENS = "rl.max_tokens=300000"
CLIPPED = ("clip_fraction/low", "clip_fraction/high")


@dataclass(frozen=True, slots=True)
class Claim:
    """A published result, and the test of it."""

    name: str
    title: str
    arms: Mapping[str, tuple[str, ...]]
    """Ways to train: changes of the recipe, as `--set` takes them."""
    seeds: int
    value: Callable[[Runs], float]
    """The statistic of one seed, from one run of each arm."""
    judge: Callable[[Estimate], Outcome]
    """When the claim holds, and when it fails; in between it is not decided at this scale."""
    recipe: str = DEMO
    """Path from the repository's root."""


def algorithm(*parameters: str) -> tuple[str, ...]:
    """Return the changes for an algorithm with these parameters, under the budget of all arms."""
    return (f"rl.algorithm={{name: {', '.join(parameters)}}}", TOKENS)


def above(limit: float, fails_below: float) -> Callable[[Estimate], Outcome]:
    """Return the rule: holds if the whole interval is above `limit`, fails if all of it is below `fails_below`."""

    def judge(x: Estimate) -> Outcome:
        return "holds" if x.low > limit else "fails" if x.high < fails_below else "not at this scale"

    return judge


def within(limit: float) -> Callable[[Estimate], Outcome]:
    """Return the rule: holds if the whole interval is within +-limit, fails if none of it is."""

    def judge(x: Estimate) -> Outcome:
        if -limit < x.low and x.high < limit:
            return "holds"
        return "fails" if x.low > limit or x.high < -limit else "not at this scale"

    return judge


def exactly_zero(x: Estimate) -> Outcome:
    """Judge a value that is never negative: holds if it is 0 for all seeds, fails if the interval is above 0."""
    return "holds" if x.value == 0 else "fails" if x.low > 0 else "not at this scale"


def rl_steps(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of each RL step."""
    rows = read_jsonl(run / "metrics.jsonl")
    return [r["metrics"] for r in rows if r["kind"] == "step" and r["stage_kind"] == "rl"]


def greatest_mismatch(runs: Runs) -> float:
    """Return the greatest mean difference of a step, in nats."""
    return max(float(m["mismatch/abs"]) for m in rl_steps(runs["demo"]))


def entropy_gained(runs: Runs) -> float:
    """Return the entropy over the last quarter of the steps, with the upper clip at 0.28 less that at 0.2, in nats."""
    steps = {name: rl_steps(run) for name, run in runs.items()}
    high, low = (fmean(m["entropy"] for m in steps[name][-max(1, len(steps[name]) // 4) :]) for name in ("0.28", "0.2"))
    return high - low


def orders_clipped(runs: Runs) -> float:
    """Return log10 of GSPO's clipped share over GRPO's; a step without the share is not counted."""
    gspo, grpo = (
        fmean(sum(m[c] for c in CLIPPED) for m in rl_steps(runs[name]) if all(c in m for c in CLIPPED))
        for name in ("gspo", "grpo")
    )
    return math.log10(gspo / max(grpo, 1e-9))


def pass_1(run: Path, place: int) -> float:
    """Return the mean pass@1 over domains of an evaluation: 0 the first, -1 the last."""
    evaluations = [r for r in read_jsonl(run / "metrics.jsonl") if r["kind"] == "evaluation"]
    return fmean(domain["pass@1"]["value"] for domain in evaluations[place]["domains"].values())


def pass_1_gained(runs: Runs) -> float:
    """Return the gain of pass@1 with random rewards."""
    return pass_1(runs["random"], -1) - pass_1(runs["random"], 0)


def pass_1_less(arm: str, other: str) -> Callable[[Runs], float]:
    """Return the statistic: the last pass@1 of one arm's run, less that of the other's."""

    def difference(runs: Runs) -> float:
        return pass_1(runs[arm], -1) - pass_1(runs[other], -1)

    return difference


CLAIMS = {
    claim.name: claim
    for claim in (
        Claim(
            "bitwise_on_policy",
            "Engine and trainer agree on every sampled token bit for bit",
            {"demo": (TOKENS,)},
            3,
            greatest_mismatch,
            exactly_zero,
        ),
        Claim(
            "clip_higher",
            "A higher upper clip keeps entropy up",
            {
                "0.2": algorithm("grpo", "num_minibatches: 8"),
                "0.28": algorithm("grpo", "num_minibatches: 8", "clip_high: 0.28"),
            },
            3,
            entropy_gained,
            above(0.0, fails_below=0.0),
        ),
        Claim(
            "dr_grpo_as_accurate",
            "Dr. GRPO is as accurate as GRPO",
            {"grpo": (TOKENS,), "dr grpo": algorithm("dr_grpo", "kl_in: loss", "kl_coef: 0.001")},
            3,
            pass_1_less("dr grpo", "grpo"),
            within(0.05),
        ),
        Claim(
            "gspo_clips_more",
            "GSPO clips two orders of magnitude more tokens than GRPO",
            {name: algorithm(name, "num_minibatches: 8") for name in ("grpo", "gspo")},
            5,
            orders_clipped,
            above(1.7, fails_below=1.0),
        ),
        Claim(
            "high_entropy_tokens",
            "The fifth of tokens with the highest entropy is enough to train on",
            {"all tokens": (TOKENS,), "a fifth": algorithm("grpo", "kl_coef: 0.001", "high_entropy_share: 0.2")},
            3,
            pass_1_less("a fifth", "all tokens"),
            above(-0.02, fails_below=-0.02),
        ),
        Claim(
            "lora_rank_1",
            "LoRA of rank 1 learns as much by RL as training all weights",
            {
                "all weights": (TOKENS,),
                "rank 1": (TOKENS, "train.lora={rank: 1, alpha: 32}", "rl.optimizer.learning_rate=4e-3"),
            },
            5,
            pass_1_less("rank 1", "all weights"),
            within(0.05),
        ),
        Claim(
            "no_kl",
            "Removing the KL penalty costs no accuracy",
            {"kl 0.04": algorithm("grpo", "kl_coef: 0.04"), "no kl": algorithm("grpo", "kl_coef: 0.0")},
            3,
            pass_1_less("no kl", "kl 0.04"),
            above(-0.02, fails_below=-0.02),
        ),
        Claim(
            "rloo_beats_ppo",
            "RLOO ends more accurate than PPO",
            {name: algorithm(name) for name in ("rloo", "ppo")},
            3,
            pass_1_less("rloo", "ppo"),
            above(0.0, fails_below=0.0),
        ),
        Claim(
            "spurious_rewards",
            "GRPO with random rewards raises held-out accuracy",
            {"random": algorithm("grpo", "num_minibatches: 8")},
            5,
            pass_1_gained,
            above(0.02, fails_below=0.02),
            COIN,
        ),
        Claim(
            "stale_rollouts",
            "Rollouts of weights up to four updates old cost no accuracy",
            {"none": (TOKENS,), "four behind": ("rollout.max_staleness=4", TOKENS)},
            3,
            pass_1_less("four behind", "none"),
            within(0.05),
        ),
    )
}
