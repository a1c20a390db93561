"""Runs Python cells and lines of Bash in one session of the sandbox, which keeps files and variables."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from verizero import sandbox
from verizero.pipeline.environments.tools._programs import Output, ProgramParams
from verizero.pipeline.environments.tools.base import Toolbox, tool
from verizero.pipeline.errors import EnvironmentFailed, IsolationError, SessionError
from verizero.pipeline.types import Prompt
from verizero.sandbox.results import MOST
from verizero.sandbox.settings import SESSION, open_session


class Params(ProgramParams):
    """Limits of one call, and of all calls of an episode."""

    calls: int = Field(100, ge=1, description="calls of an episode")
    disk_mib: int = Field(16, ge=1, le=MOST["disk_mib"], description="files of an episode")
    shell: bool = Field(True, description="false: Python alone")

    def languages(self) -> frozenset[str]:
        """Return Python, Bash if there is a shell, and that both keep a state."""
        return frozenset({"python", "bash", SESSION} if self.shell else {"python", SESSION})


class SessionPrograms:
    """Runs the programs of an episode in one session, which the first call opens."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self._session: sandbox.Session | None = None

    def python(self, code: str) -> Output:
        """Run a cell. Raises: EnvironmentFailed if the sandbox failed or the session is lost."""
        return self._call("python", code)

    def shell(self, line: str) -> Output:
        """Run a line of Bash. Raises: EnvironmentFailed if the sandbox failed or the session is lost."""
        return self._call("shell", line)

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _call(self, kind: str, text: str) -> Output:
        session = self._session = self._session or self._open()
        try:
            # A ValueError, for text that is too long, is the policy's mistake and passes.
            result = session.python(text) if kind == "python" else session.shell(text)
        except (IsolationError, SessionError, OSError) as exc:
            raise EnvironmentFailed(f"the session of the sandbox failed: {exc}") from exc
        if result.status == "sandbox_error":
            raise EnvironmentFailed(f"the sandbox failed: {result.error[:300]}")
        return Output(result.status, result.stdout + result.stderr, result.error)

    def _open(self) -> sandbox.Session:
        try:
            return open_session(replace(self.params.limits, disk_mib=self.params.disk_mib), self.params.calls)
        except (IsolationError, SessionError, ValueError, OSError) as exc:
            raise EnvironmentFailed(f"the sandbox opens no session: {exc}") from exc


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the tools `python` and `shell` over one session."""
    programs = SessionPrograms(params)

    @tool
    def python(code: str) -> str:
        """Run Python code in a session that keeps its variables and files, and return what it prints."""
        return programs.python(code).text

    @tool
    def shell(line: str) -> str:
        """Run a line of Bash in the session's folder and return what it prints."""
        return programs.shell(line).text

    return Toolbox([python, shell] if params.shell else [python], [programs.close])
