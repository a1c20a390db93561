"""The score of a reward model, squashed into [0, 1], as a verifier. The only verifier that loads torch, when called."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, field_validator

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._steps import check_expression, split_steps
from verizero.verifiers.answer import after_thinking
from verizero.verifiers.base import VerifierParams, verifier

LOADING = threading.Lock()
REWARD = "reward.json"
"""File in the folder of a model that was trained here: the form of its texts, and the spread of its scores."""


class RewardModelParams(VerifierParams):
    """The model, and the function that makes a reward of its score."""

    is_cheap: ClassVar[bool] = False
    model: Path = Field(description="folder of a sequence classifier with one output, with its tokenizer")
    center: float = Field(0.0, allow_inf_nan=False, description="the score that is worth 0.5")
    scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="sigmoid((score - center) / scale)")
    whiten: bool = Field(
        False, description="take center and scale from the mean and spread of the model's scores in its training"
    )
    include_thinking: bool | None = Field(
        None, description="show the model the thinking too; null: as in its training here, else false"
    )
    chat: bool | None = Field(
        None,
        description="put prompt and response through the tokenizer's chat template; null: as in its training here, "
        "else false",
    )
    step_end: str | None = Field(
        None,
        min_length=1,
        description="score each piece of the response up to a match of this regular expression, as its steps; null: as "
        "in the model's training here, else the response alone",
    )
    max_tokens: int = Field(4_096, ge=8, description="a longer text is an error; texts are never cut")
    device: str = "cpu"

    _is_expression = field_validator("step_end")(check_expression)


@verifier(batch=True)
def reward_model(attempts: Sequence[Attempt], params: RewardModelParams) -> list[Verdict]:
    """Return the reward model's score of prompt + response, in [0, 1]; the reference is not used.

    A process reward model scores each step, and the response as its worst step. A text over max_tokens is
    "verifier_error", as the model cannot judge a text that it does not see whole.
    Source: sigmoid((s - center) / scale) is the Bradley-Terry probability of beating an answer of score `center`; the
    worst step, arXiv:2312.08935 section 3.4.
    """
    tokenizer, model = load(str(params.model), params.device)
    params = trained_alike(params)
    verdicts: list[Verdict] = []
    for attempt in attempts:
        shown = shown_to(tokenizer, attempt, params)
        if shown is None:
            verdicts.append(after_thinking(attempt).no_answer())
        elif len(shown.ids) > params.max_tokens:
            reason = f"too_long: {len(shown.ids)} tokens for a model that is shown {params.max_tokens}"
            verdicts.append(Verdict("verifier_error", reason=reason))
        else:
            verdicts.append(_verdict(shown, _scores(model, shown, params.device), params))
    return verdicts


class Shown(NamedTuple):
    """The tokens that the model is shown of a response, and those at which it scores."""

    ids: list[int]
    ends: list[int]
    """Index of the last token of each step; of the last token where there are no steps."""
    texts: list[str]
    """The texts of the steps, which together are the response; empty where there are none."""


def _verdict(shown: Shown, scores: Sequence[float], params: RewardModelParams) -> Verdict:
    for score in scores:
        if not math.isfinite(score):
            return Verdict("verifier_error", reason=f"the model's score is {score}")
    values = [_value(score, params) for score in scores]
    steps = tuple(zip(shown.texts, values, strict=True)) if shown.texts else ()
    return Verdict("graded", min(values), f"model_score: {min(scores):.4f}", steps=steps)


def _value(score: float, params: RewardModelParams) -> float:
    z = (score - params.center) / params.scale
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(max(z, -700)) / (1 + math.exp(max(z, -700)))


def trained_alike(params: RewardModelParams) -> RewardModelParams:
    """Return the parameters with the form of texts that the model was trained on, and if asked for its scores' spread.

    Raises: ConfigError if the parameters ask for another form, or if the folder records no spread.
    """
    path = params.model / REWARD
    if not path.is_file():
        if params.whiten:
            raise ConfigError(f"reward_model.whiten: {path} is not there; set center and scale instead")
        return params
    known = json.loads(path.read_text())
    trained = {name: known.get(name) for name in ("chat", "include_thinking", "step_end")}
    for name, value in trained.items():
        if getattr(params, name) not in (None, value):
            raise ConfigError(
                f"reward_model.{name}={getattr(params, name)}, and {params.model} was trained with {value}; "
                f"set reward_model.{name} to {value}"
            )
    if params.whiten:
        trained |= {"center": known["mean"], "scale": max(known["std"], 1e-6)}
    return params.model_copy(update=trained)


def shown_to(tokenizer: Any, attempt: Attempt, params: RewardModelParams) -> Shown | None:
    """Return what the model is shown, without thinking unless asked for; None if nothing follows the thinking."""
    part = after_thinking(attempt)
    if part.text is None:
        return None
    answer = attempt.response if params.include_thinking else part.text
    if params.step_end is not None:
        return _shown_steps(tokenizer, attempt, answer, params)
    answer = _defused(tokenizer, answer)
    if params.chat:
        turns = [{"role": "user", "content": attempt.prompt}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    else:
        ids = list(tokenizer(attempt.prompt + answer)["input_ids"])
    return Shown(ids, [len(ids) - 1], [])


def _shown_steps(tokenizer: Any, attempt: Attempt, answer: str, params: RewardModelParams) -> Shown | None:
    """Return the prompt and the answer's steps, each in tokens of its own; None for an empty answer."""
    assert params.step_end is not None
    texts = split_steps(answer, params.step_end)
    if not texts:
        return None
    if params.chat:
        turns = [{"role": "user", "content": attempt.prompt}]
        head = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = list(tokenizer(head, add_special_tokens=False)["input_ids"])
    else:
        ids = list(tokenizer(attempt.prompt)["input_ids"])
    ends = []
    for text in texts:
        ids += tokenizer(_defused(tokenizer, text), add_special_tokens=False)["input_ids"]
        ends.append(len(ids) - 1)
    # What the model is not shown, the thinking, belongs to the first step.
    texts[:1] = [attempt.response[: attempt.response.rfind(answer)] + text for text in texts[:1]]
    return Shown(ids, ends, texts)


def _defused(tokenizer: Any, answer: str) -> str:
    """Return the answer with a blank inside each spelled-out special token, so that none ends or begins a turn."""
    for token in sorted(set(tokenizer.all_special_tokens), key=len, reverse=True):
        if token in answer:
            answer = answer.replace(token, f"{token[:1]} {token[1:]}")
    return answer


def _scores(model: Any, shown: Shown, device: str) -> list[float]:
    """Return the model's scores of a response at its `ends`.

    It is computed alone: in a batch its last bits depend on the others, which are those that have ended by then.
    """
    import torch

    from verizero.pipeline.models.strictness import turn

    ids = torch.tensor([shown.ids], device=device)
    with turn("ordered"), torch.inference_mode():  # graders work while responses are decoded, which sets torch's switch
        if not shown.texts:
            return [float(model(input_ids=ids).logits)]
        hidden = model.base_model(input_ids=ids).last_hidden_state
        scores = (model.score if hasattr(model, "score") else model.classifier)(hidden).float().squeeze(-1).tolist()
    return [scores[0][end] for end in shown.ends]


def load(folder: str, device: str) -> tuple[Any, Any]:
    """Return tokenizer and model of a folder, loaded once. Raises: ConfigError for none, or several outputs."""
    with LOADING:
        return _load(folder, device)


@lru_cache(maxsize=2)
def _load(folder: str, device: str) -> tuple[Any, Any]:
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f"reward_model.model: {folder} has no config.json; give a folder written by save_pretrained")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model, report = AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, output_loading_info=True
    )
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ConfigError(f"reward_model.model: {folder} lacks {missing}, which would be random; is it a reward model?")
    if model.config.num_labels != 1:
        raise ConfigError(f"reward_model.model: {folder} has {model.config.num_labels} outputs; a reward has 1")
    if model.config.pad_token_id is None:
        pad = tokenizer.pad_token_id
        # Some tokenizers make up a pad token that the model has no embedding for.
        if pad is None or pad >= model.get_input_embeddings().num_embeddings:
            raise ConfigError(f"reward_model.model: {folder} names no pad token; set pad_token_id in config.json")
        model.config.pad_token_id = pad
    return tokenizer, model.to(device).eval()
