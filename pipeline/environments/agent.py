"""Any program as an agent: it is started for each episode with a base URL and a key, and talks to the policy there.

The program is the user's own and runs outside the sandbox, which is for programs that the policy writes. It gets the
task in the variable VERIZERO_TASK and in the file task.txt of its folder, which is otherwise empty, and the address and
the key in the variables that clients of chat completions read. It ends by itself when it is done.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from verizero.pipeline.environments.base import BASE, EnvironmentParams, Reply, Start, ToolUse
from verizero.pipeline.environments.gateway.chat import Answer
from verizero.pipeline.environments.gateway.server import MODEL, Exchange, Gateway, Pending
from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.host import child
from verizero.pipeline.types import Message, Prompt, Verdict
from verizero.sandbox import work_folders

EXAMPLE = Prompt("agent/1", "1+1=", "exact", "2")
POLL_S = 0.01
GRACE_S = 2.0
UNKNOWN = "unknown"
BROKEN = (UNKNOWN, *(str(-s) for s in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
"""Exit statuses of a program that was killed, e.g. for lack of memory: a failure of the machine, not of the policy."""
MAX_LOG = 4096
"""Characters of a failed program's output that its error quotes."""


class Params(EnvironmentParams):
    """The program, its surroundings and its limits."""

    command: tuple[str, ...] = Field(min_length=1, description="program and arguments; files from the recipe's folder")
    answer: Literal["last_message", "stdout"] | dict[Literal["file"], str] = Field(
        "last_message", description="the text that the verifier grades; {file: NAME}: a file that the program writes"
    )
    variables: dict[str, str] = Field({}, description="further environment variables of the program")
    keep: tuple[str, ...] = Field(("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE"), description="variables passed on to it")
    step_s: float = Field(600, gt=0, description="seconds for a step of the program, after which it counts as broken")
    cpu_s: int | None = Field(None, ge=1, description="CPU seconds of the program")
    memory_mib: int | None = Field(None, ge=16, description="memory of each of its processes")

    @field_validator("command")
    @classmethod
    def _found(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        base = (info.context or {}).get(BASE) or Path.cwd()
        # A word may be a whole program, and too long for the name of a file: `Path.is_file` would raise.
        return tuple(str((base / word).absolute()) if os.path.isfile(base / word) else word for word in value)


class Agent:
    """One run of the program. Each of its requests is a turn of the policy."""

    takes_unread = True
    """If a call cannot be read, the program gets the message as text and decides how to answer."""

    def __init__(self, params: Params, prompt: Prompt, seeds: tuple[int, int]) -> None:
        """`seeds`: of the task and of the episode."""
        self.params, self.prompt, self.seeds = params, prompt, seeds
        self._exchange: Exchange | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._lock = -1
        self._pending: Pending | None = None
        self._turn = 0
        self._tokens = (0, 0, False)

    def start(self) -> Start:
        """Start the program, and wait for its first request. Raises: EnvironmentFailed if it ends without one."""
        self._exchange = shared_gateway().open()
        home, self._lock = work_folders.make()
        self._folder = Path(home)
        self._folder.chmod(0o700)  # the task is for this user alone
        (self._folder / "work").mkdir()
        (self._folder / "work" / "task.txt").write_text(self.prompt.asked, encoding="utf-8")
        self._process = self._spawn(self._exchange, self._folder)
        self._pending = self._next()
        if self._pending is None:
            raise EnvironmentFailed(
                f"the agent {self.params.command[0]!r} ended with status {self._status()} before its first request: "
                f"{self._log()}"
            )
        return Start(self._pending.request.messages, self._pending.request.tools)

    def count_tokens(self, prompt_tokens: int, sampled_tokens: int, was_cut: bool) -> None:
        """Keep the size of the turn for the answer to the program."""
        self._tokens = prompt_tokens, sampled_tokens, was_cut

    def step(self, message: Message) -> Reply:
        """Answer the program's request, and wait for its next one or for its end."""
        assert self._exchange is not None
        assert self._pending is not None
        answer = Answer(f"{self.prompt.id}-{self._turn}".replace("/", "-"), message, *self._tokens)
        self._turn += 1
        uses = tuple(ToolUse(call.name) for call in message.calls)
        self._exchange.answer(self._pending, answer)
        self._pending = self._next()
        if self._pending is not None:
            request = self._pending.request
            return Reply(history=request.messages, tools=request.tools, uses=uses)
        return replace(self._ended(), uses=uses, counts=dict(self._exchange.counts))

    def close(self) -> None:
        """End the program and all that it started, and remove its folder."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.seal("a limit was reached")
        process, self._process = self._process, None
        if process is not None:
            child.ends_within(process, GRACE_S)
            child.end(process, grace_s=2 * child.GRACE_S)  # the watcher ends the program's whole group
        if exchange is not None:
            shared_gateway().forget(exchange)
        folder, self._folder = self._folder, None
        if folder is not None:
            work_folders.remove(str(folder), self._lock)

    def _spawn(self, exchange: Exchange, folder: Path) -> subprocess.Popen[bytes]:
        variables = {name: os.environ[name] for name in self.params.keep if name in os.environ}
        work = folder / "work"
        task_seed, sample_seed = self.seeds
        variables |= {
            "HOME": str(work),
            "TMPDIR": str(work),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "VERIZERO_TASK": self.prompt.asked,
            "VERIZERO_TASK_SEED": str(task_seed),
            "VERIZERO_SAMPLE_SEED": str(sample_seed),
            "VERIZERO_URL": f"{exchange.url}/v1",
            "VERIZERO_KEY": exchange.key,
            "VERIZERO_MODEL": MODEL,
            "OPENAI_BASE_URL": f"{exchange.url}/v1",
            "OPENAI_API_KEY": exchange.key,
            "OPENAI_MODEL": MODEL,
        }
        limits = [f"--cpu-s={self.params.cpu_s}"] if self.params.cpu_s is not None else []
        limits += [f"--memory-mib={self.params.memory_mib}"] if self.params.memory_mib is not None else []
        limits.append(f"--status={folder / 'status'}")
        command, environment = child.watched(self.params.command, *limits), variables | self.params.variables
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            return child.start(command, env=environment, cwd=work, stdout=out, stderr=err)

    def _next(self) -> Pending | None:
        """Return the program's next request; None once it has ended. Raises: EnvironmentFailed if it does neither."""
        assert self._exchange is not None
        assert self._process is not None
        until = time.monotonic() + self.params.step_s
        while time.monotonic() < until:
            has_ended = child.status_of(self._process) is not None
            try:
                # Also after its end: its last request may still be in the queue.
                return self._exchange.requests.get(timeout=0 if has_ended else POLL_S)
            except queue.Empty:
                if has_ended:
                    return None
        raise EnvironmentFailed(
            f"the agent {self.params.command[0]!r} neither asked nor ended for {self.params.step_s:g} s; raise step_s"
        )

    def _ended(self) -> Reply:
        status = self._status()
        if status in BROKEN:
            raise EnvironmentFailed(
                f"the agent {self.params.command[0]!r} was ended from outside (status {status}): {self._log()}"
            )
        if status != "0":
            reason = f"agent_failed: status {status}: {self._log()}"
            return Reply(done=True, outcome=Verdict("no_answer", reason=reason[:300]))
        return Reply(done=True, answer=self._answer())

    def _status(self) -> str:
        assert self._folder is not None
        path = self._folder / "status"
        return path.read_text() if path.is_file() else UNKNOWN

    def _answer(self) -> str | None:
        assert self._folder is not None
        if self.params.answer == "last_message":
            return None
        how: Any = self.params.answer
        path = self._folder / "stdout" if how == "stdout" else self._folder / "work" / how["file"]
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def _log(self) -> str:
        assert self._folder is not None
        text = (self._folder / "stderr").read_bytes()[-MAX_LOG:].decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else "it wrote nothing to stderr"


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> Agent:
    """Return a run of the program, which `start` begins."""
    return Agent(params, prompt, (task_seed, sample_seed))


_GATEWAY: list[Gateway] = []
_LOCK = threading.Lock()


def shared_gateway() -> Gateway:
    """Return the gateway of this process, started at the first call."""
    with _LOCK:
        if not _GATEWAY:
            _GATEWAY.append(Gateway())
        return _GATEWAY[0]
