"""A second opinion in training: a seeded share of verdicts is given again by another verifier, off the reward path.

It changes no reward and no random number of the run. It is given in a thread of its own while the policy is updated,
and waited for before the step is written down, so that equal runs write equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pipeline.config.scoring import SecondOpinionConfig
from pipeline.scoring.score import Bound
from pipeline.seeds import derive
from pipeline.types import Attempt, Group, Verdict

Opinions = Mapping[int, Verdict]
"""Of one group: index of the member -> what the second verifier says."""
RANGE = 1 << 63
"""Seeds are below it."""


class SecondOpinions:
    """Asks `bound` about a share of what was graded."""

    def __init__(self, config: SecondOpinionConfig, bound: Bound, seed: int) -> None:
        self.config = config
        self.bound = bound
        self.seed = seed
        self._thread = ThreadPoolExecutor(1, "second-opinion")
        self._asked: list[Future[list[dict[int, Verdict]]]] = []

    def ask(self, step: int, groups: Sequence[Group]) -> None:
        """Begin to give opinions on the groups of RL step `step`."""
        self._asked.append(self._thread.submit(self._give, step, groups))

    def take(self) -> list[Opinions]:
        """The opinions on each group asked about since the last call, in order; waits for them."""
        asked, self._asked = self._asked, []
        return [opinions for future in asked for opinions in future.result()]

    def chosen(self, step: int, group: Group) -> list[int]:
        """Members that get an opinion: those whose own grader did not fail, each with the chance `share`.

        Responses without an answer are among them: that a verifier found none is an error as likely as any.
        """
        domains, prompt = self.config.domains, group.prompt
        if domains is not None and prompt.domain not in domains:
            return []
        below = self.config.share * RANGE
        return [
            i
            for i, m in enumerate(group.members)
            if not m.verdict.is_infrastructure
            and derive(self.seed, "second opinion", step, prompt.id, m.rollout.sample) < below
        ]

    def close(self) -> None:
        """End the thread; opinions not taken are lost."""
        self._thread.shutdown(cancel_futures=True)

    def _give(self, step: int, groups: Sequence[Group]) -> list[dict[int, Verdict]]:
        places = [(g, i) for g, group in enumerate(groups) for i in self.chosen(step, group)]
        attempts = []
        for g, i in places:
            prompt, rollout = groups[g].prompt, groups[g].members[i].rollout
            cut = rollout.finish_reason == "length"
            attempts.append(Attempt(rollout.text, prompt.reference, prompt.question, cut))
        given: list[dict[int, Verdict]] = [{} for _ in groups]
        for (g, i), verdict in zip(places, self.bound.score(attempts) if attempts else [], strict=True):
            given[g][i] = verdict
        return given


def disagree(first: Verdict, second: Verdict) -> bool:
    """True if exactly one of two verdicts earns the full reward; a grader that failed disagrees with nobody."""
    if first.is_infrastructure or second.is_infrastructure:
        return False
    return first.is_correct != second.is_correct
