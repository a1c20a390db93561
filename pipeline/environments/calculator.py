"""A number to work out with a calculator: calls are answered, and the first message without a call is the answer.

The answer is right if it equals the row's, letter by letter: `27*58+14=` -> `<mul 27 58>` 1566 `<add 1566 14>` 1580
`1580`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from verizero.pipeline.environments._verdicts import exact
from verizero.pipeline.environments.base import EnvironmentParams
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.environments.tools import calculator
from verizero.pipeline.types import Prompt

EXAMPLE = Prompt("calculator/1", "27*58+14=", "environment", "1580")


class Params(EnvironmentParams):
    """The form of the calculator."""

    form: Literal["operations", "expression"] = Field(
        "operations", description="operations: add, sub, mul and div of two numbers; expression: calc takes 2*(3+4)"
    )


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> ToolEpisode:
    """Return an episode in which the row's answer is to be worked out."""
    box = calculator.tools(calculator.Params(form=params.form), prompt)
    return ToolEpisode(box, lambda message: exact(message, prompt.reference))
