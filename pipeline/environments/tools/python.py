"""Python programs in the sandbox, each in a process of its own."""

from __future__ import annotations

from verizero.pipeline.environments.tools._programs import ProgramParams, alone
from verizero.pipeline.environments.tools.base import Toolbox, tool
from verizero.pipeline.types import Prompt


class Params(ProgramParams):
    """Limits of one program."""


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the tool `python`."""

    @tool
    def python(code: str) -> str:
        """Run a Python program and return what it prints."""
        return alone(code, params.limits).text

    return Toolbox([python])
