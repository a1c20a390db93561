"""Runs environments in another process: this file alone, with the standard library only. On pipes, one object a line:

    python -P far.py '{"path": "games.py:my_game", "params": {...}}'

The function at `path` is called `my_game(params, prompt, task_seed, sample_seed)` with JSON values. It returns an
object with `start()` -> {"messages"?, "tools"?}, `step(message)` -> {"messages"?, "done"?, "reward"?,
"outcome"?, "uses"?} and `close()`. Fields are those of `Start`, `Reply` and `Message` in base.py; dataclasses
with those fields may be returned too. With "root", the environment is one of ours, by "name" or "path"; "root" is
the folder to import the package from, or null where it is installed.

Requests: {"id", "call": "start", "episode", "prompt", "task_seed", "sample_seed"}, {"id", "call": "step", "episode",
"message", "tokens"?} and {"id", "call": "close", "episode"}. Answers: {"id", "value"} or {"id", "error"}. Where
`start` also returns "counts_tokens": true, each step brings "tokens", the turn's [tokens of the prompt, sampled tokens,
true if it was cut], for `count_tokens(prompt_tokens, sampled_tokens, was_cut)`, which is called before `step`.
"takes_unread": true asks for turns with calls that cannot be read, as text.
What the environment prints goes to standard error.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GRACE_S = 5.0
"""Seconds in which open episodes must close after the trainer is gone."""

MakeEpisode = Callable[[Any, Any, int, int], Any]


def load_function(choice: dict[str, Any]) -> MakeEpisode:
    """Return the function that makes episodes."""
    if "root" in choice:
        if choice["root"] is not None:
            sys.path.insert(0, choice["root"])
        from verizero.pipeline.environments.as_json import json_environment

        make: MakeEpisode = json_environment(
            choice.get("name"), choice.get("path"), choice.get("params") or {}, choice.get("base")
        )
        return make
    file, _, attribute = choice["path"].partition(":")
    source = Path(choice.get("base") or "", file)
    spec = importlib.util.spec_from_file_location(f"environment_{source.stem}", source)
    if spec is None or spec.loader is None or not source.is_file() or not attribute:
        raise ValueError(f"path {choice['path']!r}: expected 'file.py:function', looked for {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function: MakeEpisode = getattr(module, attribute)
    return function


class OpenEpisodes:
    """The open episodes, and the answers to requests for them. Requests of different episodes may come at one time."""

    def __init__(self, make: MakeEpisode, params: dict[str, Any]) -> None:
        """`make` makes episodes with `params`."""
        self._make, self._params = make, params
        self._open: dict[str, Any] = {}
        self._lock = threading.Lock()

    def answer(self, line: str | bytes) -> str:
        """Return the answer to a request, as a line."""
        number = None
        try:
            request = json.loads(line)
            number = request.get("id")
            answer = json.dumps({"id": number, "value": self._value(request)}, default=_as_json, allow_nan=False)
        except BaseException as exc:  # any exception of one environment: other episodes continue
            answer = json.dumps({"id": number, "error": f"{type(exc).__name__}: {exc}"[:2000]})
        return answer + "\n"

    def _value(self, request: dict[str, Any]) -> Any:
        call, episode = request["call"], request.get("episode", "")
        if call == "close":
            with self._lock:
                environment = self._open.pop(episode, None)
            if environment is not None:
                environment.close()
            return None
        if call == "start":
            environment = self._make(
                self._params, request["prompt"], int(request["task_seed"]), int(request["sample_seed"])
            )
            with self._lock:
                self._open[episode] = environment
            return environment.start()
        if call == "step":
            with self._lock:
                environment = self._open[episode]
            if "tokens" in request:
                environment.count_tokens(*request["tokens"])
            return environment.step(request["message"])
        raise ValueError(f"unknown call {call!r}")

    def close(self) -> None:
        """Close the episodes that are open."""
        for environment in self._open.values():
            try:
                environment.close()
            except BaseException as exc:
                print(f"an episode does not close: {type(exc).__name__}: {exc}", file=sys.stderr)


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def on_pipes(choice: dict[str, Any], threads: int) -> None:
    """Answer requests from standard input until it ends; then close the open episodes, and end the process group."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii", newline="\n")
    # A print of the environment would be a broken line of answers.
    os.dup2(2, 1)
    reading, writing = threading.Lock(), threading.Lock()
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_watch, args=(source.fileno(),), daemon=True).start()
    try:
        episodes = OpenEpisodes(load_function(choice), choice.get("params") or {})
    except BaseException as exc:
        out.write(json.dumps({"id": 0, "error": f"{type(exc).__name__}: {exc}"[:2000]}) + "\n")
        out.flush()
        return
    out.write('{"id": 0, "value": null}\n')
    out.flush()

    def work() -> None:
        while True:
            # The thread that read a request answers it: nothing is passed to another thread on the way.
            with reading:
                line = source.readline()
            if not line:
                return
            answer = episodes.answer(line)
            with writing:
                out.write(answer)
                out.flush()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    episodes.close()
    _end()


def _watch(descriptor: int) -> None:
    """Wait until nobody reads from this process, even while all its threads are busy; then end it."""
    poll = select.poll()
    poll.register(descriptor, 0)
    poll.poll()
    time.sleep(GRACE_S)
    _end()


def _end() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    on_pipes(arguments, int(arguments.get("threads") or 8))
