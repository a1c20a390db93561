"""Turn conversations into tokens: the first prompt, the policy's turn, and the prompt after it.

There are two ways, with equal methods: this one, for templates that are a text (plain, r1_zero, custom), and
`chat_turns.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verizero.pipeline import registry
from verizero.pipeline.config.template import FAMILY, TEXT
from verizero.pipeline.data.chat_turns import ChatTurns
from verizero.pipeline.data.foreign_text import ForeignText
from verizero.pipeline.data.policy_text import read_turn, text_of_turn
from verizero.pipeline.data.render import Ids, Renderer
from verizero.pipeline.data.tokenizer import unknown_characters
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import CallForm, Conversing, NextPrompt, PromptPiece, ReadTurn
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import FinishReason, Message, Prompt


class PlainTurns:
    """Turns without a chat template: a turn ends with the end token, and `template.observation` follows it.

    Prompts, turns and observations are encoded one by one, so what was sampled is never encoded again, and no history
    is ever rewritten. A turn that was cut at its limit gets no end token.
    """

    def __init__(self, renderer: Renderer, form: CallForm) -> None:
        """`form` has the `read` and `write` of calls."""
        self.renderer, self.form = renderer, form
        self.foreign_text = ForeignText(renderer.tokenizer)
        self._around = renderer.template.observation
        self.unknown = unknown_characters(renderer.tokenizer, self._around.replace(TEXT, ""))
        """Characters of an observation, which single responses do not need, that the tokenizer cannot write."""

    def require_observations(self) -> None:
        """Raise DataError for a tokenizer that cannot write an observation."""
        if self.unknown:
            raise DataError(
                f"template.observation has characters that the tokenizer does not know: "
                f"{', '.join(map(repr, self.unknown))}; add them to model.create.characters or write it without them"
            )

    def opening(self, prompt: Prompt, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages of the first prompt."""
        if messages:
            return tuple(messages)
        system = [] if prompt.system is None else [Message("system", prompt.system)]
        return (*system, Message("user", prompt.asked))

    def begin(self, prompt: Prompt, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Ids:
        """Return the tokens of the first prompt. A text has no place for tools: a policy learns them by imitation.

        The template is written around the first question; what follows an assistant's message is an observation.
        Raises: DataError if the messages do not begin with a question, or end with the assistant's.
        """
        if not messages:
            return self.renderer.prompt_ids(prompt)
        parts = _parts(messages)
        first = parts[0]
        if first[0].role == "assistant" or parts[-1][0].role == "assistant":
            roles = ", ".join(m.role for m in messages)
            raise DataError(f"prompt {prompt.id!r}: a conversation must begin and end with a question; got {roles}")
        ids = self._first(prompt, first)
        for part in parts[1:]:
            if part[0].role == "assistant":
                # Words alone are text, whatever they spell.
                message = part[0]
                is_text = not message.calls and message.thinking is None
                words = message.content if is_text else text_of_turn(self.form, message, tools)
                ids += (
                    *self.foreign_text.ids(self.foreign_text.known(words)),
                    int(self.renderer.tokenizer.eos_token_id),
                )
            else:
                ids += self._observation(part)
        return ids

    def _first(self, prompt: Prompt, messages: Sequence[Message]) -> Ids:
        system = "\n\n".join(m.content for m in messages if m.role == "system")
        question = self.foreign_text.known("\n".join(m.content for m in messages if m.role != "system"))
        shown = replace(prompt, question=question, message=None, system=self.foreign_text.known(system) or None)
        text = self.renderer.text(shown)
        if not self.foreign_text.has_marks(question + system):
            return self.renderer.prompt_ids(shown)
        start = self.renderer.tokenizer("")["input_ids"]
        ends = start[-1:] == [self.renderer.tokenizer.eos_token_id]
        return (*map(int, start[: len(start) - ends]), *self.foreign_text.ids(text))

    def read(
        self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Sequence[ToolSchema]
    ) -> ReadTurn:
        """Return what the policy said: its whole text without the calls, thinking included."""
        return read_turn(self.form, self.renderer.decode(sampled), finish_reason, turn, tools)

    def write(self, message: Message, tools: Sequence[ToolSchema]) -> Ids:
        """Return the tokens of a policy that says this message, and the end token. Raises: DataError."""
        return self.renderer.text_ids(text_of_turn(self.form, message, tools), "a demonstrated turn")

    def extend(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        sampled: Sequence[Ids],
        finish_reason: FinishReason,
    ) -> NextPrompt:
        """Return the observation of the new messages. The row always continues."""
        return NextPrompt((PromptPiece(self._observation(new)),))

    def _observation(self, messages: Sequence[Message]) -> Ids:
        self.require_observations()
        text = "\n".join(m.content for m in messages)
        return self.foreign_text.ids(self._around.replace(TEXT, self.foreign_text.known(text)))


def turns_of(renderer: Renderer) -> Conversing:
    """Return the writer and reader of turns for the renderer's template. Raises: DataError for a bad template."""
    if renderer.template.calls.startswith(FAMILY):
        from verizero.pipeline.data.family_turns import FamilyTurns

        return FamilyTurns(renderer, renderer.template.calls.removeprefix(FAMILY))
    form = registry.find("call_forms", renderer.template.calls)
    return ChatTurns(renderer, form) if renderer.template.name == "chat" else PlainTurns(renderer, form)


def _parts(messages: Sequence[Message]) -> list[list[Message]]:
    """Group the messages: each of the assistant's alone, and all between two of these together."""
    parts: list[list[Message]] = []
    for message in messages:
        if parts and message.role != "assistant" and parts[-1][0].role != "assistant":
            parts[-1].append(message)
        else:
            parts.append([message])
    return parts
