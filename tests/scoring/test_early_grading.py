"""Grading while responses are still being written: the same verdicts, each response graded once, failures after all."""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.processes import until
from tests.scoring.fakes import Scripted, prompts_of, rollout, scorer_of
from verizero.pipeline.config.scoring import ComponentConfig, ScoringConfig
from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.types import Attempt, EndedResponse, Prompt, Rollout, Verdict

TABLE = ScoringConfig(no_answer=-0.1, timeout=-0.2, truncated=-0.5, retries=1)
SAID = ["graded 1.0", "graded 0.25", "no_answer", "timeout", "verifier_error", "flaky 1", "graded 0.5"]


def ended(rollouts: Sequence[Rollout], prompts: dict[str, Prompt], places: Sequence[int]) -> list[EndedResponse]:
    return [
        EndedResponse(i, prompts[rollouts[i].prompt_id], rollouts[i].text, rollouts[i].finish_reason) for i in places
    ]


def sample(seed: int, num: int = 60) -> list[Rollout]:
    rng = random.Random(seed)
    return [
        rollout(rng.choice(SAID), f"p{rng.randrange(2)}", i, rng.choice(["stop", "stop", "length"])) for i in range(num)
    ]


class Slow(Scripted):
    """Begins to grade only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.begun = threading.Event()

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        self.begun.set()
        assert self.may.wait(60)
        return super().score(attempts)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_verdicts_and_rewards_are_those_of_grading_at_the_end(workers: int, share: float) -> None:
    """With components, duplicates, failures and responses that were cut; whatever share ended early."""
    prompts, given = prompts_of("a", "b"), sample(workers)
    config = TABLE.model_copy(
        update={"workers": workers, "components": (ComponentConfig(verifier={"name": "length"}, weight=0.5),)}
    )

    def scorer() -> tuple[Scorer, list[Scripted]]:
        own, further = {"a": Scripted(), "b": Scripted()}, Scripted()
        return Scorer(config, own, [further]), [*own.values(), further]

    late, _ = scorer()
    wanted, plain = late.score(prompts, given, with_components=True)
    other, fakes = scorer()
    early = other.grade_early(with_components=True)
    order = random.Random(0).sample(range(len(given)), round(share * len(given)))
    for at in range(0, len(order), 7):
        offset = min(order[at : at + 7])  # places may begin anywhere
        early.add([replace(e, index=e.index - offset) for e in ended(given, prompts, order[at : at + 7])], offset)
    scored, tally = other.score(prompts, given, with_components=True, early=early)
    # a flaky response fails as often as equal ones were asked before it: how they fall into batches decides
    fixed = [i for i, r in enumerate(given) if r.text != "flaky 1"]
    assert [scored[i] for i in fixed] == [wanted[i] for i in fixed]
    assert [s.rollout for s in scored] == given
    assert tally.total == plain.total
    unflawed = [r for r in given if r.text.startswith(("graded", "no", "time"))]
    for r in unflawed:
        mine = [a for a in fakes[int(r.prompt_id[1])].asked if a.response == r.text]
        same = [x for x in unflawed if (x.text, x.prompt_id) == (r.text, r.prompt_id)]
        assert len(mine) == len(same), "each is graded once"
    other.close()
    late.close()


def test_grading_goes_on_beside_and_what_ends_meanwhile_is_graded_together() -> None:
    slow = Slow()
    scorer = Scorer(TABLE, {"a": slow})
    prompts, given = prompts_of("a"), [rollout(f"graded {i / 10}", "p0", i) for i in range(10)]
    early = scorer.grade_early()
    early.add(ended(given, prompts, [3]))
    assert slow.begun.wait(60)
    for i in (7, 1, 2, 9):  # the caller is not held up while the first is graded
        early.add(ended(given, prompts, [i]))
    slow.may.set()
    scored, tally = scorer.score(prompts, given, early=early)
    assert slow.batches == [1, 4, 5], "the first, those that ended while it was graded, and the rest at the end"
    assert [s.reward for s in scored] == [i / 10 for i in range(10)]
    assert all("grade-early" in t or "MainThread" in t for t in slow.threads)
    assert len(slow.threads) == 2
    assert tally.busy_s > 0
    scorer.close()


@pytest.mark.parametrize("change", ["text", "finish", "prompt", "reference", "fewer"])
def test_what_is_scored_is_what_is_there_in_the_end(change: str) -> None:
    """A verdict on another response, or against another reference, is not taken."""
    scorer, fakes = scorer_of(TABLE, "a", "b")
    prompts = prompts_of("a", "b")
    given = [rollout("graded 1", "p0", 0), rollout("graded 0.5", "p0", 1)]
    early = scorer.grade_early()
    early.add(ended(given, prompts, [0, 1]))
    if change == "text":
        given[1] = rollout("graded 0.75", "p0", 1)
    elif change == "finish":
        given[1] = rollout("graded 0.5", "p0", 1, "length")
    elif change == "prompt":
        given[1] = rollout("graded 0.5", "p1", 1)
    elif change == "reference":
        prompts = prompts_of("a", "b", reference="y")
    else:
        del given[1]
    scored, _ = scorer.score(prompts, given, early=early)
    wanted, _ = scorer_of(TABLE, "a", "b")[0].score(prompts, given)
    assert scored == wanted
    assert sum(len(f.asked) for f in fakes.values()) == {"reference": 4, "fewer": 2}.get(change, 3)
    scorer.close()


def test_failed_graders_are_asked_again_when_all_is_there() -> None:
    scorer, fakes = scorer_of(TABLE)
    prompts, given = prompts_of("a"), [rollout("flaky 1", "p0", 0), rollout("sandbox_error", "p0", 1)]
    early = scorer.grade_early()
    early.add(ended(given, prompts, [0, 1]))
    scored, tally = scorer.score(prompts, given, early=early)
    assert [s.reward for s in scored] == [1.0, None]
    assert tally.retried == 2
    assert fakes["a"].batches == [2, 2]
    scorer.close()


def test_an_exception_beside_ends_the_scoring_and_is_not_lost() -> None:
    class Broken:
        def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
            raise RuntimeError("no such grader")

    scorer = Scorer(TABLE, {"a": Broken()})
    prompts, given = prompts_of("a"), [rollout("graded 1", "p0", 0)]
    early = scorer.grade_early()
    early.add(ended(given, prompts, [0]))
    with pytest.raises(RuntimeError, match="no such grader"):
        scorer.score(prompts, given, early=early)
    scorer.close()


def test_closing_leaves_what_has_not_begun() -> None:
    slow = Slow()
    scorer = Scorer(TABLE, {"a": slow})
    prompts, given = prompts_of("a"), [rollout("graded 1", "p0", i) for i in range(5)]
    early = scorer.grade_early()
    early.add(ended(given, prompts, [0]))
    assert slow.begun.wait(60)
    early.add(ended(given, prompts, [1, 2, 3, 4]))
    closing = threading.Thread(target=scorer.close)
    closing.start()
    until(early._rounds[-1].cancelled, "the end of what has not begun")
    slow.may.set()
    closing.join()
    assert slow.batches == [1]
