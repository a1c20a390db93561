"""The prefix cache: a trie of tokens against a slow double, and logits of what it leaves to compute."""

from __future__ import annotations

import random

import pytest
import torch

from tests.models.decoder.test_decoder import SMALL, expect
from tests.models.families import FAST, VOCAB, tiny
from verizero.pipeline.models.decoder.cache import Cache
from verizero.pipeline.models.decoder.decoder import ON_CPU, ON_GPU, Decoder, Habits
from verizero.pipeline.models.decoder.prefix import PrefixCache, biased_attention

Ids = tuple[int, ...]


def sequences_of(rng: random.Random, known: list[Ids], num: int) -> list[Ids]:
    """Random sequences, most of which continue a beginning of one that came before."""
    out = []
    for _ in range(num):
        start = rng.choice([*known, ()])
        out.append((*start[: rng.randint(0, len(start))], *rng.choices(range(2, 6), k=rng.randint(1, 4))))
    return out


def prefixes(sequences: list[Ids]) -> set[Ids]:
    return {ids[:n] for ids in sequences for n in range(1, len(ids) + 1)}


def test_what_is_held_is_every_beginning_until_the_oldest_go() -> None:
    """Each held sequence reads back the numbers that were written for its tokens, also after others have gone."""
    for seed in range(40):
        rng = random.Random(seed)
        most = rng.choice([30, 60, 1000])
        prefix = PrefixCache(torch.empty(1, 0, 1, 1, dtype=torch.float64))
        prefix.allow(most)
        numbers: dict[Ids, float] = {}
        known: list[Ids] = []
        last_used: dict[Ids, int] = {}
        for call in range(12):
            entered = sequences_of(rng, known[-6:], 3)
            there = {ids for ids in last_used if len(prefix.find(ids)) == len(ids)}
            assert there == prefixes(list(there)), "what stays is a trie: with a sequence all its beginnings are there"
            for ids, path in zip(entered, prefix.enter(entered), strict=True):
                assert path.num_held == max([n for n in range(len(ids) + 1) if ids[:n] in there or n == 0])
                for n in range(path.num_held, len(ids)):
                    numbers[ids[: n + 1]] = rng.random()
                    prefix.keys[0, path.places[n]] = numbers[ids[: n + 1]]
                there |= prefixes([ids])
            last_used |= dict.fromkeys(prefixes(entered), call)
            known += entered
            held = {ids for ids in last_used if len(prefix.find(ids)) == len(ids)}
            assert len(held) == len(prefix) <= prefix.keys.shape[1] <= most
            assert prefixes(entered) <= held
            gone = set(last_used) - held
            assert max([last_used[ids] for ids in gone], default=-1) <= min(last_used[ids] for ids in held)
            for ids in held:
                values = [float(prefix.keys[0, place]) for place in prefix.find(ids)]
                assert values == [numbers[ids[: n + 1]] for n in range(len(ids))]
            last_used = {ids: last_used[ids] for ids in held}


def grown(rng: random.Random, rows: list[list[int]]) -> list[list[int]]:
    """Rows that each continue, fork from or repeat an earlier one; all are different, in any order."""
    out = []
    for row in rows:
        begin = row if rng.random() < 0.7 else row[: rng.randint(1, len(row))]
        out.append([*begin, *rng.choices(range(2, VOCAB), k=rng.randint(1, 3))])
    out.append(rng.choice(rows))
    return [list(row) for row in dict.fromkeys(map(tuple, out))]


@pytest.mark.parametrize("habits", [ON_CPU, ON_GPU, SMALL])
@pytest.mark.parametrize("name", list(FAST))
def test_logits_after_what_is_held_are_those_of_the_whole_row(name: str, habits: Habits) -> None:
    """Whatever the rows share, also in one call; with prompts that rows share and without, and steps between."""
    rng, model = random.Random(7), tiny(name)
    decoder = Decoder(model, habits)
    prefix = decoder.prefix_cache()
    rows = [[3, 4, 5], [3, 4, 6, 7], [3, 4, 6, 8], [9]]
    num_held = 0
    for call in range(5):
        repeats = [2 + call % 2] * len(rows)
        owners = [row for row, n in zip(rows, repeats, strict=True) for _ in range(n)]
        cache = decoder.open([len(row) for row in rows], repeats, 64, 4)
        prefix.allow(cache.size)
        paths = prefix.enter(rows)
        num_held += sum(path.num_held for path in paths)
        logits = decoder.admit(cache, rows, repeats, range(len(owners)), (prefix, paths))
        cache.resize(len(owners))
        expect(model, owners, logits)
        written = [list(row) for row in owners]
        for _ in range(2):
            tokens = torch.tensor([rng.randint(2, VOCAB - 1) for _ in owners])
            written = [[*row, token] for row, token in zip(written, tokens.tolist(), strict=True)]
            expect(model, written, decoder.step(tokens, cache))
        prefix.keep(cache, [(i, row, len(owners[i])) for i, row in enumerate(written)])
        for row in written:
            assert len(prefix.find(row)) == len(row)
        rows = grown(rng, rng.sample(written, 5))
    assert num_held > 40


def test_a_row_whose_prompt_has_gone_is_not_kept() -> None:
    prefix = PrefixCache(torch.empty(1, 0, 1, 1))
    prefix.allow(4)
    cache = Cache(torch.ones(1, 2, 1, 8, 1), torch.ones(1, 2, 1, 8, 1))
    cache.admit([3], [1], [0])
    prefix.enter([(2, 3, 4)])
    prefix.enter([(5, 6)])  # for which the first one goes
    prefix.keep(cache, [(0, (2, 3, 4), 2)])
    assert prefix.find((2, 3, 4)) == []
    assert len(prefix.find((5, 6))) == 2


def test_repeated_keys_are_those_that_heads_share() -> None:
    queries, keys, values = torch.randn(2, 6, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    bias = torch.randn(2, 1, 4, 5)
    on_gpu, on_cpu = (biased_attention(queries, keys, values, bias, where) for where in (True, False))
    torch.testing.assert_close(on_gpu, on_cpu)
    keys, values = keys.repeat_interleave(2, 1), values.repeat_interleave(2, 1)
    shares = (queries @ keys.transpose(2, 3) / 8**0.5 + bias).softmax(-1)
    torch.testing.assert_close(on_gpu, shares @ values)
