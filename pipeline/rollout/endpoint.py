"""Samples answers from a model at an OpenAI-compatible endpoint, as rollouts without log-probs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from verizero.pipeline.config.sample import EndpointConfig
from verizero.pipeline.errors import DataError, EngineError, GradingError
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import FinishReason, Prompt, Rollout
from verizero.verifiers._chat_request import chat

LARGEST_SEED = 2**31
Tokens = Callable[[str], tuple[int, ...]]
"""Returns a response's tokens with the end token. Raises: DataError for a text that no tokens give."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The responses of an endpoint."""

    rollouts: list[list[Rollout]]
    """The responses to each prompt, without those that the policy's tokens cannot express."""
    unwritable: int
    """The number of responses left out."""


def answer_of(config: EndpointConfig, prompt: Prompt, sampling: Sampling, seed: int) -> tuple[str, bool]:
    """Return an answer to the prompt, and whether it was cut at its length. Raises: GradingError without an answer."""
    system = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
    body = {
        "model": config.model,
        "messages": [*system, {"role": "user", "content": prompt.asked}],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        # Many endpoints take seeds of 31 bits only.
        "seed": seed % LARGEST_SEED,
    }
    choice = chat(config.url, body, config, "endpoint")
    return str(choice["message"]["content"]), choice.get("finish_reason") == "length"


def ask_endpoint(
    config: EndpointConfig,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    tokens: Tokens,
    seed: int,
    *names: str | int,
) -> Answers:
    """Return answers to each question, with a seed each, which endpoints may ignore. Raises: EngineError."""

    def ask(prompt: Prompt, number: int) -> tuple[str, bool]:
        return answer_of(config, prompt, sampling, derive(seed, "rollout", *names, prompt.id, number))

    wanted = [(p, i) for p in prompts for i in range(samples)]
    with ThreadPoolExecutor(config.parallel, thread_name_prefix="endpoint") as pool:
        try:
            answers = list(pool.map(ask, [p for p, _ in wanted], [i for _, i in wanted]))
        except GradingError as exc:
            # Otherwise leaving the block would first send all requests that still wait.
            pool.shutdown(cancel_futures=True)
            raise EngineError(f"{exc}; check that the endpoint runs, then start the same command again") from exc
    rollouts: list[list[Rollout]] = [[] for _ in prompts]
    unwritable = 0
    for index, ((prompt, number), (text, is_cut)) in enumerate(zip(wanted, answers, strict=True)):
        try:
            ids = tokens(text)
        except DataError:
            unwritable += 1
            continue
        ids = ids[:-1] if is_cut else ids  # `tokens` adds the end token, which a response cut at its length lacks
        reason: FinishReason = "length" if is_cut else "stop"
        # No weights of ours drew it: version -1, no prompt tokens, and log-probs that nobody may use.
        rollouts[index // samples].append(Rollout(prompt.id, number, (), ids, (0.0,) * len(ids), text, reason, -1))
    return Answers(rollouts, unwritable)
