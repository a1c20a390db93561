"""Reward functions, each in the form of another library's documentation; and functions that go wrong."""

import asyncio
import re
import time

import numpy as np

from verizero.verifiers.base import Verdict, verifier


def found(text):
    match = re.search(r"<answer>(.*?)</answer>", text)
    return match.group(1) if match else ""


def plain(completion, answer):
    return float(found(completion) == answer)


of_the_row = lambda completion, row: row["level"] * len(completion)  # noqa: E731


def trl(prompts, completions, completion_ids, answer, **kwargs):
    return [
        -1.5 if found(c) != a else level + len(ids) / 100
        for c, ids, a, level in zip(completions, completion_ids, answer, kwargs["level"], strict=True)
    ]


def trl_of_tokens(completion_ids, **kwargs):
    return [len(ids) + level for ids, level in zip(completion_ids, kwargs["level"], strict=True)]


def trl_of_prompts(prompts, **kwargs):
    return [len(prompt) for prompt in prompts]


def unsloth(prompts, completions, answer, **kwargs):
    assert prompts[0][-1]["content"] == "?"
    responses = [completion[0]["content"] for completion in completions]
    return [2.0 if found(r) == a else 0.0 for r, a in zip(responses, answer, strict=True)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "openai/gsm8k"
    return {"score": float(found(solution_str) == ground_truth) + extra_info["index"] / 1000, "found": 1.0}


def reward_func(queries, prompts, labels):
    import torch

    responses = [q[len(p) :] for q, p in zip(queries, prompts, strict=True)]
    reward = torch.tensor([float(found(r) == a) for r, a in zip(responses, labels, strict=True)])
    lengths = torch.tensor([float(len(r)) for r in responses])
    return {"rewards": reward, "scores": reward, "extra_logs": {"length": lengths}}


async def exact(completion, answer, info, state):
    await asyncio.sleep(0)
    return float(found(completion[-1]["content"]) == answer) + info["level"]


def signed(completion, answer):
    return 2.0 if found(completion) == answer else -1.0


def sometimes(completion, level):
    return None if level == 0 else 1.0


def not_a_number(completion):
    return float("nan")


def a_text(completion):
    return "good"


def raises(row):
    return row["no such key"]


SHOWN = {"a": float("nan"), "b": 10**400, "c": float("-inf"), "g": True}


@verifier
def shown(attempt):
    return Verdict("graded", 0.5, seconds=float("nan"), parts=tuple(SHOWN.items()))


def shown_of_batch(completions, **kwargs):
    columns = {name: [value] * len(completions) for name, value in SHOWN.items()}
    return {"score": [0.5] * len(completions), "extra": columns, "of_the_batch": np.array(3.0), "short": [0.0] * 9}


def hangs(completion):
    while True:
        time.sleep(1)


def of_a_column(completion, difficulty):
    return 1.0


def bad_at_times(completions, level, **kwargs):
    return [float("inf") if n == 0 else 1.0 for n in level]


def too_few(completions, **kwargs):
    return [1.0] * (len(completions) - 1)
