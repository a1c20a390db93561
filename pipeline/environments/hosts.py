"""Hosts of environments: this process, another process, or another interpreter.

A host makes the environments of episodes. The far side is the process in which they run, if it is not this one; far.py
is its program, and many episodes share it. All its failures are an EnvironmentFailed: its death, a step
that takes too long, a line that cannot be read.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from verizero.pipeline.environments import as_json
from verizero.pipeline.environments._far_process import ConnectionLost, FarProcess
from verizero.pipeline.environments.base import Environment, Reply, Start, load
from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.host.programs import import_root
from verizero.pipeline.types import Message, Prompt
from verizero.sandbox import settings

Place = Literal["here", "process"] | Mapping[str, str]
"""`place` of a recipe: here; process; {"python": path of an interpreter}."""
FAR = Path(__file__).with_name("far.py")
LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
"""Variables by which another interpreter would find our packages in place of its own."""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """An environment by name or by path, with its parameters and the folder that relative paths start from.

    Example: EnvironmentSpec(name="guess", params={"tries": 5})
    """

    name: str | None = None
    path: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    base: Path | None = None

    @property
    def label(self) -> str:
        """The environment's name in messages."""
        return f"environment {self.name or self.path!r}"


def open_host(
    place: Place, spec: EnvironmentSpec, *, step_s: float = 60.0, threads: int = 8
) -> InProcessHost | ProcessHost:
    """Return the host for episodes of an environment at the `place` that a recipe chose.

    step_s: seconds of one call to a far side. Episodes share a process, which answers `threads` calls at a time.
    Raises: ConfigError for parameters that the environment refuses.
    """
    if place == "here":
        return InProcessHost(spec)
    if place == "process":
        load(spec.name, spec.path, spec.base).bind(spec.params, spec.base)
        command = [sys.executable, "-P", str(FAR), json.dumps({**_choice(spec, threads), "root": import_root()})]
        return ProcessHost(command, spec.label, step_s, settings.variables)
    # A bare name is looked for in PATH; links are kept, since a virtual environment's interpreter is one.
    program = place["python"]
    if os.sep in program:
        program = str((spec.base or Path.cwd()) / program)
    command = [program, "-P", str(FAR), json.dumps(_choice(spec, threads))]
    return ProcessHost(command, spec.label, step_s)


def _choice(spec: EnvironmentSpec, threads: int) -> dict[str, Any]:
    base = str((spec.base or Path.cwd()).resolve())
    return {
        "name": spec.name,
        "path": spec.path,
        "params": dict(spec.params),
        "base": base,
        "threads": threads,
    }


class InProcessHost:
    """Runs environments in this process: for trusted code. It adds no time to a step."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Raises: UnknownName, ConfigError."""
        self._bound = load(spec.name, spec.path, spec.base).bind(spec.params, spec.base)

    def make(self, prompt: Prompt, task_seed: int, sample_seed: int) -> Environment:
        """Return the environment itself."""
        return self._bound.make(prompt, task_seed, sample_seed)

    def close(self) -> None:
        """Do nothing: no process was started."""


class RemoteEpisode:
    """An episode whose environment runs on a far side."""

    def __init__(self, far: FarProcess, label: str, request: dict[str, Any]) -> None:
        """`request` has the prompt and the seeds."""
        self._far, self._label, self._request = far, label, request
        self._episode = secrets.token_hex(8)
        self._is_open = True
        self._broke = False
        self.deterministic = True
        self.takes_unread = False
        """The environment wants turns whose calls cannot be read, as text."""
        self._counts = False
        self._tokens = (0, 0, False)

    def start(self) -> Start:
        """Begin the episode. Raises: EnvironmentFailed."""
        value = self._ask({"call": "start", **self._request})
        options = value if isinstance(value, dict) else {}
        self.deterministic = options.get("deterministic") is not False
        self.takes_unread, self._counts = options.get("takes_unread") is True, options.get("counts_tokens") is True
        return as_json.start_of(value, self._label)

    def count_tokens(self, prompt_tokens: int, sampled_tokens: int, was_cut: bool) -> None:
        """Keep the size of the turn; the next `step` sends it, if the environment counts tokens."""
        self._tokens = prompt_tokens, sampled_tokens, was_cut

    def step(self, message: Message) -> Reply:
        """Return the answer to a message. Raises: EnvironmentFailed."""
        request: dict[str, Any] = {"call": "step", "message": as_json.message_json(message)}
        if self._counts:
            request["tokens"] = list(self._tokens)
        return as_json.reply_of(self._ask(request), self._label)

    def close(self) -> None:
        """End the episode. After a lost connection the far side is not told: it may never answer."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if not self._broke:
                self._ask({"call": "close"})
        finally:
            self._far.leave()

    def _ask(self, request: dict[str, Any]) -> Any:
        try:
            return self._far.ask({"episode": self._episode, **request})
        except EnvironmentFailed as exc:
            self._broke = isinstance(exc, ConnectionLost)
            raise EnvironmentFailed(f"{self._label}: {exc}") from exc


class ProcessHost:
    """Runs environments in a process with several episodes; a new one replaces it if it dies or gets stuck."""

    def __init__(
        self, command: list[str], label: str, step_s: float, variables: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        """`command` starts a far side on pipes; `variables` are added to its environment when it starts."""
        self._variables = variables
        self._command, self._label, self._step_s = command, label, step_s
        # Without a fixed seed the order of a set of texts differs from process to process.
        self._environ = {"PYTHONHASHSEED": "0"} | {k: v for k, v in os.environ.items() if k not in LEFT_OUT}
        self._running: list[FarProcess] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def make(self, prompt: Prompt, task_seed: int, sample_seed: int) -> RemoteEpisode:
        """Return an episode in the process. Raises: EnvironmentFailed if none can be started."""
        request = {"prompt": as_json.prompt_json(prompt), "task_seed": task_seed, "sample_seed": sample_seed}
        with self._lock:
            if self._is_closed:
                raise EnvironmentFailed(f"{self._label}: its host is closed; open another")
            for far in [far for far in self._running if far.is_over]:
                far.end()
                self._running.remove(far)
            if not any(far.is_usable for far in self._running):
                try:
                    environ = self._environ | dict(self._variables())
                    self._running.append(FarProcess(self._command, environ, self._step_s))
                except EnvironmentFailed as exc:
                    raise EnvironmentFailed(f"{self._label}: {exc}") from exc
            far = next((far for far in self._running if far.is_usable), self._running[-1])  # one that just died fails
            far.enter()
        return RemoteEpisode(far, self._label, request)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, []
        for far in running:
            far.end()


EnvironmentHost = InProcessHost | ProcessHost
"""Makes the environments of episodes. Any thread may call it."""
