"""Episodes made by hand, for tests of what reads them."""

from array import array

from verizero.pipeline.types import Call, Episode, KeptTokens, Message, Rollout, Routing, Turn


def turn_of(observed, sampled, version=4, reward=None, trains=True):
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
    rows,
    ending="done",
    outcome=None,
    words=("hm", "42"),
):
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


def records(num_sampled, num_positions):
    """Return records of a turn's sampling."""
    kept = KeptTokens((1,) * num_sampled, array("i", range(num_sampled)).tobytes())
    return kept, Routing(1, 1, array("h", range(num_positions)).tobytes())
