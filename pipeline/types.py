"""The nouns of the loop: Prompt -> Rollout -> ScoredRollout -> Group -> TrainBatch.

All are frozen values. Nothing here loads torch; tensors appear in annotations only. Token ids and log-probs that an
engine sampled are arrays of the standard library, int32 and float32: tuples of numbers take nine times as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    import torch

Status = Literal["graded", "no_answer", "timeout", "abstained", "verifier_error", "sandbox_error", "environment_error"]
STATUSES: tuple[Status, ...] = get_args(Status)
FinishReason = Literal["stop", "length"]
Role = Literal["system", "user", "assistant", "tool"]
Ending = Literal["done", "turns", "tokens", "context", "time", "unread", "failed"]
"""Why an episode ended. done: its environment ended it; failed: its environment broke; others: a limit was reached."""
ENDINGS: tuple[Ending, ...] = get_args(Ending)

MAX_REWARD = 1e100
"""The largest size of a reward: squares and sums of larger ones would not be finite."""
INFRASTRUCTURE: frozenset[str] = frozenset({"verifier_error", "sandbox_error", "environment_error"})


class FastPickled:
    """Base of values that ranks exchange in bulk: pickled as a call of the class, which takes half as long."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        return kind, _field_values(kind)(self)


@cache
def _field_values(kind: Any) -> attrgetter[Any]:
    return attrgetter(*(f.name for f in fields(kind)))


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task: a question, the verifier of its answers, and the right answer.

    Example: Prompt(id="arithmetic/17+25", question="17+25=", verifier="math", reference="42", domain="arithmetic")
    """

    id: str
    question: str
    verifier: str  # empty: the row is imitated, and never graded
    reference: Any
    domain: str = "default"
    demonstration: str | tuple[Message, ...] | None = None  # to imitate in SFT; a tuple: an episode after the question
    system: str | None = None  # a system message for chat templates
    environment: str | None = None  # key of what answers the policy's turns; None: one response is the whole episode
    row: Mapping[str, Any] | None = None  # all columns, for a verifier that may ask for them; None for others
    tools: Sequence[Mapping[str, Any]] | None = None  # {name, description, parameters} that a demonstration may call
    message: str | None = None  # what the model is asked, where that is more than the question

    @property
    def asked(self) -> str:
        """The user's message: the question, with the instructions and choices around it, if there are any."""
        return self.question if self.message is None else self.message


@dataclass(frozen=True, slots=True)
class KeptTokens(FastPickled):
    """The tokens that could be drawn at each position of a response that was sampled with top-p or top-k.

    Example: KeptTokens(sizes=(2, 0), ids=array("i", [4, 9]).tobytes())  # tokens 4 and 9, then any token
    """

    sizes: Sequence[int]
    """Size of the set at each position; 0 where nothing was cut off."""
    ids: bytes
    """The sets one after the other, each ascending: int32, little-endian."""
    num_bounded: int = 0
    """Positions whose set would have been larger than the recipe's `rollout.max_kept`."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts that computed prompt and response, without the last token, which is never an input.

    Example: Routing(layers=1, top_k=2, experts=array("h", [0, 5, 3, 1]).tobytes())  # two tokens
    """

    layers: int
    top_k: int
    experts: bytes
    """[tokens, layers, top_k]: int16, little-endian."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, as the policy wrote it. Example: Call(id="0-0", name="add", arguments={"a": 27, "b": 58})"""

    id: str
    """The turn's number and the call's index in it, so that equal episodes have equal ids."""
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Example: Message("tool", "85", answers="0-0", name="add")"""

    role: Role
    content: str
    calls: tuple[Call, ...] = ()
    """The tools that an assistant's message calls."""
    answers: str | None = None
    """In a tool's message: the id of the call whose result it is."""
    name: str | None = None  # in a tool's message: the name of the tool
    thinking: str | None = None
    """The text that an assistant wrote before its answer, if the template separates the two."""
    unread: str | None = None  # why a call in an assistant's message could not be read


@dataclass(frozen=True, slots=True)
class Turn(FastPickled):
    """One turn of an episode: the tokens that the policy was shown since its last one, and those that it sampled then.

    Example: Turn(observed=(7, 9), sampled=(4, 1), logprobs=(-0.1, -0.7), finish_reason="stop", policy_version=12)
    """

    observed: Sequence[int]  # never empty; in the first turn of a row the whole prompt
    sampled: Sequence[int]
    logprobs: Sequence[float]  # log-probs of `sampled` alone: an observed token has none
    finish_reason: FinishReason
    policy_version: int
    """Version of the weights that drew the first of `sampled`."""
    kept: KeptTokens | None = None
    routing: Routing | None = None
    """Experts of the positions that this turn adds to its row; the row's last token has none."""
    reward: float | None = None  # the environment's reward for this turn: any finite number
    trains: bool = True
    """False if the tokens were sampled in an earlier row and are context in this one."""
    number: int | None = None
    """Number of the turn in its episode, from 0. None: the turns of the rows are in the order of sampling."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A rollout of several turns.

    Example: Episode(rows=((first, second),), messages=(question, call, result, answer), ending="done")
    """

    rows: tuple[tuple[Turn, ...], ...]
    """Each row is one sequence that the engine computed; a second row begins where the history was rewritten."""
    messages: tuple[Message, ...]  # the whole conversation, for verifiers and people
    ending: Ending = "done"
    outcome: Verdict | None = None
    """The environment's own verdict; None if a verifier grades the last message."""
    answer: str | None = None  # the text that a verifier grades; None: the last message of the policy
    seed: int | None = None  # the seed of the environment, with which the episode can be played again
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers for the metrics by name: calls of each tool, forks by cause, calls that could not be read."""


@dataclass(frozen=True, slots=True)
class Rollout(FastPickled):
    """One sampled response, in tokens; or an episode of several turns, whose first turn these fields describe.

    Example: Rollout("arithmetic/17+25", 3, (7, 9), (4, 1), (-0.1, -0.7), "42", "stop", 12)
    """

    prompt_id: str
    sample: int
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    """Includes the end-of-sequence token when finish_reason is "stop"."""
    logprobs: Sequence[float]
    """Log-probs of response_ids, in nats, under the distribution that was sampled, as the engine reported them."""
    text: str  # the response decoded, special tokens left out
    finish_reason: FinishReason
    policy_version: int
    """Version of the weights that drew the response; of an episode, its first token."""
    kept: KeptTokens | None = None  # None if sampling was not cut off, or its sets were not requested
    routing: Routing | None = None  # None for a dense model, or if it was not requested
    episode: Episode | None = None  # None for a single response

    @property
    def turns(self) -> list[Turn]:
        """The turns that were sampled, in order, each once."""
        if self.episode is not None:
            turns = [turn for row in self.episode.rows for turn in row if turn.trains]
            return sorted(turns, key=lambda turn: turn.number or 0)
        first = (self.prompt_ids, self.response_ids, self.logprobs, self.finish_reason, self.policy_version)
        return [Turn(*first, self.kept, self.routing)]

    @property
    def num_sampled(self) -> int:
        """The number of sampled tokens, over all turns."""
        return len(self.response_ids) if self.episode is None else sum(len(t.sampled) for t in self.turns)

    @property
    def answer(self) -> str:
        """The text that a verifier grades: the policy's last message, or the answer that its environment returned."""
        if self.episode is None:
            return self.text
        if self.episode.answer is not None:
            return self.episode.answer
        return next((m.content for m in reversed(self.episode.messages) if m.role == "assistant"), "")

    @property
    def was_cut(self) -> bool:
        """True if the last turn was cut at a limit of length."""
        if self.episode is None:
            return self.finish_reason == "length"
        turns = self.turns
        return bool(turns) and turns[-1].finish_reason == "length"

    @property
    def oldest_version(self) -> int:
        """The version of the weights that drew the oldest sampled token."""
        if self.episode is None:
            return self.policy_version
        return min((t.policy_version for t in self.turns), default=self.policy_version)


@dataclass(frozen=True, slots=True)
class EndedResponse:
    """A response that has ended while others are still being generated.

    Example: EndedResponse(index=3, prompt=Prompt("p", "1+1=", "math", "2"), text="2", finish_reason="stop")
    """

    index: int  # its index among all responses of the call
    prompt: Prompt
    text: str
    finish_reason: FinishReason
    messages: tuple[Message, ...] = ()  # the conversation of an episode; empty for a single response
    response_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The input of a verifier. Example: Attempt(response="17+25=42", reference="42", prompt="17+25=")"""

    response: str
    reference: Any  # the value that the response is compared to
    prompt: str = ""
    truncated: bool = False  # the response was cut at its length limit
    messages: tuple[Message, ...] = ()
    """The conversation of an episode, whose last message is `response`; empty for a single response."""
    row: Mapping[str, Any] | None = None
    response_ids: Sequence[int] = ()
    """The prompt's row and the response's tokens, for a verifier that may ask for them."""


@dataclass(frozen=True, slots=True)
class Verdict(FastPickled):
    """The output of a verifier. `score` is in [0, 1] and has meaning only where status is "graded".

    graded: compared, and the score says how right. no_answer: nothing to compare was found in the response.
    timeout: the answer ran past its own budget (its fault). abstained: a reward function has no reward for this
    response. verifier_error, sandbox_error, environment_error: the grader, the sandbox or the environment failed, which
    tells nothing about the answer and is never a reward.

    Example: Verdict("graded", 1.0, "equal", extracted="42")
    """

    status: Status
    score: float = 0.0
    reason: str = ""
    """A short code with detail, e.g. "equal", "wrong_number: 41 is not 42", "unclosed_box"."""
    extracted: str | None = None
    seconds: float = 0.0
    reward: float | None = None  # any finite number, where it is another than the score
    right: bool | None = None  # where a threshold of the reward decides; None: the score does
    parts: tuple[tuple[str, float], ...] = ()  # further numbers by name, which are shown and train nothing
    steps: tuple[tuple[str, float], ...] = ()
    """(text, reward) of each step of the response in order, for credit by step; a reward is any finite number."""

    @property
    def is_infrastructure(self) -> bool:
        """True if the grader failed, not the answer."""
        return self.status in INFRASTRUCTURE

    @property
    def is_left_out(self) -> bool:
        """True if the grader failed or abstained, which tells nothing of the answer: its response has no reward."""
        return self.is_infrastructure or self.status == "abstained"

    @property
    def is_correct(self) -> bool:
        """True if the answer was graded, and is wholly right."""
        return self.status == "graded" and (self.score >= 1.0 if self.right is None else self.right)


@dataclass(frozen=True, slots=True)
class ScoredRollout(FastPickled):
    """A rollout with its verdict and the reward that the recipe's table gives for it (None: leaves the group).

    Example: ScoredRollout(rollout, Verdict("graded", 1.0), reward=1.0)
    """

    rollout: Rollout
    verdict: Verdict
    reward: float | None
    components: tuple[float, ...] = ()
    """The unweighted rewards that were summed, that of the row's own verifier first; empty if it is the only one."""
    steps: tuple[tuple[int, float], ...] = ()
    """(number of tokens up to its end, reward) of each step; empty for an episode, and where the verdict has none."""

    @property
    def turn_rewards(self) -> list[float | None]:
        """The rewards of the response's steps, or of the turns of an episode; [None] for a response without steps."""
        return [reward for _, reward in self.steps] or [turn.reward for turn in self.rollout.turns]


@dataclass(frozen=True, slots=True)
class Group:
    """All scored responses to one prompt of one step.

    Example: Group(prompt, members=(right, wrong), greedy_reward=None)
    """

    prompt: Prompt
    members: tuple[ScoredRollout, ...]
    greedy_reward: float | None = None
    """Reward of one greedy response, for algorithms whose baseline it is."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the members that have one."""
        return tuple(m.reward for m in self.members if m.reward is not None)


@dataclass(frozen=True, slots=True)
class SamplingRecords:
    """Records of how the rows of a batch were sampled, for training to replay; on the CPU."""

    kept_sizes: torch.Tensor | None = None  # [B, T] int64, 0 where nothing was cut off
    kept_ids: torch.Tensor | None = None  # [sum of kept_sizes] int64, row by row
    routing: torch.Tensor | None = None  # [B, T, layers, top_k] int16, -1 where nothing was recorded


class Run(NamedTuple):
    """Tokens of a row, from the end of the run before it up to `end`. Runs with equal numbers are the same ones."""

    number: int
    end: int


Path = tuple[Run, ...]  # a row as runs that other rows may share: its path from the root of a tree


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Rows of prompt + response, right-padded; B rows of T tokens.

    `response_mask[i, t]` is 1 where `input_ids[i, t]` is a response token to train on. Every [B, T] tensor of
    per-token values is aligned with `input_ids`: entry t belongs to the token at t, predicted from those before.
    An episode may have several rows, in the order in which they began, with equal [B] values; between its turns the
    mask has holes, where tokens were observed.
    """

    input_ids: torch.Tensor  # [B, T] int64
    attention_mask: torch.Tensor  # [B, T] int64, 1 on real tokens
    response_mask: torch.Tensor  # [B, T] float32
    rollout_logprobs: torch.Tensor  # [B, T] float32
    rewards: torch.Tensor  # [B] float64, since advantages are of their small differences
    group_ids: torch.Tensor  # [B] int64
    truncated: torch.Tensor  # [B] bool
    extras: Mapping[str, torch.Tensor] = field(default_factory=dict)
    records: SamplingRecords | None = None
    episode_ids: torch.Tensor | None = None  # [B] int64; None where every row is an episode of one turn
    turn_ids: torch.Tensor | None = None  # [B, T] int64, number of the turn of a token that trains, else -1
    spans: tuple[tuple[tuple[int, int], ...], ...] | None = None  # of each row (begin, end) of what trains, if known
    paths: tuple[Path, ...] | None = None  # of each row, where rows are packed; None: they are padded
    is_routed: bool = False  # experts may be recorded; tokens of a run with other experts are not the same


StepMetrics = dict[str, float]
"""Metrics of one step: "section/name" -> number."""
