"""A recipe that learns within seconds: RL from random weights towards responses of sevens."""

from tests.stages.tiny import tiny
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.host.disk import read_jsonl

VERIFIER = """
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import VerifierParams, verifier


@verifier
def sevens(attempt: Attempt, params: VerifierParams) -> Verdict:
    share = attempt.response.count("7") / max(1, len(attempt.response))
    return Verdict("graded", share, "share")
"""
STEPS = 16


def recipe(engine, steps=STEPS, **changes):
    """Few steps of RL from random weights towards responses of sevens; `sevens.py` is to lie in its folder."""
    source = {"generator": {"name": "arithmetic", "params": {"digits": 1, "num_train": 30, "num_evaluation": 2}}}
    tree = {
        "stages": ["rl"],
        "sft": None,
        "model": {"create": {"config": {"hidden_size": 64, "num_attention_heads": 2}, "characters": "0123456789+-=7 "}},
        "data": {"train": [{**source, "verifier": {"path": "sevens.py:sevens"}}], "evaluation": []},
        "rl": {
            "algorithm": {"name": "grpo", "kl_coef": 0.0, "allow": []},
            "rounds": 1,
            "steps_per_round": steps,
            "prompts_per_step": 4,
            "group_size": 8,
            # Adam's usual eps of 1e-8 would make whole steps of gradients that are rounding alone.
            "optimizer": {"learning_rate": 1e-2, "eps": 1e-5},
        },
        "rollout": {"engine": engine, "max_response_tokens": 8, "vllm": {"kv_cache_gib": 0.1}},
        "scoring": {"truncated": None},
        "evaluation": {"before_training": False},
    }
    return tiny(merge(tree, changes))


def write_verifier(folder):
    (folder / "sevens.py").write_text(VERIFIER)


def rows(folder):
    return [line["metrics"] for line in read_jsonl(folder / "metrics.jsonl") if line["kind"] == "step"]


def learned(folder):
    """Mean reward of the last four steps less that of the first four."""
    rewards = [row["reward/sampled"] for row in rows(folder)]
    return sum(rewards[-4:]) / 4 - sum(rewards[:4]) / 4
