"""The `data.template` section of a recipe: how questions, observations and calls are written."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from verizero.pipeline import registry
from verizero.pipeline.config.sections import Section
from verizero.pipeline.errors import UnknownName

TEXT = "{text}"
FAMILY = "renderers/"
"""Prefix of a name of `calls`: the rest is a family of models, as the package renderers calls it."""


class Template(Section):
    """The template that turns a question into a prompt, and a conversation into its turns."""

    name: Literal["plain", "chat", "r1_zero", "custom"] = Field(
        "plain",
        description="plain: the question alone; chat: the tokenizer's chat template; r1_zero: asks to think first; "
        "custom: `text`",
    )
    text: str | None = Field(None, description="for custom: a text that contains {question}")
    system: str | None = Field(None, description="for chat: the system message of rows that have none")
    chat_arguments: dict[str, Any] = Field(
        default_factory=dict, description="for chat: passed to the tokenizer's template, e.g. enable_thinking"
    )
    date: str = Field(
        "2025-01-01",
        pattern=r"^\d{4}-\d{2}-\d{2}$",
        description="for chat: the date for templates that write today's, so that a run gives the same prompts any day",
    )
    observation: str = Field(
        "\n{text}\n",
        description="for all but chat: how the answer to a turn of the policy is written; holds {text} and more",
    )
    calls: str = Field(
        "tags",
        description="form of the policy's calls of tools: hermes, tags, xml, that of a plug-in, or for chat "
        "that of a family of models by the package renderers, e.g. renderers/nemotron-3",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("date")
    @classmethod
    def _is_a_day(cls, value: str) -> str:
        try:
            datetime.fromisoformat(value)
        except ValueError as exc:
            raise ValueError(f"template.date: {exc}; write a day as 2025-01-31, got {value!r}") from exc
        return value

    @field_validator("calls")
    @classmethod
    def _known(cls, value: str) -> str:
        if value.startswith(FAMILY):
            return value
        try:
            registry.find("call_forms", value)
        except UnknownName as exc:
            raise ValueError(f"template.calls: {exc}") from exc
        return value

    @model_validator(mode="after")
    def _fits(self) -> Template:
        if (self.text is not None) != (self.name == "custom"):
            raise ValueError(f"template.text goes with template.name: custom and only with it, got name {self.name!r}")
        if self.text is not None and "{question}" not in self.text:
            raise ValueError(f"template.text must hold {{question}}, got {self.text!r}")
        if self.name != "chat" and (self.system is not None or self.chat_arguments):
            raise ValueError(f"template.system and template.chat_arguments need template.name: chat, got {self.name!r}")
        if self.name != "chat" and self.calls.startswith(FAMILY):
            raise ValueError(f"template.calls: {self.calls} needs template.name: chat, got {self.name!r}")
        if self.observation.count(TEXT) != 1 or self.observation == TEXT:
            raise ValueError(
                "template.observation must hold {text} once and something around it, by which the policy sees that its "
                f'turn is over, e.g. "\\n{{text}}\\n"; got {self.observation!r}'
            )
        return self
