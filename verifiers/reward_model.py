"""The score of a reward model, squashed into [0, 1], as a verifier. The only verifier that loads torch, when called."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import after_thinking
from verizero.verifiers.base import VerifierParams, verifier

LOADING = threading.Lock()
REWARD = "reward.json"
"""File in the folder of a model that was trained here: the form of its texts, and the spread of its scores."""


class RewardModelParams(VerifierParams):
    """The model, and the function that makes a reward of its score."""

    may_leave: ClassVar[bool] = False
    model: Path = Field(description="folder of a sequence classifier with one output, with its tokenizer")
    squash: Literal["sigmoid", "clip"] = Field("sigmoid", description="function that maps a score to [0, 1]")
    center: float = Field(0.0, allow_inf_nan=False, description="the score that is worth 0.5")
    scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="sigmoid((score - center) / scale)")
    threshold: float | None = Field(None, ge=0, le=1, description="1 at or above it, else 0; None keeps the number")
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
    max_tokens: int = Field(4_096, ge=8, description="a longer text is an error; texts are never cut")
    batch_size: int = Field(16, ge=1)
    device: str = "cpu"


@verifier(batch=True)
def reward_model(attempts: Sequence[Attempt], params: RewardModelParams) -> list[Verdict]:
    """Return the reward model's score of prompt + response, in [0, 1]; the reference is not used.

    A text over max_tokens is "verifier_error", as the model cannot judge a text that it does not see whole.
    Source: sigmoid((s - center) / scale) is the Bradley-Terry probability of beating an answer of score `center`.
    """
    tokenizer, model = load(str(params.model), params.device)
    params = trained_alike(params)
    verdicts: list[Verdict | None] = [None] * len(attempts)
    todo: list[tuple[int, list[int]]] = []
    for i, attempt in enumerate(attempts):
        ids = shown_ids(tokenizer, attempt, params)
        if ids is None:
            verdicts[i] = after_thinking(attempt).no_answer()
        elif len(ids) > params.max_tokens:
            reason = f"too_long: {len(ids)} tokens for a model that is shown {params.max_tokens}"
            verdicts[i] = Verdict("verifier_error", reason=reason)
        else:
            todo.append((i, ids))
    todo.sort(key=lambda item: len(item[1]))
    for start in range(0, len(todo), params.batch_size):
        batch = todo[start : start + params.batch_size]
        for (i, _), score in zip(batch, _scores(model, [ids for _, ids in batch], params.device), strict=True):
            verdicts[i] = _verdict(score, params)
    return [v for v in verdicts if v is not None]


def _verdict(score: float, params: RewardModelParams) -> Verdict:
    if not math.isfinite(score):
        return Verdict("verifier_error", reason=f"the model's score is {score}")
    z = (score - params.center) / params.scale
    if params.squash == "sigmoid":
        value = 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(max(z, -700)) / (1 + math.exp(max(z, -700)))
    else:
        value = min(1.0, max(0.0, 0.5 + z / 2))
    if params.threshold is not None:
        value = float(value >= params.threshold)
    return Verdict("graded", value, f"model_score: {score:.4f}")


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
    for name in ("chat", "include_thinking"):
        if getattr(params, name) not in (None, known[name]):
            raise ConfigError(
                f"reward_model.{name}={getattr(params, name)}, and {params.model} was trained with {known[name]}; "
                "set it alike"
            )
    trained = {name: known[name] for name in ("chat", "include_thinking")}
    if params.whiten:
        trained |= {"center": known["mean"], "scale": max(known["std"], 1e-6)}
    return params.model_copy(update=trained)


def shown_ids(tokenizer: Any, attempt: Attempt, params: RewardModelParams) -> list[int] | None:
    """Return the tokens that the model is shown: prompt and response, without the thinking unless asked for.

    Returns None if nothing follows the thinking.
    """
    part = after_thinking(attempt)
    if part.text is None:
        return None
    answer = _defused(tokenizer, attempt.response if params.include_thinking else part.text)
    if params.chat:
        turns = [{"role": "user", "content": attempt.prompt}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer(attempt.prompt + answer)["input_ids"])


def _defused(tokenizer: Any, answer: str) -> str:
    """Return the answer with a blank inside each spelled-out special token, so that none ends or begins a turn."""
    for token in sorted(set(tokenizer.all_special_tokens), key=len, reverse=True):
        if token in answer:
            answer = answer.replace(token, f"{token[:1]} {token[1:]}")
    return answer


def _scores(model: Any, rows: Sequence[Sequence[int]], device: str) -> list[float]:
    import torch

    width = max(map(len, rows))
    pad = model.config.pad_token_id
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask).logits
    return [float(x) for x in logits.float().squeeze(-1)]


def load(folder: str, device: str) -> tuple[Any, Any]:
    """Return tokenizer and model of a local folder, loaded once and kept.

    Raises: ConfigError if the folder holds no model, or a model with more than one output.
    """
    with LOADING:
        return _load(folder, device)


@lru_cache(maxsize=2)
def _load(folder: str, device: str) -> tuple[Any, Any]:
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f"reward_model.model: {folder} has no config.json; give a folder written by save_pretrained")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
    if model.config.num_labels != 1:
        raise ConfigError(f"reward_model.model: {folder} has {model.config.num_labels} outputs; a reward has 1")
    if model.config.pad_token_id is None:
        pad = tokenizer.pad_token_id
        # Some tokenizers make up a pad token that the model has no embedding for.
        if pad is None or pad >= model.get_input_embeddings().num_embeddings:
            raise ConfigError(f"reward_model.model: {folder} names no pad token; set pad_token_id in config.json")
        model.config.pad_token_id = pad
    return tokenizer, model.to(device).eval()
