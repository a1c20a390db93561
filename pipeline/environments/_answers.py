"""The answer in a message of the policy, and its comparison with the reference."""

from __future__ import annotations

from typing import Any

from verizero.pipeline.types import Message, Verdict

THINKING, END_OF_THINKING = "<think>", "</think>"


def answer_of(message: Message) -> str:
    """Return the message's words after its thinking, without spaces around them; empty if thinking does not end."""
    _, end, after = message.content.rpartition(END_OF_THINKING)
    if not end and THINKING in message.content:
        return ""
    return after.strip()


def exact(message: Message, reference: Any) -> Verdict:
    """Return 1 if the message's answer is the reference, letter by letter."""
    answer = answer_of(message)
    if not answer:
        return Verdict("no_answer", reason="empty")
    right = answer == str(reference).strip()
    return Verdict("graded", float(right), "equal" if right else "other", extracted=answer[:200])
