"""`verizero.open`: the steps of reinforcement learning as calls, for a loop of one's own.

The calls are those of the built-in loop (`loop/rounds.py`, `loop/batch.py`, `stages/rl.py`): a loop of just these
calls ends with the bytes of `verizero.train`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import is_
from pathlib import Path
from typing import Any, Literal

from verizero.pipeline.api.given import Data
from verizero.pipeline.api.recipe import refuse_ranks
from verizero.pipeline.api.train import asked_run
from verizero.pipeline.api.trained import TrainedRun
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import Resume, run_folder
from verizero.pipeline.errors import ConfigError, RunError, Stopped
from verizero.pipeline.loop import batch as batches
from verizero.pipeline.loop import rounds
from verizero.pipeline.loop.batch import Batch
from verizero.pipeline.loop.phases import Generated
from verizero.pipeline.loop.rollback import RolledBack
from verizero.pipeline.models.load import quiet as without_bars
from verizero.pipeline.report.row_types import Numbers
from verizero.pipeline.run.callbacks import Callback, load_callbacks
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save
from verizero.pipeline.run.session import Session
from verizero.pipeline.run.state import Item, schedule
from verizero.pipeline.scoring.select import classify_group
from verizero.pipeline.stages.rl import rl_phases
from verizero.pipeline.types import Group, Prompt, ScoredRollout, StepMetrics
from verizero.pipeline.whole_run import begin_item, end_item, finish, run_item

KIND = "rl"
"""Kind of the stages whose steps are the user's."""
Place = Literal["the step's begin", "prompts", "responses", "groups", "an update", "published weights"]


@contextmanager
def open(
    model: str | Path | dict[str, Any],
    data: Data | None = None,
    *,
    resume: Resume = "auto",
    quiet: bool = False,
    callbacks: Sequence[str | Callback] = (),
    **arguments: Any,
) -> Iterator[OwnLoop]:
    """Open a run whose steps of RL are called one by one; model, data and all other arguments are those of `train`.

    Stages before those of RL are trained when the block begins, and so is the evaluation before training; evaluations
    between rounds and later stages follow the step after which they are due. When the block ends, model, summary and
    report are written as by `train`. A block that is left before `done`, at the end of a step, ends the run as
    a callback's `vz.STOP` does. Opened again with the same arguments (resume="auto"), a run continues with the step
    after its last checkpoint. callbacks, quiet, arguments: as for `train`.

    Raises: ConfigError, DataError before training, also for a recipe without a stage of RL; else what a run raises.
    """
    with asked_run(model, data, arguments, quiet) as asked:
        config = load_recipe(asked.path, asked.overrides)
        refuse_ranks(config, asked.path)
        if not any(stage.kind == KIND for stage in config.stages):
            raise ConfigError(
                f"vz.open gives the steps of stages of kind rl, and the recipe's are {', '.join(config.stage_names)}; "
                "use vz.train"
            )
        base, folder = asked.path.resolve().parent, run_folder(config)
        loaded = load_callbacks(config.callbacks, base, callbacks)
        without_bars()
        with open_run(config, base, folder, resume, asked.progress) as session:
            session.recorder.callbacks = loaded
            loop = OwnLoop(session)
            yield loop
            loop._close()


class OwnLoop:
    """The steps of a run's stages of RL, each of them calls in this order; made by `vz.open`.

    next_prompts, generate, verify, select and update may be called several times in a step, and select may be left out.
    A call out of order raises RunError, which names the call that is missing.
    """

    def __init__(self, session: Session) -> None:
        """Do what comes before the first step. session: an open run. Raises: what a run raises."""
        self._session = session
        self._item: Item | None = None
        self._later: Sequence[Item] = ()
        self._phases = rl_phases(session)
        self._place: Place = "the step's begin"
        self._batch = Batch([])
        self._prompts: list[Prompt] = []
        self._generated: Generated | None = None
        self._verified: list[Group] = []
        self._unselected: list[Group] = []
        self._began_s = 0.0
        self._advance()

    @property
    def done(self) -> bool:
        """True if no step is left: all are done, the tokens of the recipe are spent, or a callback ended the run."""
        return self._item is None

    @property
    def stage(self) -> str:
        """Name of the stage that the next step belongs to; of the last one after the end."""
        return self._session.state.stage.name

    @property
    def round(self) -> int:
        """The round of the next step, from 1; 0 after the end."""
        return 0 if self._item is None else self._item.round

    @property
    def step(self) -> int:
        """The number of RL steps that are done, over all rounds and stages."""
        return self._session.state.rl_step

    @property
    def num_missing(self) -> int:
        """The number of groups that `select` has not found yet for this step's batch."""
        return max(0, self._session.setup.rounds.prompts_per_step - len(self._batch.groups))

    @property
    def run(self) -> TrainedRun:
        """The run by its folder, as `vz.train` returns it. Raises: RunError if the folder holds none."""
        return TrainedRun(self._session.run.folder)

    def next_prompts(self, count: int | None = None) -> list[Prompt]:
        """Return the prompts to sample next, in the recipe's order; empty if the batch has all its groups.

        count: how many; None: as many as are likely to fill the batch with groups that `select` keeps. Called again
        in the same step, it returns those of a refill, at most `rl.select.max_refills` times.
        Raises: RunError out of order; ConfigError for a count below 1, or one given where batches are in flight.
        """
        self._require("next_prompts()", "the step's begin", "groups")
        if self._place == "the step's begin":
            self._began_s = time.perf_counter()
        workers = self._session.workers
        wanted = batches.num_prompts_wanted(workers, self._session.setup, self._session.state, self._batch)
        if count is not None and (count < 1 or workers.rollouts.in_flight):
            raise ConfigError(
                f"next_prompts({count}): give at least 1, and none where rollout.max_staleness lets batches be "
                "generated ahead, whose prompts come next"
            )
        self._prompts = [] if wanted is None else self._phases.next_prompts(count or wanted)
        self._place = "prompts" if self._prompts else "groups"
        return list(self._prompts)

    def generate(self, prompts: Sequence[Prompt]) -> Generated:
        """Return the policy's responses to the prompts, `rl.group_size` to each; its `rollouts` has them in order.

        prompts: those of `next_prompts`, or others of your choice; two different ones have different ids.
        Raises: RunError out of order, for two of one id, or for others where batches are generated ahead; EngineError.
        """
        if not prompts and self._place == "groups":
            return Generated([], None)
        self._require("generate()", "prompts")
        if self._session.workers.rollouts.in_flight and [p.id for p in prompts] != [p.id for p in self._prompts]:
            raise RunError("generate(): these responses are under way already; give the prompts of next_prompts()")
        by_id = {p.id: p for p in prompts}
        if other := next((p.id for p in prompts if p != by_id[p.id]), ""):
            raise RunError(f"generate(): two prompts have the id {other!r}, by which responses find theirs; rename one")
        self._prompts = list(prompts)
        self._generated = self._phases.generate(self._prompts, len(self._batch.tallies))
        self._place = "responses"
        return self._generated

    def verify(self, generated: Generated) -> list[Group]:
        """Return the graded responses, a group to each prompt: its members have rollout, verdict and reward.

        generated: what the last `generate` returned. A response whose grader failed has the reward None, never 0.
        Raises: RunError out of order, or for what the last `generate` did not return.
        """
        if not generated.rollouts and self._place == "groups":
            return []
        self._require("verify()", "responses")
        if generated is not self._generated:
            raise RunError("verify() was given something else than the last generate() returned; give that")
        groups, tally = self._phases.verify(self._prompts, generated)
        batches.add_sampled(self._batch, groups, tally)
        self._verified, self._place = groups, "groups"
        self._unselected += groups
        return list(groups)

    def with_rewards(
        self, groups: Sequence[Group], reward: Callable[[Prompt, ScoredRollout], float | None]
    ) -> list[Group]:
        """Return the groups with rewards of your own: reward(prompt, member), a finite number, or None for no reward.

        It is called for responses that have a reward. Others, of which a grader failed or abstained, keep having none.
        Raises: RunError for another value, and where the algorithm's baseline is the reward of a greedy response.
        """
        changed = [_rewarded(group, reward) for group in groups]
        self._note(changed)
        return changed

    def select(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups that this step trains on: those left over from the last step first.

        Given just what `verify` returned, it fills the batch as the recipe says: where groups were dropped, further
        prompts are sampled, graded and selected. Given other groups, or other rewards, it samples nothing more; call
        next_prompts() again for a refill, and select([]) for all that was found. Left out, what `update` is given is
        the choice.
        Raises: RunError out of order.
        """
        self._require("select()", "groups")
        is_as_verified = len(groups) == len(self._verified) > 0 and all(map(is_, groups, self._verified))
        self._select(groups)
        while is_as_verified and (prompts := self.next_prompts()):
            self._select(self.verify(self.generate(prompts)))
        return self._batch.groups[: self._session.setup.rounds.prompts_per_step]

    def update(self, groups: Sequence[Group]) -> StepMetrics:
        """Train the policy on the groups by the recipe's algorithm; return the metrics, empty if nothing was trained.

        Nothing is trained on no groups, or by a gradient that is not finite.
        Each call is one update of its own, and counts as one for a learning rate that falls with their number.
        Raises: RunError out of order, for what is no group, or after 3 refused updates in a row.
        """
        self._require("update()", "groups", "an update", "published weights")
        for group in groups:
            if not isinstance(group, Group):
                raise RunError(f"update() was given {group!r:.80}; give groups, as verify() and select() return them")
        session, trained = self._session, list(groups)
        self._note(trained)
        if self._place == "groups":
            for group in self._unselected:
                self._batch.counts[classify_group(group)] += 1
            batches.end_batch(session.setup, session.state, self._batch)
            self._batch.groups = trained
            assert self._item is not None
            rounds.start_later(session, self._item, self._batch)
        else:
            self._batch.groups = [*self._batch.groups, *trained]
        metrics = rounds.train_on(session, self._phases, self._batch, trained)
        self._place = "an update"
        return dict(metrics or {})

    def publish(self) -> None:
        """Give the engine new weights, if there are some. Raises: RunError out of order; EngineError if it fails."""
        self._require("publish()", "an update", "published weights")
        rounds.publish_if_due(self._session, self._phases, self._batch)
        self._place = "published weights"

    def end_step(self) -> Numbers:
        """End the step: its metrics and samples are written, callbacks called, and a checkpoint where one is due.

        After the last step of a round it is evaluated, as the recipe says. Return the step's metrics.
        Raises: RunError out of order; GradersFailed, Collapsed as in `train`.
        """
        self._require("end_step()", "published weights")
        session, item = self._session, self._item
        assert item is not None
        session.recorder.add_seconds("total", time.perf_counter() - self._began_s)
        row = rounds.end_step(session, item, self._batch)
        self._place, self._verified, self._unselected = "the step's begin", [], []
        try:
            rounds.after_step(session, item, row, self._batch.sampled)
            if not self._begin_step(item, self._later):
                rounds.close_round(session, item)
                end_item(session, item, self._later)
                self._advance()
        except RolledBack:
            self._advance()
        except Stopped:
            self._item = None
        return row.metrics

    def _advance(self) -> None:
        """Do what is due before the next step of RL, and prepare that step."""
        session, self._item = self._session, None
        try:
            while items := session.state.items_left(schedule(session.run.recipe)):
                item, *later = items
                if item.kind != KIND:
                    run_item(session, item, later)
                    continue
                begin_item(session, item)
                self._phases = rl_phases(session)
                if rounds.open_round(session, item, self._phases):
                    if self._begin_step(item, later):
                        return
                    rounds.close_round(session, item)
                end_item(session, item, later)
        except Stopped:
            return

    def _begin_step(self, item: Item, later: Sequence[Item]) -> bool:
        """Begin the next step of the round, if one is due."""
        if not rounds.begin_step(self._session, item):
            return False
        self._item, self._later = item, later
        self._batch = batches.begin_batch(self._session.setup, self._session.state)
        return True

    def _select(self, groups: Sequence[Group]) -> None:
        session = self._session
        self._note(groups)
        passed = {_rollout_of(g) for g in groups}
        self._unselected = [g for g in self._unselected if _rollout_of(g) not in passed]
        batches.add_selected(session.setup, session.state, self._batch, groups, *self._phases.select(groups))

    def _note(self, groups: Sequence[Group]) -> None:
        """Keep changed groups in place of those that were sampled: what is written shows the rewards that trained."""
        changed = {_rollout_of(g): g for g in groups if g.members}
        self._batch.sampled = [changed.get(_rollout_of(g), g) for g in self._batch.sampled]

    def _require(self, call: str, *places: Place) -> None:
        """Raise RunError unless the step is at one of the places that a call needs."""
        if self._item is None:
            raise RunError(f"{call}: the run is done; loop while not s.done")
        if self._place not in places:
            raise RunError(f"{call} was called too early; call {MISSING[self._place]} first")

    def _close(self) -> None:
        """End the run: of a loop that was left early, as a stopped one."""
        session = self._session
        if self._item is not None:
            if self._place != "the step's begin":
                raise RunError(
                    f"the block was left within {session.recorder.step_label}; call {MISSING[self._place]} first, "
                    "up to end_step(), or the step is done again"
                )
            if not session.state.stage.lost_steps:
                save(session)
            callbacks = session.recorder.callbacks
            callbacks.stopped_by = (
                "the block was left before its last step; the same program continues with the next one"
            )
            callbacks.stopped_at = f"{self.stage} step {self.step}"
        finish(session)


MISSING: dict[Place, str] = {
    "the step's begin": "next_prompts()",
    "prompts": "generate(prompts)",
    "responses": "verify(generated)",
    "groups": "update(groups), with [] for a step that trains nothing",
    "an update": "publish()",
    "published weights": "end_step()",
}
"""The place of a step -> the call that leads on."""


def _rollout_of(group: Group) -> int:
    """Return what tells a group of a step from others, also after its rewards were changed."""
    return id(group.members[0].rollout) if group.members else id(group)


def _rewarded(group: Group, reward: Callable[[Prompt, ScoredRollout], float | None]) -> Group:
    if group.greedy_reward is not None:
        raise RunError(
            "with_rewards(): the algorithm's baseline is the reward of a greedy response, which stays as it is; take "
            "another algorithm, e.g. grpo"
        )
    members = []
    for member in group.members:
        value = None if member.reward is None else reward(group.prompt, member)
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise RunError(f"with_rewards(): the reward is {value!r:.60}; return a finite number, or None for none")
        members.append(replace(member, reward=None if value is None else float(value), components=()))
    return replace(group, members=tuple(members))
