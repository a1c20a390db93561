"""Ask a model the questions of suites: one that is computed here, or one behind an endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from verizero.pipeline.commands.rate import at_start
from verizero.pipeline.commands.suites.answers import Answer, Answers, key_of
from verizero.pipeline.commands.suites.models import Measured
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.suites import Suite
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.errors import EngineError, GradingError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.rollout.endpoint import answer_of
from verizero.pipeline.rollout.engine import Ended, Request, Sampling
from verizero.pipeline.run.build import build_tokenizer, context_of
from verizero.pipeline.run.data import write_rows
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Prompt

TOO_LONG = Answer("", 0, True)
"""The answer to a prompt that leaves no room in the model's context."""
ROWS = "suites.jsonl"


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


@dataclass(frozen=True, slots=True)
class Loaded:
    """A suite and its prompts."""

    suite: Suite
    prompts: list[Prompt]


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


def with_chat(config: RunConfig, tokenizer: Any, model: Measured) -> RunConfig:
    """Return the recipe with the tokenizer's chat template, where it has one and no run says which."""
    if model.template is not None or not tokenizer.chat_template or config.data.template.name != "plain":
        return config
    template = Template.model_validate("chat")
    return config.model_copy(update={"data": config.data.model_copy(update={"template": template})})


def questions_here(model: Measured, loaded: Sequence[Loaded], config: RunConfig) -> tuple[RunConfig, list[Question]]:
    """Return the questions in tokens, and the recipe with room for all answers.

    All answers of a suite have the same limit: the suite's, or what its longest prompt leaves of the context. A prompt
    that leaves less than half of the context, and less than the suite's limit, is not asked.
    """
    tokenizer, context = build_tokenizer(config), context_of(config)
    config = with_chat(config, tokenizer, model)
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
    count = _Count(progress, f"ask {model.label}", total - sum(len(numbers) for _, numbers in missing), total)
    if not missing:
        count.begin()
    elif model.served is None:
        _ask_here(config, missing, answers, count, [p for own in loaded for p in own.prompts])
    else:
        _ask_there(config, missing, answers, count)
    return questions


@dataclass
class _Count:
    """The number of answers, with those of an earlier start."""

    progress: Progress
    what: str
    done: int
    total: int

    def begin(self) -> None:
        """Show the count, when the model is ready."""
        self.progress.begin(self.what, self.done, self.total)

    def add(self, number: int) -> None:
        """Count answers."""
        self.done += number
        self.progress.advance(self.done, {})


def _missing(questions: Sequence[Question], answers: Answers) -> Iterator[tuple[Question, list[int]]]:
    for question in questions:
        numbers = [i for i in range(question.samples) if (question.key, i) not in answers.known]
        if numbers and not question.is_too_long:
            yield question, numbers


def _seed(question: Question, number: int) -> int:
    return derive(0, "rollout", "suite", question.prompt.id, number)


def _ask_here(
    config: RunConfig,
    missing: Sequence[tuple[Question, list[int]]],
    answers: Answers,
    count: _Count,
    prompts: Sequence[Prompt],
) -> None:
    with TemporaryDirectory() as folder:
        rows = Path(folder) / ROWS
        write_rows(rows, prompts)
        source = config.data.train[0].model_copy(update={"file": str(rows)})
        config = config.model_copy(update={"data": config.data.model_copy(update={"train": (source,)})})
        with at_start(config, Path.cwd(), count.progress) as session:
            count.begin()
            generation = session.workers.rollouts.generation
            for how in dict.fromkeys(q.sampling for q, _ in missing):
                some = [(q, numbers) for q, numbers in missing if q.sampling == how]
                requests = [Request(q.ids, tuple(_seed(q, i) for i in numbers)) for q, numbers in some]

                def keep(ended: Sequence[Ended], some: list[tuple[Question, list[int]]] = some) -> None:
                    for e in ended:
                        question, numbers = some[e.request]
                        text = generation.renderer.decode(e.token_ids)
                        answer = Answer(text, len(e.token_ids), e.finish_reason == "length")
                        answers.add(question.key, question.prompt.id, numbers[e.sample], answer)
                    count.add(len(ended))

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
    config: RunConfig, missing: Sequence[tuple[Question, list[int]]], answers: Answers, count: _Count
) -> None:
    count.begin()
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
                count.add(1)
        except GradingError as exc:
            raise EngineError(f"{exc}; check that it runs, then start the same command again") from exc
        finally:
            pool.shutdown(cancel_futures=True)  # else an error, or Ctrl-C, would wait for all that is still to be asked
