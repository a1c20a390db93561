"""Lines of Bash in the sandbox, each in a process of its own."""

from __future__ import annotations

from verizero.pipeline.environments.tools._programs import ProgramParams, alone
from verizero.pipeline.environments.tools.base import Toolbox, tool
from verizero.pipeline.types import Prompt


class Params(ProgramParams):
    """Limits of one line."""

    def languages(self) -> frozenset[str]:
        """Return Bash."""
        return frozenset({"bash"})


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the tool `shell`."""

    @tool
    def shell(line: str) -> str:
        """Run a line of Bash and return what it prints."""
        return alone(line, params.limits, "bash").text

    return Toolbox([shell])
