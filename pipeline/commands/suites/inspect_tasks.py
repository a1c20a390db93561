"""Tasks of inspect: `inspect eval-set` asks the model at an address, and its logs become graded answers.

inspect is a program of its own: it is called by its command line, and its logs are read as JSON.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verizero.pipeline.child import end, start, tail_of
from verizero.pipeline.commands.suites.models import Measured
from verizero.pipeline.environments.gateway.server import Gateway
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.files import write_atomic
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.run.serving import load_served, serve_waiting
from verizero.pipeline.train.device import existing_device
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

FOLDER = "inspect"
FINISHED = "finished"
"""File with the log of the finished task, in JSON: to ask inspect for it takes seconds."""
WAIT_S = 0.2
LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Values of inspect's scorers: correct, partial, incorrect, no answer."""
ENDED = ("max_tokens", "model_length")
"""Reasons of inspect for which an answer was cut."""


def inspect_groups(
    model: Measured, task: str, limit: int | None, max_tokens: int, device: str, progress: Progress
) -> tuple[list[Group], list[str]]:
    """Return the graded answers of a task, by row, and notes for people. What an earlier call has answered stays.

    Raises: ConfigError if inspect is not installed; RunError with its last words if it fails.
    """
    program = program_of_inspect()
    name = re.sub(r"[^A-Za-z0-9]+", "-", task).strip("-")
    folder = model.folder / FOLDER / f"{name}-{limit or 'all'}-{max_tokens}-{model.fingerprint()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / FINISHED
    if not kept.is_file():
        progress.say(f"inspect asks {model.label} the rows of {task}; its log is {folder}")
        with at_address(model, max_tokens, device) as (url, key, served):
            _run_task([program, "eval-set", task], folder, limit, max_tokens, (url, key, served))
        if (log := finished_log(program, folder)) is None:
            raise RunError(f"inspect eval-set {task} wrote no log of a finished task into {folder}")
        write_atomic(kept, log)
    log = json.loads(kept.read_bytes())
    scorer = next(iter(log["samples"][0].get("scores") or {}), None)
    return groups_of(log, task), [f"{task} by inspect, at most {max_tokens:,} tokens; graded by {scorer or 'nothing'}"]


def program_of_inspect() -> str:
    """Return the path of the program. Raises: ConfigError if it is not installed."""
    here = Path(sys.executable).parent / "inspect"
    program = str(here) if here.is_file() else shutil.which("inspect")
    if program is None:
        raise ConfigError("--inspect needs the program inspect: pip install 'verizero[inspect]'")
    return program


def _run_task(
    command: Sequence[str], folder: Path, limit: int | None, max_tokens: int, address: tuple[str, str, str]
) -> None:
    url, key, served = address
    words = [*command, "--model", f"openai-api/verizero/{served}", "--log-dir", str(folder), "--display", "none"]
    words += ["--max-tokens", str(max_tokens), "--retry-attempts", "1", "--log-dir-allow-dirty"]
    words += [] if limit is None else ["--limit", str(limit)]
    output = folder / "output.txt"
    # The key in the environment, as every user of this machine could read one among the words of a command.
    child = start(words, {"VERIZERO_API_KEY": key, "VERIZERO_BASE_URL": url}, log=output, dies=True)
    try:
        status = child.wait()
    except BaseException:
        end(child)
        raise
    if status != 0:
        raise RunError(f"inspect ended with status {status}: {tail_of(output)}")


@contextmanager
def at_address(model: Measured, max_tokens: int, device: str) -> Iterator[tuple[str, str, str]]:
    """Yield base URL, key and name of the model: an endpoint's own, or those of a server of it in this process."""
    if model.served is not None:
        yield model.model, "none", model.served
        return
    served = load_served(model.model, model.template, Sampling(max_tokens, 0.0), existing_device(device, "--set"))
    gateway = Gateway()
    exchange = gateway.open(is_episode=False)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            serve_waiting(served, exchange, WAIT_S)

    thread = threading.Thread(target=serve, name="serve", daemon=True)
    thread.start()
    try:
        yield f"{exchange.url}/v1", exchange.key, "policy"
    finally:
        over.set()
        thread.join()
        gateway.close()


def finished_log(program: str, folder: Path) -> bytes | None:
    """Return the log of a task that was finished in the folder, as inspect shows it in JSON; None if there is none."""
    for path in sorted(folder.glob("*.eval"), reverse=True):
        done = subprocess.run([program, "log", "dump", str(path)], capture_output=True, check=False)
        try:
            log: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            continue  # of a killed command
        if log.get("status") == "success" and log.get("samples"):
            return done.stdout
    return None


def groups_of(log: Mapping[str, Any], domain: str) -> list[Group]:
    """Return a group for each row of a log, whose epochs are its answers, in order."""
    by_row: dict[str, list[Mapping[str, Any]]] = {}
    for sample in log["samples"]:
        by_row.setdefault(str(sample["id"]), []).append(sample)
    groups = []
    for row, samples in by_row.items():
        prompt = Prompt(f"{domain}/{row}", text_of(samples[0]["input"]), FOLDER, samples[0]["target"], domain)
        members = [_member(prompt, i, s) for i, s in enumerate(sorted(samples, key=lambda s: int(s["epoch"])))]
        groups.append(Group(prompt, tuple(members)))
    return groups


def _member(prompt: Prompt, number: int, sample: Mapping[str, Any]) -> ScoredRollout:
    choices = (sample.get("output") or {}).get("choices") or [{}]
    text = text_of((choices[0].get("message") or {}).get("content", ""))
    tokens = int(((sample.get("output") or {}).get("usage") or {}).get("output_tokens", 0))
    was_cut = choices[0].get("stop_reason") in ENDED
    verdict = verdict_of(sample)
    rollout = Rollout(prompt.id, number, (), range(tokens), (), text, "length" if was_cut else "stop", -1)
    return ScoredRollout(rollout, verdict, None if verdict.is_left_out else verdict.score)


def verdict_of(sample: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a sample's first scorer. A sample that broke, or has no score, is no wrong answer."""
    if sample.get("error"):
        return Verdict("environment_error", reason=f"inspect: {sample['error'].get('message', '')}"[:300])
    scores = sample.get("scores") or {}
    if not scores:
        return Verdict("verifier_error", reason="inspect: no scorer gave a score")
    name, score = next(iter(scores.items()))
    value = score["value"]
    if isinstance(value, Mapping):  # of several numbers the first
        key, value = next(iter(value.items()))
        name = f"{name}.{key}"
    answer = score.get("answer")
    if value == "N":
        return Verdict("no_answer", reason=name)
    try:
        number = LETTERS[value] if isinstance(value, str) and value in LETTERS else float(value)
    except (TypeError, ValueError):
        return Verdict("verifier_error", reason=f"inspect: {name} gave {value!r:.80}, which is no number")
    if not 0 <= number <= 1:  # NaN too
        return Verdict("verifier_error", reason=f"inspect: {name} gave {number:g}, and a score is from 0 to 1")
    return Verdict("graded", number, name, None if answer is None else str(answer))


def text_of(content: Any) -> str:
    """Return the text of a message's content, or of a whole conversation."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return text_of(content.get("text", content.get("content", "")))
    return "\n\n".join(filter(None, map(text_of, content))) if isinstance(content, list) else ""
