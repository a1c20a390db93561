"""Groups that the embedded engine really sampled, with its records, from tiny dense models and mixtures of experts."""

import dataclasses
from array import array
from typing import Any

import torch

from tests.models.families import build
from tests.train.batches import with_rollouts
from verizero.pipeline.rollout.engine import Completion, Request, Sampling
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

MOE: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "head_dim": 8,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "qwen2_moe": ("qwen2_moe", MOE),
    "qwen3_moe": ("qwen3_moe", {**MOE, "norm_topk_prob": True}),
    "qwen3_moe with a dense layer": ("qwen3_moe", {**MOE, "num_hidden_layers": 3, "mlp_only_layers": [1]}),
    "mixtral": ("mixtral", {"num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 8}),
}
EOS = (1, 5)
MAX = 10
VERSION = 3
REQUESTS = [
    Request((3, 4, 6, 7), (11, 12, 13)),
    Request((8,), (21, 22)),
    Request((9, 10, 11), (31, 32, 33)),
    Request((2, 2, 2, 2, 2, 2, 2), (51, 52)),
]


def model_of(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """The model of that name. The fused products of experts have no float64."""
    model = build(*MODELS[name], seed, dtype)
    if dtype == torch.float64:
        model.set_experts_implementation("eager")
    return model


def answers_of(model: Any, sampling: Sampling) -> list[list[Completion]]:
    """What the embedded engine samples from the model."""
    engine = TorchEngine(model, EOS, 0)
    engine.publish(VERSION)
    return engine.generate(REQUESTS, sampling)


def groups_of(model: Any, sampling: Sampling, version: int = VERSION) -> list[Group]:
    """Its responses as groups; every other response is right."""
    out = []
    for g, (request, completions) in enumerate(zip(REQUESTS, answers_of(model, sampling), strict=True)):
        members = []
        for i, c in enumerate(completions):
            rollout = Rollout(
                f"p{g}",
                i,
                array("i", request.prompt_ids),
                array("i", c.token_ids),
                array("f", c.logprobs),
                "",
                c.finish_reason,
                version,
                c.kept,
                c.routing,
            )
            members.append(ScoredRollout(rollout, Verdict("graded", float(i % 2)), float(i % 2)))
        out.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members)))
    return out


def forgetting(groups: list[Group], **fields: Any) -> list[Group]:
    """The groups with these fields of every rollout replaced, e.g. kept=None."""
    return with_rollouts(groups, lambda rollout: dataclasses.replace(rollout, **fields))
