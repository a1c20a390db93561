"""Lines of Bash in the sandbox, each in a process of its own."""

from __future__ import annotations

from verizero.pipeline.environments.tools._programs import ProgramParams, Programs, SeparateProcesses
from verizero.pipeline.environments.tools.base import Toolbox, tool
from verizero.pipeline.types import Prompt


class Params(ProgramParams):
    """Limits of one line."""

    def languages(self) -> frozenset[str]:
        """Return Bash."""
        return frozenset({"bash"})


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the tool `shell`."""
    return over(SeparateProcesses(params.limits))


def over(programs: Programs) -> Toolbox:
    """Return the tool `shell`, whose lines `programs` runs."""

    @tool
    def shell(line: str) -> str:
        """Run a line of Bash and return what it prints."""
        return programs.shell(line).text

    return Toolbox([shell], [programs.close])
