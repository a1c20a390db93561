"""An environment of tools: it answers every call; a turn without calls ends it, and the row's verifier grades that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from verizero.pipeline.environments.base import BASE, EnvironmentParams, PluginParams, Reply, Start
from verizero.pipeline.environments.tools.base import BoundTools, Toolbox, load
from verizero.pipeline.types import Message, Prompt, Verdict


class ToolChoice(PluginParams):
    """Tools by name or by path ("my_tools.py:add", from the recipe's folder), with their parameters."""

    name: str | None = None
    path: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    _bound: BoundTools = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _known(self, info: ValidationInfo) -> ToolChoice:
        base = (info.context or {}).get(BASE)
        self._bound = load(self.name, self.path, base).bind(self.params, base)
        return self

    @property
    def bound(self) -> BoundTools:
        """The tools with their parameters."""
        return self._bound


class Params(EnvironmentParams):
    """The tools."""

    tools: tuple[ToolChoice, ...] = Field(min_length=1, description="names, or {name or path, params}")

    def languages(self) -> frozenset[str]:
        """Return the languages of all tools."""
        return frozenset().union(*(choice.bound.params.languages() for choice in self.tools))


class ToolEpisode:
    """Answers every call. A turn without a call ends the episode."""

    def __init__(self, box: Toolbox, grade: Callable[[Message], Verdict] | None = None) -> None:
        """`grade` gives the verdict on the last message; without it the row's verifier does."""
        self.box, self._grade = box, grade

    def start(self) -> Start:
        """Show the tools."""
        return Start(tools=self.box.schemas)

    def step(self, message: Message) -> Reply:
        """Answer the calls, or end the episode if there is none."""
        if not message.calls:
            return Reply(done=True, outcome=self._grade(message) if self._grade is not None else None)
        messages, uses = self.box.answer(message)
        return Reply(messages, uses=uses)

    def close(self) -> None:
        """Close the tools."""
        self.box.close()


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> ToolEpisode:
    """Return an episode with new tools."""
    return ToolEpisode(joined([choice.bound for choice in params.tools], prompt))


def joined(all_tools: list[BoundTools], prompt: Prompt) -> Toolbox:
    """Return a toolbox with the tools of all files. If one cannot be made, those before it are closed."""
    boxes: list[Toolbox] = []
    try:
        for bound in all_tools:
            boxes.append(bound.make(prompt))
        return Toolbox([t for box in boxes for t in box.tools.values()], [box.close for box in boxes])
    except BaseException:
        for box in boxes:
            box.close()
        raise
