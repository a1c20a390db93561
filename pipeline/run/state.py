"""The position of a run, which a checkpoint holds besides tensors, as JSON; and the run's schedule, a list of items."""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE, Stage, StageSection
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.types import (
    Call,
    Episode,
    Group,
    KeptTokens,
    Message,
    Prompt,
    Rollout,
    Routing,
    ScoredRollout,
    Turn,
    Verdict,
)

INT_FIELDS, FLOAT_FIELDS = ("prompt_ids", "response_ids", "observed", "sampled"), ("logprobs",)
"""Names of the fields of a rollout or a turn that are sequences of numbers."""
BYTES_OF_RECORDS = {"kept": "ids", "routing": "experts"}
"""Field of a rollout that holds a record -> the record's field that is bytes, which JSON holds as base64."""


@dataclass
class InFlightBatch:
    """One batch whose responses are generated while earlier batches train."""

    prompts: list[Prompt]
    step: int
    """The RL step that started the batch. With `number` it names the batch's random numbers."""
    number: int
    """Index among the batches that the same step started."""
    rollouts: list[list[Rollout]] = field(default_factory=list)
    """Filled in a checkpoint only, from all ranks: by kind (sampled, then greedy), prompt by prompt."""


@dataclass
class StageState:
    """The part of a run's position that starts again with every stage."""

    name: str = ""
    first_rl_step: int = 0
    """Number of RL steps that earlier stages had done."""
    acceptance: float = 1.0
    """Recent share of sampled groups that were kept: how much to oversample."""
    num_bad_updates: int = 0
    """Refused updates in a row."""
    lost_steps: list[str] = field(default_factory=list)
    """Steps in a row that trained nothing because graders failed: the first failure of each."""
    carried: list[Group] = field(default_factory=list)
    """Kept groups that did not fit into the last batch."""
    num_tokens: int = 0
    """Tokens generated in this stage of RL, greedy baselines included."""
    guard: dict[str, Any] = field(default_factory=dict)
    """Memory of the collapse guard: measures of the first and last steps, checkpoints, rollbacks."""


@dataclass
class StoreMark:
    """Lengths of metrics.jsonl and rollouts.jsonl at the checkpoint, and checksums of their lines."""

    lengths: dict[str, int] = field(default_factory=dict)
    """Bytes in each file."""
    sums: dict[str, str] = field(default_factory=dict)
    """Checksums of the lines of each file."""


@dataclass
class RunState:
    """The position of a run and every number that the next step depends on."""

    stage: StageState = field(default_factory=StageState)
    num_done: int = 0
    """Finished items of stages. Evaluations are not counted."""
    is_evaluated: bool = False
    """True if the evaluation that follows those items (at 0: the one before training) is done."""
    step: int = 0
    """Finished steps of the next item."""
    rl_step: int = 0
    """Finished RL steps, over all rounds of all stages."""
    policy_version: int = 0
    reference_version: int = 0
    evaluated_version: int = -1
    """Version of the policy that was evaluated last."""
    num_prompts_used: int = 0
    num_responses: int = 0
    sampler: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None
    in_flight: list[InFlightBatch] = field(default_factory=list)
    """Batches that were being generated when the checkpoint was written. Resuming continues them."""
    next_checkpoint: int = 0
    """Number of the next checkpoint."""
    stage_ends: dict[str, int] = field(default_factory=dict)
    """Stage -> number of the checkpoint at its end, which is never deleted."""
    store: StoreMark = field(default_factory=StoreMark)

    @property
    def step_in_stage(self) -> int:
        """RL steps done in this stage."""
        return self.rl_step - self.stage.first_rl_step

    def items_left(self, items: Sequence[Item]) -> list[Item]:
        """Return those of the schedule's items that are still to be done; `step` is the next step of the first one.

        Evaluations are not counted in `num_done`, so that a run resumes at the same item if its recipe now evaluates
        more or less often.
        """
        num_to_pass = self.num_done
        for index, item in enumerate(items):
            if num_to_pass == 0 and not (item.is_evaluation and self.is_evaluated):
                return list(items[index:])
            # At 0 all stages' items are passed, and an evaluation that follows is due unless it is done.
            num_to_pass -= not item.is_evaluation
        return []

    def is_at_end_of_stage(self, items: Sequence[Item]) -> bool:
        """True if all items of the present stage are done."""
        left = self.items_left(items)
        return self.step == 0 and (not left or left[0].stage not in (BASE, self.stage.name))

    def enter(self, stage: str) -> None:
        """Start the stage of that name. A stage that is being continued stays as it is."""
        if stage != self.stage.name:
            self.stage = StageState(stage, self.rl_step)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, floats exactly; without graders' seconds, so that equal runs have equal states."""
        tree = asdict(self)
        for group in tree["stage"]["carried"]:
            for member in group["members"]:
                # `asdict` copies deeply, so this does not touch the live state.
                member["verdict"]["seconds"] = 0.0
                _to_plain(member["rollout"])
        for batch in tree["in_flight"]:
            for rollout in chain.from_iterable(batch["rollouts"]):
                _to_plain(rollout)
        return tree

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> RunState:
        """Return the state that `to_json` wrote. Raise CheckpointError for a state of another version of verizero."""
        stage = tree.get("stage", {})
        for part, part_fields in ((cls, tree), (StageState, stage), (StoreMark, tree.get("store", {}))):
            # Missing fields get their defaults, so older states load; unknown ones would be lost silently.
            if unknown := sorted(set(part_fields) - {f.name for f in fields(part)}):
                raise _other_version(", ".join(unknown))
        values = dict(tree)
        values["stage"] = StageState(**stage | {"carried": [_group(g) for g in stage.get("carried", [])]})
        values["store"] = StoreMark(**values.get("store", {}))
        values["in_flight"] = [_in_flight(batch) for batch in values.get("in_flight", [])]
        return cls(**values)


def read_state(checkpoint: Path) -> RunState:
    """Return the state in a whole checkpoint. Raise CheckpointError if it is that of another version of verizero."""
    try:
        return RunState.from_json(json.loads((checkpoint / "state.json").read_text()))
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _other_version(f"{type(exc).__name__}: {exc}") from exc
    except OSError as exc:
        raise CheckpointError(f"{checkpoint / 'state.json'} cannot be read ({exc.strerror}); make it readable") from exc


def _other_version(what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint was written by another version of verizero (its state has {what}); resume it with that "
        "version, or start the run under another name"
    )


def _group(tree: dict[str, Any]) -> Group:
    return Group(Prompt(**tree["prompt"]), tuple(_member(m) for m in tree["members"]), tree["greedy_reward"])


def _in_flight(tree: dict[str, Any]) -> InFlightBatch:
    rollouts = [[_rollout(r) for r in kind] for kind in tree["rollouts"]]
    return InFlightBatch(**tree | {"prompts": [Prompt(**p) for p in tree["prompts"]], "rollouts": rollouts})


def _member(tree: dict[str, Any]) -> ScoredRollout:
    rollout = _rollout(tree["rollout"])
    steps = _pairs(tree.get("steps", ()))
    return ScoredRollout(rollout, _verdict(tree["verdict"]), tree["reward"], tuple(tree["components"]), steps)


def _verdict(tree: dict[str, Any]) -> Verdict:
    return Verdict(**tree | {name: _pairs(tree.get(name, ())) for name in ("parts", "steps")})


def _pairs(of_json: Sequence[Sequence[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in of_json)


def _to_plain(rollout: dict[str, Any]) -> None:
    """Replace what JSON cannot hold."""
    episode = rollout["episode"] or {"rows": []}
    for turn in (rollout, *chain.from_iterable(episode["rows"])):
        turn.update({name: list(turn[name]) for name in (*INT_FIELDS, *FLOAT_FIELDS) if name in turn})
        if turn["kept"] is not None:
            turn["kept"]["sizes"] = list(turn["kept"]["sizes"])
        for name, field_ in BYTES_OF_RECORDS.items():
            if (record := turn[name]) is not None:
                record[field_] = b64encode(record[field_]).decode()
    if (outcome := episode.get("outcome")) is not None:
        outcome["seconds"] = 0.0


def _rollout(tree: dict[str, Any]) -> Rollout:
    rollout = _sampled(tree)
    if (episode := rollout.get("episode")) is not None:
        rollout["episode"] = _episode(episode)
    return Rollout(**rollout)


def _sampled(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a response or a turn, with the types that they had."""
    values = tree | {name: array("i", tree[name]) for name in INT_FIELDS if name in tree}
    values |= {name: array("f", tree[name]) for name in FLOAT_FIELDS}
    if (kept := tree.get("kept")) is not None:
        values["kept"] = KeptTokens(tuple(kept["sizes"]), b64decode(kept["ids"]), kept["num_bounded"])
    if (routing := tree.get("routing")) is not None:
        values["routing"] = Routing(**routing | {"experts": b64decode(routing["experts"])})
    return values


def _episode(tree: dict[str, Any]) -> Episode:
    rows = tuple(tuple(Turn(**_sampled(turn)) for turn in row) for row in tree["rows"])
    messages = tuple(Message(**m | {"calls": tuple(Call(**c) for c in m["calls"])}) for m in tree["messages"])
    outcome = None if tree["outcome"] is None else _verdict(tree["outcome"])
    return Episode(**tree | {"rows": rows, "messages": messages, "outcome": outcome})


EVALUATION = "evaluate"
"""Kind of the items that measure the policy."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a run: an evaluation, or one piece of a stage, done by the module of its kind."""

    kind: str
    """`EVALUATION`, or the kind of the stage."""
    stage: str
    """Name of the stage. An evaluation belongs to the stage that it follows."""
    label: str
    round: int = 0
    num_steps: int = 0
    """0: as many as the data make (epochs)."""

    @property
    def is_evaluation(self) -> bool:
        """True if the item measures the policy, and does nothing of a stage."""
        return self.kind == EVALUATION


def schedule(config: RunConfig) -> list[Item]:
    """Return all items of the run, in order."""
    items: list[Item] = []
    if config.data.evaluation and config.evaluation.before_training:
        items.append(Item(EVALUATION, BASE, "before training"))
    for stage in config.stages:
        items += _items(config, stage, config.section_of(stage))
    return items


def _items(config: RunConfig, stage: Stage, section: StageSection) -> Iterator[Item]:
    """Yield the items of one stage, a single one or its rounds, with the evaluations between and after them."""
    sizes = section.steps_of_items()
    for number, num_steps in enumerate(sizes, 1):
        round_ = number if section.in_rounds else 0
        label = stage.name
        if section.in_rounds:
            label = f"round {number}" if stage.name == "rl" else f"{stage.name} round {number}"
        yield Item(stage.kind, stage.name, label, round_, num_steps)
        due = not section.in_rounds or number % config.evaluation.every_rounds == 0 or number == len(sizes)
        if config.data.evaluation and section.trains_policy and due:
            yield Item(EVALUATION, stage.name, f"after {label}", round_)
