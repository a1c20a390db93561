"""Where a run is: all that a checkpoint must hold besides tensors, as JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from typing import Any

from pipeline.errors import CheckpointError
from pipeline.types import Group, KeptTokens, Prompt, Rollout, Routing, ScoredRollout, Verdict

RECORDS = {"kept": "ids", "routing": "experts"}
"""What rollouts have of records, and the field of each that is bytes: base64 in JSON."""


@dataclass
class Launched:
    """One batch that is generated ahead. `rollouts` is filled for a checkpoint only, with those of all ranks."""

    prompts: list[Prompt]
    step: int
    """The RL step that launched it, and its number among those of that step: they name its random numbers."""
    number: int
    temperature: float
    rollouts: list[list[Rollout]] = field(default_factory=list)
    """By kind (sampled, then greedy where a baseline needs it), prompt by prompt."""


@dataclass
class RunState:
    """The position and every number that the next step depends on."""

    num_done: int = 0
    """Items of stages done; evaluations are not counted."""
    is_evaluated: bool = False
    """The evaluation that follows them, or comes first, is done."""
    step: int = 0
    """Steps done within the next item."""
    stage: str = ""
    """Name of the stage that the run is in."""
    rl_step: int = 0
    """RL steps done, over all rounds of all stages."""
    stage_start: int = 0
    """Of them, those done before this stage."""
    policy_version: int = 0
    reference_version: int = 0
    acceptance: float = 1.0
    """Share of groups kept lately: how much to oversample."""
    evaluated_version: int = -1
    """The version of the policy that was evaluated last."""
    bad_steps: int = 0
    """Refused updates in a row."""
    carried: list[Group] = field(default_factory=list)
    """Kept groups that did not fit the last batch."""
    in_flight: list[Launched] = field(default_factory=list)
    """Of a checkpoint: what was generated ahead of the update, as far as it was drawn, until it goes on."""
    best_reward: float | None = None
    steps_since_best: int = 0
    num_prompts_used: int = 0
    num_responses: int = 0
    num_tokens: int = 0
    """Tokens generated in this stage of RL, greedy baselines included."""
    sampler: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None
    controllers: dict[str, Any] = field(default_factory=dict)
    """Adaptive coefficients."""
    guard: dict[str, Any] = field(default_factory=dict)
    """What the guard remembers of this stage: measures of its first and last steps, checkpoints, roll-backs."""
    serial: int = 0
    """Number of the next checkpoint."""
    ends: dict[str, int] = field(default_factory=dict)
    """stage -> the checkpoint at its end, which is kept."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Bytes in each of the store's files."""

    def enter(self, stage: str) -> None:
        """Begin the stage of that name: what belongs to one stage begins anew. A stage gone on with stays as it is."""
        if stage == self.stage:
            return
        self.stage, self.stage_start = stage, self.rl_step
        self.acceptance, self.bad_steps, self.carried = 1.0, 0, []
        self.best_reward, self.steps_since_best = None, 0
        self.num_tokens, self.controllers, self.guard = 0, {}, {}

    def to_json(self) -> dict[str, Any]:
        """Plain values; floats survive exactly. How long graders took is left out: equal runs have equal states."""
        tree = asdict(self)
        for group in tree["carried"]:
            for member in group["members"]:
                member["verdict"]["seconds"] = 0.0
                _as_text(member["rollout"])
        for launched in tree["in_flight"]:
            for rollout in chain.from_iterable(launched["rollouts"]):
                _as_text(rollout)
        return tree

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> RunState:
        """The state that `to_json` gave. Raises: CheckpointError for one of another version of this program."""
        if other := sorted(set(tree) - {f.name for f in fields(cls)}):
            raise CheckpointError(
                f"the checkpoint is of another version of verizero (its state has {', '.join(other)}); go on with that "
                "version, or start under another name"
            )
        values = dict(tree)
        values["carried"] = [_group(g) for g in values.get("carried", [])]
        values["in_flight"] = [_launched(one) for one in values.get("in_flight", [])]
        return cls(**values)


def _group(tree: dict[str, Any]) -> Group:
    return Group(Prompt(**tree["prompt"]), tuple(_member(m) for m in tree["members"]), tree["greedy_reward"])


def _launched(tree: dict[str, Any]) -> Launched:
    rollouts = [[_rollout(r) for r in kind] for kind in tree["rollouts"]]
    return Launched(**tree | {"prompts": [Prompt(**p) for p in tree["prompts"]], "rollouts": rollouts})


def _member(tree: dict[str, Any]) -> ScoredRollout:
    rollout = _rollout(tree["rollout"])
    return ScoredRollout(rollout, Verdict(**tree["verdict"]), tree["reward"], tuple(tree["components"]))


def _as_text(rollout: dict[str, Any]) -> None:
    for name, field_ in RECORDS.items():
        if (record := rollout[name]) is not None:
            record[field_] = b64encode(record[field_]).decode()


def _rollout(tree: dict[str, Any]) -> Rollout:
    rollout = dict(tree)
    for name in ("prompt_ids", "response_ids", "logprobs"):
        rollout[name] = tuple(rollout[name])
    if (kept := rollout.get("kept")) is not None:
        rollout["kept"] = KeptTokens(tuple(kept["sizes"]), b64decode(kept["ids"]), kept["num_bounded"])
    if (routing := rollout.get("routing")) is not None:
        rollout["routing"] = Routing(**routing | {"experts": b64decode(routing["experts"])})
    return Rollout(**rollout)
