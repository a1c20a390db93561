"""A second opinion in training: another verifier grades a seeded share of responses again, off the reward path.

It changes no reward and no random number of the run. A thread of its own grades while the policy is updated, and the
step is recorded after that, so that equal runs write equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from verizero.pipeline.config.scoring import SecondOpinionConfig
from verizero.pipeline.scoring.early_grading import attempt_in
from verizero.pipeline.scoring.score import Grader
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Group, Verdict

Opinions = Mapping[int, Verdict]
"""Index of a group's member -> verdict of the second verifier."""
NUM_SEEDS = 1 << 63
"""Derived seeds are below this number."""


class SecondOpinions:
    """Grades a share of the responses again with another verifier."""

    def __init__(self, config: SecondOpinionConfig, grader: Grader, seed: int) -> None:
        self.config = config
        self.grader = grader
        self.seed = seed
        self._thread = ThreadPoolExecutor(1, "second-opinion")
        self._pending: list[Future[list[Opinions]]] = []

    def ask(self, step: int, groups: Sequence[Group], of_rank: Sequence[int]) -> None:
        """Begin to grade a share of this rank's groups, which have the indices `of_rank`, in RL step `step`."""
        self._pending.append(self._thread.submit(self._grade, step, groups, of_rank))

    def take(self) -> list[Opinions]:
        """Wait for the opinions on all groups given to `ask` since the last call, and return them in order."""
        pending, self._pending = self._pending, []
        # The thread works in the order of the calls of `ask`; a grader's exception is raised here.
        return [opinions for future in pending for opinions in future.result()]

    def chosen(self, step: int, group: Group) -> list[int]:
        """Return the members that get an opinion: those whose own grader did not fail, each with the chance `share`.

        Responses without an answer are among them: a verifier may be wrong to find none.
        """
        domains, prompt = self.config.domains, group.prompt
        if domains is not None and prompt.domain not in domains:
            return []
        # The seed names the response, so the choice does not depend on order, engine or earlier steps.
        below = self.config.share * NUM_SEEDS
        return [
            i
            for i, m in enumerate(group.members)
            if not m.verdict.is_left_out
            and derive(self.seed, "second opinion", step, prompt.id, m.rollout.sample) < below
        ]

    def close(self) -> None:
        """End the thread; opinions not taken are lost."""
        self._thread.shutdown(cancel_futures=True)

    def _grade(self, step: int, groups: Sequence[Group], of_rank: Sequence[int]) -> list[Opinions]:
        members = [(g, i) for g in of_rank for i in self.chosen(step, groups[g])]
        rollouts = [groups[g].members[i].rollout for g, i in members]
        attempts = [attempt_in(groups[g].prompt, r) for (g, _), r in zip(members, rollouts, strict=True)]
        opinions: list[dict[int, Verdict]] = [{} for _ in groups]
        for (g, i), verdict in zip(members, self.grader.score(attempts) if attempts else [], strict=True):
            opinions[g][i] = verdict
        return list(opinions)


def merged(by_rank: Sequence[Sequence[Opinions]]) -> list[Opinions]:
    """Return all ranks' opinions on each group; each rank has some members' opinions."""
    return [{i: v for opinions in of_group for i, v in opinions.items()} for of_group in zip(*by_rank, strict=True)]


def disagree(first: Verdict, second: Verdict) -> bool:
    """True if exactly one of two verdicts earns the full reward. False if a grader failed."""
    if first.is_left_out or second.is_left_out:
        return False
    return first.is_correct != second.is_correct
