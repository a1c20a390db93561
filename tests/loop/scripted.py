"""A stage of RL without a model: rewards and lengths come from a script, and the backend counts what it is asked."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.stages.tiny import tiny
from verizero.pipeline.loop.batch import Batch, fill_batch
from verizero.pipeline.loop.phases import Generated, Phases
from verizero.pipeline.run.algorithm import resolve_parts
from verizero.pipeline.run.session import StageSetup
from verizero.pipeline.run.state import RunState
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.stages.rl import select_groups
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, StepMetrics, Verdict

Rewards = Callable[[int], Sequence[float | None]]
"""Number of a group -> the rewards of its members."""


def group_of(number: int, rewards: Sequence[float | None], version: int = 0, length: int = 1) -> Group:
    """A graded group of responses of `length` tokens, sampled by policy `version`."""
    members = []
    for sample, reward in enumerate(rewards):
        rollout = Rollout(f"p{number}", sample, (1,), (2,) * length, (-0.5,) * length, "", "stop", version)
        verdict = Verdict("verifier_error") if reward is None else Verdict("graded", reward)
        members.append(ScoredRollout(rollout, verdict, reward))
    return Group(Prompt(f"p{number}", "?", "exact", "x"), tuple(members))


def mixed(number: int) -> list[float]:
    """The rewards of a group that teaches something: one right answer of six."""
    return [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


class CountingBackend:
    """Notes how far the reference was moved, each time."""

    def __init__(self) -> None:
        self.moves: list[float] = []

    def refresh_reference(self, alpha: float) -> None:
        self.moves.append(alpha)

    def start(self, optimizer: Any, num_steps: int) -> None:
        """Do nothing: nothing trains."""


@dataclass
class Loop:
    """The parts of a session that the loop uses, and the responses that it is given."""

    setup: StageSetup
    rewards: Rewards
    length: int
    state: RunState = field(default_factory=lambda: RunState())
    backend: CountingBackend = field(default_factory=CountingBackend)
    num_sampled: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def workers(self) -> Any:
        source = SimpleNamespace(in_flight=(), generation=SimpleNamespace(episode_setup=None))
        return SimpleNamespace(rollouts=source, backend=self.backend)

    @property
    def recorder(self) -> Any:
        return SimpleNamespace(say=self.lines.append, timed=lambda phase: nullcontext(), step_label="here")

    @property
    def session(self) -> Any:
        return SimpleNamespace(run=None, workers=self.workers, state=self.state, setup=self.setup)

    def phases(self, update: Callable[[Sequence[Group]], StepMetrics] = lambda groups: {}) -> Phases:
        """The phases: sampling and grading are scripted, selection is the loop's own."""
        return Phases(
            self._next, self._generate, self._verify, partial(select_groups, self.setup, self.recorder), update, list
        )

    def fill(self) -> Batch:
        return fill_batch(self.workers, self.setup, self.state, self.phases())

    def _next(self, count: int) -> list[Prompt]:
        first = self.num_sampled
        self.num_sampled += count
        return [Prompt(f"p{n}", "?", "exact", "x") for n in range(first, first + count)]

    def _generate(self, prompts: Sequence[Prompt], attempt: int) -> Generated:
        self.state.stage.num_tokens += len(prompts) * self.setup.rounds.group_size * self.length
        return Generated([], None)

    def _verify(self, prompts: Sequence[Prompt], generated: Generated) -> tuple[list[Group], GradingTally]:
        numbers = [int(p.id[1:]) for p in prompts]
        groups = [group_of(n, self.rewards(n), self.state.policy_version, self.length) for n in numbers]
        return groups, GradingTally({}, 0, 0.0)


def loop_of(rewards: Rewards = mixed, length: int = 1, rl: dict[str, Any] | None = None, **changes: Any) -> Loop:
    """A loop over the tiny recipe's stage of RL, with changes of its section and of others."""
    config = tiny({"stages": ["rl"], "sft": None, "rl": rl or {}, **changes}).of_stage("rl")
    parts = resolve_parts(config)
    return Loop(StageSetup(config, parts, keeps_routing=False), rewards, length)
