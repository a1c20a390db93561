"""Later turns of episodes in the embedded engine: computed from where they are new, and equal to whole prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tests.models.families import scatter, tiny
from tests.rollout.test_play import EOS as END
from tests.rollout.test_play import Counting, Noted, episodes_of, ids_of, played
from tests.rollout.test_torch_engine import EOS, same
from verizero.pipeline.errors import EngineError
from verizero.pipeline.loop.episode_metrics import episode_metrics
from verizero.pipeline.rollout.engine import Completion, Request, Sampling
from verizero.pipeline.rollout.torch_engine import TorchEngine

Ids = tuple[int, ...]
GROUPS = [(3, 4, 6, 7), (3, 4, 8), (9, 10, 11, 12, 13)]
SIZE = 4
SAMPLING = Sampling(5, 1.0)


def engine_of(name: str = "qwen2 tied", max_rows: int = 1024) -> TorchEngine:
    engine = TorchEngine(tiny(name), EOS, 0, max_rows)
    engine.publish(0)
    return engine


def requests_of(histories: Sequence[Ids], turn: int, keyed: bool = True) -> list[Request]:
    by_ids: dict[Ids, list[int]] = {}
    for i, ids in enumerate(histories):
        by_ids.setdefault(ids, []).append(i)
    return [
        Request(ids, tuple(1000 * turn + i for i in some), tuple(some) if keyed else ()) for ids, some in by_ids.items()
    ]


def turns(engine: TorchEngine, num: int, keyed: bool = True) -> list[tuple[list[Request], list[list[Completion]]]]:
    """Requests and answers of `num` turns of groups of episodes, some of which fork from an earlier turn."""
    rng = random.Random(1)
    histories = [ids for ids in GROUPS for _ in range(SIZE)]
    calls = []
    for turn in range(num):
        requests = requests_of(histories, turn, keyed)
        answers = engine.generate(requests, SAMPLING)
        calls.append((requests, answers))
        for request, completions in zip(requests, answers, strict=True):
            for seed, completion in zip(request.seeds, completions, strict=True):
                ids = (*request.prompt_ids, *completion.token_ids)
                begin = ids if rng.random() < 0.8 else ids[: rng.randint(2, len(ids) - 1)]
                histories[seed % 1000] = (*begin, *rng.choices(range(2, 20), k=rng.randint(1, 4)))
    return calls


def num_new(calls: Sequence[tuple[list[Request], list[list[Completion]]]]) -> list[int]:
    """The tokens of each call's prompts that no row had before; the last token of a row is drawn and not computed."""
    seen: set[Ids] = set()
    counts = []
    for requests, answers in calls:
        prompts = {r.prompt_ids[:n] for r in requests for n in range(1, len(r.prompt_ids) + 1)}
        again = sum(r.prompt_ids in seen for r in requests)  # its last token, for what follows
        longer = {a for a in prompts for r in requests if len(r.prompt_ids) > len(a) and r.prompt_ids[: len(a)] == a}
        again += sum(r.prompt_ids in longer and r.prompt_ids not in seen for r in requests)
        counts.append(len(prompts - seen) + again)
        rows = [(*r.prompt_ids, *c.token_ids[:-1]) for r, some in zip(requests, answers, strict=True) for c in some]
        seen |= prompts | {row[:n] for row in rows for n in range(1, len(row) + 1)}
    return counts


@pytest.mark.parametrize("name", ["qwen2 tied", "qwen3 with bias", "llama"])
@pytest.mark.parametrize("max_rows", [1024, 5])
def test_turns_are_those_of_whole_prompts_and_compute_what_is_new(name: str, max_rows: int) -> None:
    found, wanted = turns(engine_of(name, max_rows), 4), turns(engine_of(name), 4, keyed=False)
    for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
        for a, b in zip((c for some in ours for c in some), (c for some in theirs for c in some), strict=True):
            same(a, b)
    computed = [sum(c.num_prefilled or 0 for some in answers for c in some) for _, answers in found]
    asked = [sum(len(r.prompt_ids) for r in requests) for requests, _ in found]
    whole = [sum(c.num_prefilled or 0 for some in answers for c in some) for _, answers in wanted]
    if max_rows == 1024:
        assert whole == asked
        assert computed == num_new(found)
        assert sum(asked) > 2 * sum(computed)
    else:  # keys of other rows are dropped for those of five
        assert all(a < b for a, b in zip(computed[1:], asked[1:], strict=True))


def test_a_model_without_the_fast_path_computes_whole_prompts() -> None:
    for requests, answers in turns(engine_of("gpt2"), 2):
        for request, completions in zip(requests, answers, strict=True):
            assert [c.num_prefilled for c in completions] == [len(request.prompt_ids), *[0] * (len(completions) - 1)]


def test_what_was_forgotten_changes_no_bit() -> None:
    """A resumed run begins with a new engine, and one that was never killed with one that has played before."""
    used = engine_of()
    turns(used, 3)
    used.forget()
    assert turns(used, 3) == turns(engine_of(), 3)


def test_keys_of_old_weights_are_not_used() -> None:
    engine = engine_of()
    before = turns(engine, 2)
    requests = requests_of([(*r.prompt_ids, 5) for r in before[-1][0]], 2)
    scatter(engine.model, 77)
    engine.publish(1)
    answers = engine.generate(requests, SAMPLING)
    fresh = TorchEngine(engine.model, EOS, 0)
    fresh.publish(1)
    assert answers == fresh.generate(requests, SAMPLING)
    assert [some[0].num_prefilled for some in answers] != [1] * len(answers)


@pytest.mark.parametrize("max_rows", [1024, 3])
def test_turns_keep_no_more_than_the_largest_cache(max_rows: int) -> None:
    engine = engine_of(max_rows=max_rows)
    sizes = []
    open_ = engine._decoder.open

    def opened(*arguments: object) -> object:
        cache = open_(*arguments)  # type: ignore[arg-type]
        sizes.append(cache.size)  # type: ignore[union-attr]
        return cache

    engine._decoder.open = opened  # type: ignore[assignment, method-assign]
    turns(engine, 4)
    assert engine._prefix is not None
    held = engine._prefix.keys
    assert 0 < held.shape[1] <= max(sizes)
    assert torch.isfinite(held).all()


def test_single_responses_keep_nothing() -> None:
    engine = engine_of()
    turns(engine, 2, keyed=False)
    assert engine._prefix is None


def test_the_engine_forgets_what_was_before_and_counts_what_it_computes() -> None:
    """What an engine keeps of turns may change rounding, so a call that a resumed run repeats begins with nothing."""
    events: list[str] = []

    class Keeping(Noted):
        fails = False

        def forget(self) -> None:
            events.append("forget")

        def generate(self, requests: Sequence[Request], *rest: object) -> list[list[Completion]]:
            events.append("generate")
            if self.fails:
                raise EngineError("no")
            answers = super().generate(requests, *rest)  # type: ignore[arg-type]
            return [[replace(c, num_prefilled=2) for c in some] for some in answers]

    threads = ThreadPoolExecutor(1)
    engine = Keeping(lambda prompt_ids, seed: (*ids_of("one"), END), END)
    engine.calls = []
    engine.publish(7)
    (rollout,) = played(engine, episodes_of(Counting(last=3), threads))
    assert events == ["forget", *["generate"] * 3, "forget"]
    asked = [len(requests[0].prompt_ids) for requests, _ in engine.calls]
    metrics = episode_metrics([rollout])
    assert (metrics["tokens/prompted"], metrics["tokens/prefilled"]) == (sum(asked), 6)
    engine.fails, events[:] = True, []
    with pytest.raises(EngineError):
        played(engine, episodes_of(Counting(last=3), threads))
    assert events == ["forget", "generate", "forget"]
