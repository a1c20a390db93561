"""Suites and their questions, and the answers of a model to them: one that is computed here, or behind an endpoint.

Each answer is written to disk as soon as it is there, so that a killed command asks for none of them again.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from verizero.pipeline.commands.rate import at_start
from verizero.pipeline.commands.suites.models import Measured
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.suites import Suite, load_suite
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.errors import ConfigError, DataError, EngineError, GradingError
from verizero.pipeline.host.disk import disk_errors, json_text, locked
from verizero.pipeline.models.named import is_hub_reached, is_offline
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.rollout.endpoint import answer_of
from verizero.pipeline.rollout.engine import Ended, Request, Sampling
from verizero.pipeline.rollout.generate import Generation
from verizero.pipeline.run.build import build_tokenizer, context_of
from verizero.pipeline.run.data import write_rows
from verizero.pipeline.seeds import derive, stream
from verizero.pipeline.types import Prompt

FILE = "answers.jsonl"
ROWS = "suites.jsonl"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A suite and its prompts."""

    suite: Suite
    prompts: list[Prompt]


def load_suites(names: Sequence[str], data_dir: Path | None, changes: Mapping[str, int | None]) -> list[Loaded]:
    """Return the suites with their prompts. `changes`: limit, samples, max_tokens; None: the suite's own.

    Raises: ConfigError, DataError, which says what to download where the hub is not reached.
    """
    loaded: list[Loaded] = []
    for name in names:
        suite = load_suite(name.strip(), Path.cwd(), data_dir)
        prompts = _prompts(suite)
        odd = next((p.id for p in prompts if p.environment is not None), None)
        if odd is not None:
            raise DataError(f"suite {suite.name}: row {odd!r} has an environment; a suite grades one answer a row")
        for what, value in changes.items():
            if value is not None and value < 1:
                raise ConfigError(f"--{what.replace('_', '-')} must be >= 1, got {value}")
        limit = changes.get("limit")
        if limit is not None and limit < len(prompts):
            prompts = stream(0, "suite", suite.name).sample(prompts, limit)
            suite = suite.model_copy(update={"rows": suite.rows.model_copy(update={"limit": limit})})
        own = {key: value for key, value in changes.items() if key != "limit" and value is not None}
        loaded.append(Loaded(Suite.model_validate({**suite.model_dump(), **own}), prompts))
    names = [own.suite.name for own in loaded]
    if len(set(names)) < len(names):
        raise ConfigError(f"--suite names a suite twice: {', '.join(names)}; name each once")
    _require_distinct(loaded)
    return loaded


def _prompts(suite: Suite) -> list[Prompt]:
    hub = suite.rows.hub
    try:
        if hub is not None and not Path(hub.id).is_dir() and (is_offline() or not is_hub_reached()):
            raise DataError("the hub is not reached")
        return read_prompts([suite.rows], 0)[0]
    except DataError as exc:
        if hub is None:
            raise
        revision = f" --revision {hub.revision}" if hub.revision else ""
        raise DataError(
            f"suite {suite.name}: the rows of {hub.id} are not here ({exc}). Where there is a network: hf download "
            f"--repo-type dataset {hub.id}{revision} --local-dir {suite.name}; of what it writes, put the file of "
            f"{hub.config + ', ' if hub.config else ''}split {hub.split}, into a folder as {suite.name}.parquet, "
            ".jsonl or .csv, and name the folder with --data-dir"
        ) from exc


def _require_distinct(loaded: Sequence[Loaded]) -> None:
    """Raise DataError if two suites have a row of the same id."""
    names: dict[str, str] = {}
    for own in loaded:
        for prompt in own.prompts:
            if (other := names.setdefault(prompt.id, own.suite.name)) != own.suite.name:
                raise DataError(
                    f"suites {other} and {own.suite.name} both have a row {prompt.id!r}; set mapping.id: null in one"
                )


class Answer(NamedTuple):
    """An answer, as a grader reads it."""

    text: str
    tokens: int
    """0 where nobody counted them."""
    was_cut: bool


TOO_LONG = Answer("", 0, True)
"""The answer to a prompt that leaves no room in the model's context."""


def key_of(model: str, prompt: object, sampling: Sampling) -> str:
    """Return a hash of all that an answer depends on, but for its number: the model, its prompt and the sampling."""
    how = [sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k]
    return hashlib.sha256(json_text([model, prompt, how]).encode("utf-8", "surrogatepass")).hexdigest()[:24]


class Answers:
    """The answers of a folder, by key and number."""

    def __init__(self, path: Path) -> None:
        self.known: dict[tuple[str, int], Answer] = {}
        self._path, self._lock = path, threading.Lock()
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                answer = Answer(str(row["text"]), int(row["tokens"]), bool(row["was_cut"]))
                self.known[str(row["key"]), int(row["sample"])] = answer
            except (ValueError, KeyError, TypeError) as exc:
                raise DataError(f"{path} line {number} is no answer ({exc}); remove the line, or give --out") from exc
        self._file = path.open("ab")
        # A killed command leaves half a line, to which the next one would be glued.
        self._file.truncate(len(whole))

    def add(self, key: str, prompt_id: str, sample: int, answer: Answer) -> None:
        """Keep an answer, unless it is there. Any thread may call it."""
        row = {"key": key, "id": prompt_id, "sample": sample, **answer._asdict()}
        with self._lock, disk_errors(f"writing {self._path}"):
            if (key, sample) not in self.known:
                self.known[key, sample] = answer
                self._file.write(json.dumps(row).encode() + b"\n")  # ASCII: a text may have half a surrogate pair
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def answers_in(folder: Path) -> Iterator[Answers]:
    """Yield the answers of a folder, which is locked meanwhile. Raises: InUse; RunError if it cannot be written."""
    with locked(folder):
        answers = Answers(folder / FILE)
        try:
            yield answers
        finally:
            answers.close()


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as a model is asked it."""

    prompt: Prompt
    ids: tuple[int, ...]
    """Its tokens; empty at an endpoint."""
    samples: int
    sampling: Sampling
    key: str
    is_too_long: bool = False


def config_of(model: Measured, overrides: Sequence[str], rows: Path | None = None) -> RunConfig:
    """Return a recipe that samples from the model, with `overrides` of its fields. Raises: ConfigError."""
    endpoint = None if model.served is None else {"url": model.model, "model": model.served}
    tree: dict[str, Any] = {
        "name": "suites",
        "stages": ["sample"],
        "sample": {"endpoint": endpoint},
        "model": {"path": model.model},
        "data": {
            "train": [{"file": str(rows or ROWS)}],
            "template": "plain" if model.template is None else model.template.model_dump(mode="json"),
            "on_long_prompt": "drop",
        },
        "rollout": {"max_response_tokens": 1},
        "scoring": {"overlap": False},
        "report": {"trackers": []},
    }
    return parse(tree, overrides, source="--set", base=Path.cwd())


def questions_here(model: Measured, loaded: Sequence[Loaded], config: RunConfig) -> tuple[RunConfig, list[Question]]:
    """Return the questions in tokens, and the recipe with room for all answers.

    All answers of a suite have the same limit: the suite's, or what its longest prompt leaves of the context. A prompt
    that leaves less than half of the context, and less than the suite's limit, is not asked.
    """
    tokenizer, context = build_tokenizer(config), context_of(config)
    if model.template is None and tokenizer.chat_template and config.data.template.name == "plain":
        data = config.data.model_copy(update={"template": Template.model_validate("chat")})
        config = config.model_copy(update={"data": data})
    renderer, fingerprint = Renderer(tokenizer, config.data.template), model.fingerprint()
    questions: list[Question] = []
    longest = 1
    for own in loaded:
        limit, ids = own.suite.max_tokens, [renderer.prompt_ids(p) for p in own.prompts]
        most = max(map(len, ids)) if context is None else context - min(limit, context // 2)
        if context is not None:
            limit = min(limit, context - max((len(i) for i in ids if len(i) <= most), default=0))
        sampling = Sampling(limit, own.suite.temperature, own.suite.top_p)
        longest = max(longest, limit)
        for prompt, tokens in zip(own.prompts, ids, strict=True):
            key = key_of(fingerprint, [prompt.id, *tokens], sampling)
            questions.append(Question(prompt, tokens, own.suite.samples, sampling, key, len(tokens) > most))
    rollout = config.rollout.model_copy(update={"max_response_tokens": longest})
    return config.model_copy(update={"rollout": rollout}), questions


def questions_there(model: Measured, loaded: Sequence[Loaded]) -> list[Question]:
    """Return the questions as an endpoint is asked them."""
    fingerprint = model.fingerprint()
    return [
        Question(p, (), own.suite.samples, how, key_of(fingerprint, [p.id, p.system, p.asked], how))
        for own in loaded
        for how in [Sampling(own.suite.max_tokens, own.suite.temperature, own.suite.top_p)]
        for p in own.prompts
    ]


def ask(
    model: Measured, loaded: Sequence[Loaded], overrides: Sequence[str], answers: Answers, progress: Progress
) -> list[Question]:
    """Return all questions, once each has as many answers as its suite asks for. Those that are there are not asked.

    Raises: ConfigError, DataError; EngineError if the endpoint does not answer.
    """
    config = config_of(model, overrides)
    if model.served is None:
        config, questions = questions_here(model, loaded, config)
    else:
        questions = questions_there(model, loaded)
    missing = list(_missing(questions, answers))
    total = sum(q.samples for q in questions)
    done = total - sum(len(numbers) for _, numbers in missing)

    def begin() -> None:
        progress.begin(f"ask {model.label}", done, total)

    def count(number: int) -> None:
        nonlocal done
        done += number
        progress.advance(done, {})

    if not missing:
        begin()
    elif model.served is None:
        with _rows_of(config, [p for own in loaded for p in own.prompts]) as config:
            with at_start(config, Path.cwd(), progress) as session:
                begin()
                _ask_here(session.workers.rollouts.generation, missing, answers, count)
    else:
        begin()
        _ask_there(config, missing, answers, count)
    return questions


def _missing(questions: Sequence[Question], answers: Answers) -> Iterator[tuple[Question, list[int]]]:
    for question in questions:
        numbers = [i for i in range(question.samples) if (question.key, i) not in answers.known]
        if numbers and not question.is_too_long:
            yield question, numbers


def _seed(question: Question, number: int) -> int:
    return derive(0, "rollout", "suite", question.prompt.id, number)


@contextmanager
def _rows_of(config: RunConfig, prompts: Sequence[Prompt]) -> Iterator[RunConfig]:
    """Yield the recipe with a file of these prompts as its rows."""
    with TemporaryDirectory() as folder:
        rows = Path(folder) / ROWS
        write_rows(rows, prompts)
        source = config.data.train[0].model_copy(update={"file": str(rows)})
        yield config.model_copy(update={"data": config.data.model_copy(update={"train": (source,)})})


def _ask_here(
    generation: Generation,
    missing: Sequence[tuple[Question, list[int]]],
    answers: Answers,
    count: Callable[[int], None],
) -> None:
    for how in dict.fromkeys(q.sampling for q, _ in missing):
        some = [(q, numbers) for q, numbers in missing if q.sampling == how]
        requests = [Request(q.ids, tuple(_seed(q, i) for i in numbers)) for q, numbers in some]

        def keep(ended: Sequence[Ended], some: list[tuple[Question, list[int]]] = some) -> None:
            for e in ended:
                question, numbers = some[e.request]
                text = generation.renderer.decode(e.token_ids)
                answer = Answer(text, len(e.token_ids), e.finish_reason == "length")
                answers.add(question.key, question.prompt.id, numbers[e.sample], answer)
            count(len(ended))

        completed = generation.engine.generate(requests, how, keep)
        # An engine may report some of its answers, or none, before it returns.
        keep(
            [
                Ended(i, j, c.token_ids, c.finish_reason)
                for i, completions in enumerate(completed)
                for j, c in enumerate(completions)
                if (some[i][0].key, some[i][1][j]) not in answers.known
            ]
        )


def _ask_there(
    config: RunConfig, missing: Sequence[tuple[Question, list[int]]], answers: Answers, count: Callable[[int], None]
) -> None:
    endpoint = config.sample.endpoint if config.sample is not None else None
    assert endpoint is not None

    def one(question: Question, number: int) -> None:
        text, was_cut = answer_of(endpoint, question.prompt, question.sampling, _seed(question, number))
        answers.add(question.key, question.prompt.id, number, Answer(text, 0, was_cut))

    with ThreadPoolExecutor(endpoint.parallel, thread_name_prefix="endpoint") as pool:
        waiting = [pool.submit(one, q, i) for q, numbers in missing for i in numbers]
        try:
            for finished in as_completed(waiting):
                finished.result()
                count(1)
        except GradingError as exc:
            raise EngineError(f"{exc}; check that it runs, then start the same command again") from exc
        finally:
            pool.shutdown(cancel_futures=True)  # else an error, or Ctrl-C, would wait for all that is still to be asked
