"""Episodes made by hand, for tests of what reads them."""

from array import array
from collections.abc import Sequence

from verizero.pipeline.types import Call, Ending, Episode, KeptTokens, Message, Rollout, Routing, Turn, Verdict


def turn_of(
    observed: Sequence[int], sampled: Sequence[int], version: int = 4, reward: float | None = None, trains: bool = True
) -> Turn:
    """Return a turn with log-probs that tell its tokens apart."""
    return Turn(
        observed=array("i", observed),
        sampled=array("i", sampled),
        logprobs=array("f", [-0.01 * (i + 1) - 0.1 * version for i in range(len(sampled))]),
        finish_reason="stop",
        policy_version=version,
        reward=reward,
        trains=trains,
    )


def episode_of(
    rows: Sequence[Sequence[Turn]],
    ending: Ending = "done",
    outcome: Verdict | None = None,
    words: Sequence[str] = ("hm", "42"),
) -> Rollout:
    """Return a rollout of these rows, in which the policy says `words`."""
    first = rows[0][0]
    messages = [Message("user", "what?")]
    for i, word in enumerate(words):
        calls = (Call(f"{i}-0", "look", {"at": word}),) if i + 1 < len(words) else ()
        messages.append(Message("assistant", word, calls))
        if calls:
            messages.append(Message("tool", f"saw {word}", answers=f"{i}-0", name="look"))
    counts = {"tools/look/calls": len(words) - 1}
    episode = Episode(tuple(map(tuple, rows)), tuple(messages), ending, outcome, counts=counts)
    return Rollout(
        prompt_id="p0",
        sample=0,
        prompt_ids=first.observed,
        response_ids=first.sampled,
        logprobs=first.logprobs,
        text=words[0],
        finish_reason=first.finish_reason,
        policy_version=first.policy_version,
        kept=first.kept,
        routing=first.routing,
        episode=episode,
    )


def records(num_sampled: int, num_positions: int) -> tuple[KeptTokens, Routing]:
    """Return records of a turn's sampling."""
    kept = KeptTokens((1,) * num_sampled, array("i", range(num_sampled)).tobytes())
    return kept, Routing(1, 1, array("h", range(num_positions)).tobytes())
