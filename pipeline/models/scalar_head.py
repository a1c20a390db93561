"""A policy's blocks with a scalar in place of the vocabulary: critics and reward models."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch

from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.load import ready

Head = Literal["TokenClassification", "SequenceClassification"]


def with_scalar_head(policy: Any, head: Head, what: str) -> Any:
    """Return a classifier of one label, in evaluation mode: its blocks are a copy of the policy's, its head is zero.

    `what` names it and a remedy. Raises: ConfigError with that text if transformers has no such classifier.
    """
    import transformers

    with boundary(ConfigError, what):
        config = of_one_label(policy.config)
        with torch.random.fork_rng(devices=[]):  # the weights drawn here are all replaced
            model = getattr(transformers, f"AutoModelFor{head}").from_config(config, dtype=policy.dtype)
        model.base_model.load_state_dict(policy.base_model.state_dict())
        for p in score_of(model).parameters():
            torch.nn.init.zeros_(p)
    return ready(model).to(policy.device).eval()


def of_one_label(config: Any) -> Any:
    """Return a copy of a policy's configuration for a classifier of one label."""
    own = copy.deepcopy(config)
    own.num_labels = 1
    return own


def score_of(model: Any) -> Any:
    """Return the head of a classifier, which transformers calls `score` or `classifier`."""
    return model.score if hasattr(model, "score") else model.classifier
