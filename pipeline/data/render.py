"""Turn prompts into tokens, once: the engine and the update get the same ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from verizero.pipeline.config.template import Template
from verizero.pipeline.data.policy_text import CLOSE, OPEN
from verizero.pipeline.data.tokenizer import unknown_characters
from verizero.pipeline.errors import DataError, boundary
from verizero.pipeline.rows import num_shared
from verizero.pipeline.types import Prompt

K = TypeVar("K", bound=Hashable)
Ids = tuple[int, ...]

R1_ZERO = (
    "Below, a user asks and an assistant solves. The assistant works the problem out first, inside <think> and "
    "</think>, and then states only the result inside <answer> and </answer>.\n\n"
    "User: {question}\n"
    "Assistant:"
)
"""Like R1-Zero's template (2501.12948, table 1), in our own words."""


MAX_REMEMBERED = 65_536
"""Prompts, and texts, whose tokens are kept. Generated demonstrations repeat a few hundred texts many times."""

PROBE = "word 0"
"""A turn of the assistant, by which a chat template shows how it ends turns."""
FEW_PROMPTS, LAST_TOKENS = 4, 4
"""Prompts of a step whose end is counted, and how many of their tokens: this costs some microseconds a step."""


class Renderer:
    """Writes prompts with a template and tokenises them, with a cache."""

    def __init__(self, tokenizer: Any, template: Template) -> None:
        """Raises: DataError if the tokenizer has no end token, or no chat template where the template is "chat"."""
        if tokenizer.eos_token_id is None:
            raise DataError("the tokenizer has no end-of-sequence token; set eos_token in its tokenizer_config.json")
        if template.name == "chat" and not tokenizer.chat_template:
            raise DataError("template is chat but the tokenizer has no chat template; use plain, r1_zero or custom")
        self.tokenizer = tokenizer
        self.template = template
        day = datetime.fromisoformat(template.date)
        # A template that writes today's date would give other prompts tomorrow.
        self.chat_arguments = {"strftime_now": day.strftime, **template.chat_arguments}
        """Arguments of the chat template, besides the conversation and its tools."""
        self._prompts: OrderedDict[tuple[str | None, str], Ids] = OrderedDict()
        self._texts: OrderedDict[str, Ids] = OrderedDict()

    def text(self, prompt: Prompt) -> str:
        """Return the prompt's text as the model reads it."""
        if self.template.name == "chat":
            with boundary(DataError, f"prompt {prompt.id!r}: the chat template refuses it"):
                return str(self._apply(prompt, tokenize=False))
        shape = {"plain": "{question}", "r1_zero": R1_ZERO, "custom": self.template.text or ""}[self.template.name]
        # Not str.format: a question may have braces of its own.
        text = shape.replace("{question}", prompt.asked)
        return f"{prompt.system}\n\n{text}" if prompt.system else text

    def prompt_ids(self, prompt: Prompt) -> Ids:
        """Tokens of the prompt, with the start token where the tokenizer has one, and never an end token.

        Raises: DataError naming the prompt if it has no tokens or characters that a character tokenizer lacks.
        """
        return _remembered(self._prompts, (prompt.system, prompt.asked), lambda: self.new_prompt_ids(prompt))

    @cached_property
    def closing(self) -> tuple[str, int]:
        """End of a response: the end token, or what the chat template writes behind each turn.

        That is the text before the end token, or else before the first special token there, and that token.
        """
        eos = int(self.tokenizer.eos_token_id)
        if self.template.name != "chat":
            return "", eos
        question, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": PROBE}
        try:
            talks = self._written([question, answer])[1], self._written([question, answer, question])[1]
        except DataError:  # a template of single turns
            return "", eos
        last, inner = (text.partition(PROBE)[2] for text in talks)
        behind = inner[: num_shared(inner, last)]
        special = {str(t): int(i) for i, t in self.tokenizer.added_tokens_decoder.items()}
        names = [name for name in special if len(name) > 1 and name.strip() and name in behind]
        first = min(names, key=lambda name: (special[name] != eos, behind.index(name), -len(name)), default=None)
        return ("", eos) if first is None else (behind[: behind.index(first)], special[first])

    @cached_property
    def opened(self) -> str:
        """The thinking, from its mark on, with which the chat template begins a response; "" if it begins none."""
        if self.template.name != "chat":
            return ""
        asks, plain = self._written([{"role": "user", "content": "x"}])
        asks = asks[num_shared(asks, plain) :]
        return asks[asks.rfind(OPEN) :] if OPEN in asks else ""

    def continued(self, text: str) -> str:
        """Return a response's text as it follows the prompt, which may have opened or ended its thinking."""
        opened, words = self.opened, text.lstrip()
        if opened and words.startswith(opened.strip() if CLOSE in opened else OPEN):
            return words[num_shared(words, opened) :]
        return text if not opened or CLOSE in opened or CLOSE in text else f"\n{CLOSE}\n\n{text}"

    def require_follows(self, text: str, where: str) -> None:
        """Raise DataError naming `where` for a text that thinks where the prompt has ended the thinking."""
        if CLOSE in self.opened and self.continued(text).lstrip().startswith(OPEN):
            raise DataError(
                f"{where} begins with thinking, and the chat template ends the thinking before it; set "
                "template.chat_arguments (many templates take enable_thinking: true), or take the thinking out"
            )

    def response_ids(self, text: str, where: str) -> Ids:
        """Tokens of a response as the policy gives it behind its prompt, with its end.

        Raises: DataError naming `where` for unknown characters, and for thinking that the prompt has ended.
        """
        self.require_follows(text, where)
        before, end = self.closing
        return (*self.text_ids(self.continued(text) + before, where)[:-1], end)

    def demonstration_ids(self, prompt: Prompt) -> Ids:
        """Tokens of the prompt's demonstration and the end token: a response as the policy should give it.

        Raises: DataError naming the prompt if it has no demonstration, an episode, or one with unknown characters.
        """
        if prompt.demonstration is None:
            raise DataError(f"prompt {prompt.id!r} has no demonstration; map mapping.demonstration to a column")
        if not isinstance(prompt.demonstration, str):
            raise DataError(f"the demonstration of prompt {prompt.id!r} is an episode, and one response is wanted here")
        return self.response_ids(prompt.demonstration, f"the demonstration of prompt {prompt.id!r}")

    def text_ids(self, text: str, where: str = "the text") -> Ids:
        """Tokens of a text as it is, and the end token. Raises: DataError naming `where` for unknown characters."""
        return _remembered(self._texts, text, lambda: self._text_ids(text, where))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens; spaces stay."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def _text_ids(self, text: str, where: str) -> Ids:
        self._check(text, where)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return (*map(int, ids), int(self.tokenizer.eos_token_id))

    def new_prompt_ids(self, prompt: Prompt) -> Ids:
        """Return what `prompt_ids` does, of a prompt that will not come again."""
        self._check(self.text(prompt), f"prompt {prompt.id!r}")
        if self.template.name == "chat":
            ids = list(self._apply(prompt, tokenize=True))
        else:
            ids = list(self.tokenizer(self.text(prompt))["input_ids"])
            if len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id:
                ids.pop()  # some tokenizers end every text; a prompt is not the end
        if not ids:
            raise DataError(f"prompt {prompt.id!r} has no tokens; give it a question or another template")
        return tuple(map(int, ids))

    def _written(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
        """Return the text of a conversation that asks for the next turn, and that which does not."""
        with boundary(DataError, "the chat template refuses a conversation of users and the assistant"):
            asks, plain = (
                str(
                    self.tokenizer.apply_chat_template(
                        list(messages), add_generation_prompt=asks, tokenize=False, **self.chat_arguments
                    )
                )
                for asks in (True, False)
            )
        return asks, plain

    def _apply(self, prompt: Prompt, tokenize: bool) -> Any:
        system = prompt.system if prompt.system is not None else self.template.system
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": prompt.asked})
        extra = {"return_dict": False} if tokenize else {}  # transformers 5 returns a dict by default
        # The prompt must end where the answer begins, as it does in training.
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=tokenize, **extra, **self.chat_arguments
        )

    def _check(self, text: str, where: str) -> None:
        unknown = unknown_characters(self.tokenizer, text)
        if unknown:
            raise DataError(
                f"{where} has characters that the tokenizer does not know: {', '.join(map(repr, unknown))}; add them "
                "to model.create.characters or leave the row out"
            )


def end_of_prompts(decode: Callable[[Sequence[int]], str], prompts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the mean number of spaces and line breaks that a few prompts end with; nothing without a prompt.

    A line break more or less between two stages makes other prompts of the same questions.
    """
    ends = [decode(ids[-LAST_TOKENS:]) for ids in prompts[:FEW_PROMPTS]]
    return {"prompt/spaces_at_end": sum(len(end) - len(end.rstrip()) for end in ends) / len(ends)} if ends else {}


def _remembered(memory: OrderedDict[K, Ids], key: K, make: Callable[[], Ids]) -> Ids:
    """Return `make()`, cached by key. A full cache drops its oldest entry."""
    ids = memory.get(key)
    if ids is None:
        ids = memory[key] = make()
        if len(memory) > MAX_REMEMBERED:
            memory.popitem(last=False)
    return ids
