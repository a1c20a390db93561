"""Tasks of an installed package of the library `verifiers`, played by its own code.

A program runs one episode (_verifiers_runner.py), asks the gateway for completions as any agent does, and leaves its
result in a file. It is a separate process, so that it can be ended with all that it started, and may run under another
interpreter: the library's tasks often need packages in other versions than training does. The row's answer is
the number of the task. The sum of the weighted rewards, mapped from `reward_range`, is the verdict; an error in the
trace is a failure of the infrastructure.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from verizero.pipeline.environments import agent
from verizero.pipeline.environments.base import BASE, EnvironmentParams, Reply, RewardRange, verdict_of
from verizero.pipeline.errors import DataError, EnvironmentFailed
from verizero.pipeline.types import Message, Prompt

EXAMPLE = Prompt("verifiers_package/0", "", "environment", 0)
RUNNER = Path(__file__).with_name("_verifiers_runner.py")
RESULT = "result.json"
LIBRARY = "verifiers"


class Params(EnvironmentParams):
    """The package, and the interpreter that has it and the library."""

    python: str | None = Field(
        None,
        validate_default=True,
        description="interpreter or virtual environment with the library and the package; null: this one",
    )
    package: str = Field(min_length=1, description="the id of its tasks, e.g. gsm8k")
    taskset: dict[str, Any] = Field({}, description="further fields of the library's section `taskset`")
    env: dict[str, Any] = Field({}, description="further fields of its section `env`, e.g. {agent: {max_turns: 4}}")
    harness: str | None = Field(
        "verizero_chat", description="its program of the agent; null: the package's own choice, most of which need uv"
    )
    variables: dict[str, str] = Field({}, description="further environment variables, e.g. PYTHONPATH of the package")
    reward_range: RewardRange = Field((0.0, 1.0), description="lowest and highest reward of a task")
    step_s: float = Field(600, gt=0, description="seconds between two requests, after which it counts as broken")

    @field_validator("python")
    @classmethod
    def _there(cls, value: str | None, info: ValidationInfo) -> str:
        if value is None and not _is_installed():
            raise ValueError(
                f"python: the library {LIBRARY!r} is not installed here; `pip install 'verifiers>=0.4,<0.5'` and the "
                "package, or name the virtual environment that has them"
            )
        return interpreter(value, (info.context or {}).get(BASE))


class PackageEpisode(agent.Agent):
    """One task, played by the library in a program that runs as an agent does. Each of its requests is a turn."""

    takes_unread = False

    def __init__(self, params: Params, program: agent.Params, prompt: Prompt, seeds: tuple[int, int]) -> None:
        """`program`: the runner's."""
        super().__init__(program, prompt, seeds)
        self.package, self.reward_range = params.package, params.reward_range

    def step(self, message: Message) -> Reply:
        reply = super().step(message)
        if not reply.done:
            return reply
        if reply.outcome is not None:  # the program is the library's, so its failure is not the policy's
            raise EnvironmentFailed(f"{self.package}: {reply.outcome.reason}")
        try:
            result = json.loads(reply.answer or "")
            errors, reward = result["errors"], float(result["reward"])
        except (ValueError, LookupError, TypeError) as exc:
            raise EnvironmentFailed(f"{self.package} left no result: {exc}") from exc
        if errors or not result.get("ok"):
            raise EnvironmentFailed(f"{self.package}: {'; '.join(errors) or 'the episode is not ok'}")
        return Reply(done=True, outcome=verdict_of(reward, self.reward_range, result.get("stop") or ""))


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> PackageEpisode:
    """Return an episode of the task whose number is the row's answer. Raises: DataError if it is none."""
    index = prompt.reference
    if isinstance(index, bool) or not str(index).isdecimal():
        raise DataError(f"answer: expected the number of a task, got {index!r:.80}")
    choice = params.model_dump(include={"package", "taskset", "env", "harness"}) | {"index": int(index)}
    assert params.python is not None  # its validator fills it in
    runner = agent.Params(
        command=(params.python, "-P", str(RUNNER), json.dumps(choice), RESULT),
        answer={"file": RESULT},
        variables=params.variables,
        step_s=params.step_s,
    )
    return PackageEpisode(params, runner, prompt, (task_seed, sample_seed))


def _is_installed() -> bool:
    try:
        version(LIBRARY)
    except PackageNotFoundError:
        return False
    return True


def interpreter(value: str | None, base: Path | None) -> str:
    """Return the path of an interpreter: this one for None, that of a virtual environment for its folder.

    Relative paths start from `base`; a bare name without such a file is searched in PATH.
    Raises: ValueError if there is none.
    """
    if value is None:
        return sys.executable
    path = (base or Path.cwd()) / Path(value).expanduser()
    # Links are kept: the interpreter of a virtual environment is one.
    program = path / "bin" / "python" if path.is_dir() else path
    if os.sep not in value and not program.exists():
        program = Path(shutil.which(value) or program)
    if not os.access(program, os.X_OK) or program.is_dir():
        raise ValueError(
            f"python: no interpreter at {program}; give its path, or the folder of a virtual environment "
            "(python -m venv FOLDER)"
        )
    return str(program.absolute())
