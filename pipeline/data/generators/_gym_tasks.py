"""Program of a process of its own: writes tasks of the reasoning-gym package.

It reads one request, JSON on standard input, and writes {"tasks": [[tasks of a part], ...]} or {"error": words}.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import json
import sys
from typing import Any

MAX_TRIES = 20
"""Tasks that are made for each distinct one that is asked for, at most."""


class Refused(Exception):
    """A part of the request cannot be met. The words name it."""


def configured(gym: Any, factory: Any, part: dict[str, Any], seed: int, size: int) -> Any:
    """Return the data set of a part, at its level of difficulty and with its configuration."""
    name, config = part["name"], dict(part["config"])
    if name not in factory.DATASETS:
        near = difflib.get_close_matches(name, list(factory.DATASETS), n=3)
        raise Refused(
            f"reasoning-gym has no data set {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    if part["level"] is not None:
        if name not in factory.CURRICULA:
            raise Refused(f"the data set {name!r} has no levels; leave out level, and set config")
        curriculum = factory.create_curriculum(name)
        curriculum.set_global_level(part["level"])
        made = curriculum.generate_configuration()
        config = {k: v for k, v in vars(made).items() if k not in ("seed", "size")} | config
    try:
        return gym.create_dataset(name, **{**config, "seed": seed, "size": size})
    except (TypeError, ValueError, AssertionError) as exc:
        raise Refused(f"the data set {name!r} refuses its config {config}: {exc}") from exc


def tasks_of(gym: Any, factory: Any, part: dict[str, Any], seen: set[str]) -> list[dict[str, Any]]:
    """Return so many tasks, each as JSON holds it, with questions that are not among `seen`, which it adds to."""
    wanted, name = part["count"], part["name"]
    dataset = configured(gym, factory, part, part["seed"], wanted * MAX_TRIES)
    tasks: list[dict[str, Any]] = []
    for index in range(wanted * MAX_TRIES):
        if len(tasks) == wanted:
            break
        entry = dataset[index]
        plain = json.loads(json.dumps({k: entry[k] for k in ("question", "answer", "metadata")}, default=str))
        question = " ".join(plain["question"].split())
        if question in seen:
            continue
        # The verifier gets the task as JSON: its scorer must still know the answer.
        if entry["answer"] is not None and dataset.score_answer(answer=entry["answer"], entry=plain) < 1.0:
            raise Refused(f"the scorer of {name!r} refuses the answer of its own task {index}; leave {name!r} out")
        seen.add(question)
        tasks.append(plain)
    if len(tasks) < wanted:
        raise Refused(
            f"the data set {name!r} made {len(tasks)} distinct tasks in {wanted * MAX_TRIES}, of {wanted} that are "
            "wanted; lower num_train and num_evaluation, or widen its config"
        )
    return tasks


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    replies, sys.stdout = sys.stdout, sys.stderr
    # What modules make stays: to look through it, again and again, is a part of an import's time.
    gc.disable()
    try:
        gym, factory = importlib.import_module("reasoning_gym"), importlib.import_module("reasoning_gym.factory")
        gc.freeze()
        gc.enable()
        seen: set[str] = set()
        reply: dict[str, Any] = {"tasks": [tasks_of(gym, factory, part, seen) for part in request["parts"]]}
    except ImportError as exc:
        reply = {"missing": str(exc)}
    except Refused as exc:
        reply = {"error": str(exc)}
    json.dump(reply, replies)
    replies.flush()  # with frozen objects, the end of the interpreter would not


if __name__ == "__main__":
    main()
