"""Batches of rewards, and their advantages through a recipe of parts."""

import torch
from hypothesis import strategies as st

from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages

CUSTOM = {"ratio": "token", "surrogate": "clip", "aggregate": "token_mean"}


def parts_of(advantage, **rest):
    return load_algorithm("custom", {**CUSTOM, "advantage": advantage, **rest})[1]


def inputs_of(rewards, groups, lengths=None, **rest):
    """Each response of its length behind a prompt of two tokens."""
    lengths = lengths or [2] * len(rewards)
    mask = torch.zeros(len(rewards), 2 + max(lengths) + 1)
    for i, size in enumerate(lengths):
        mask[i, 2 : 2 + size] = 1
    return AdvantageInputs(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), mask, **rest)


def per_response(found, inputs):
    """The one advantage of each response; fails unless it is the same at each token, and 0 elsewhere."""
    mask = inputs.response_mask > 0
    assert bool((found.advantages[~mask] == 0).all())
    out = []
    for row, own in zip(found.advantages, mask, strict=True):
        values = row[own]
        assert bool((values == values[0]).all())
        out.append(float(values[0]))
    return out


def solve(advantage, rewards, groups, **rest):
    inputs = inputs_of(rewards, groups, **rest)
    return per_response(compute_advantages(parts_of(advantage), inputs), inputs)


def batches():
    """(rewards, groups, lengths): groups of 2 to 5 in random order; rewards that often tie, as verifiers' do."""
    rewards = st.one_of(st.sampled_from([0.0, 1.0, 0.1, -1.0]), st.floats(-5, 5, allow_nan=False, width=32))

    @st.composite
    def build(draw):
        sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
        groups = draw(st.permutations([g * 10 + 3 for g, size in enumerate(sizes) for _ in range(size)]))
        num = len(groups)
        values = draw(st.lists(rewards, min_size=num, max_size=num))
        return values, list(groups), draw(st.lists(st.integers(1, 6), min_size=num, max_size=num))

    return build()
