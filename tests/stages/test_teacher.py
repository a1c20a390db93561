"""Distillation on the policy's own samples: the reference is another model, and the KL to it is the loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.run import RunConfig
from pipeline.data.tokenizer import character_tokenizer
from pipeline.errors import ConfigError
from pipeline.files import read_jsonl
from pipeline.models.load import create_model, save_folder
from pipeline.report.progress import Silent
from pipeline.rl.kl import estimate
from pipeline.run.opening import opened
from tests.stages.broken import goes_on_as_if_never_broken
from tests.stages.tiny import TREE, tiny

CREATE = TREE["model"]["create"]
DISTIL = {"name": "grpo", "kl_in": "loss", "kl_form": "k2", "kl_coef": 1.0}


def make_teacher(folder: Path, characters: str = CREATE["characters"]) -> Path:
    """Another model of the policy's tokens, of another shape and with likes of its own."""
    tokenizer = character_tokenizer(characters)
    shape = CREATE["config"] | {"hidden_size": 24, "num_hidden_layers": 1}
    model = create_model("qwen2", shape, tokenizer, 7)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    save_folder(model, tokenizer, folder)
    return folder


def recipe(teacher: Path, **rl: Any) -> RunConfig:
    return tiny(
        {
            "stages": ["rl"],
            "sft": None,
            "rl": {
                "algorithm": None,
                "reference": {"schedule": "frozen", "teacher": str(teacher)},
                "select": {"keep": "all"},
                "optimizer": {"learning_rate": 5e-2},
                "steps_per_round": 12,
                **rl,
            },
        },
        [f"rl.algorithm={json.dumps(rl.get('algorithm', DISTIL))}", "evaluation.before_training=false"],
    )


def test_the_gradient_of_k2_over_own_samples_is_that_of_the_reverse_kl() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, 9, dtype=torch.float64).log_softmax(-1)
    own = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((own.exp() * (own - teacher)).sum(), logits, retain_graph=True)
    weighted = own.detach().exp() * estimate("k2", own, teacher)
    (sampled,) = torch.autograd.grad(weighted.sum(), logits)
    torch.testing.assert_close(sampled, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.integration
def test_the_student_comes_to_the_teacher_and_goes_on_after_a_break(tmp_path: Path) -> None:
    config = recipe(make_teacher(tmp_path / "teacher"))
    goes_on_as_if_never_broken(config, tmp_path / "runs", [("update", 2), ("publish", 14)])
    rows = read_jsonl(tmp_path / "runs" / "whole" / "metrics.jsonl")
    kl = [r["metrics"]["kl/k3"] for r in rows if r["kind"] == "step"]
    assert len(kl) == 24
    assert sum(kl[-4:]) < 0.8 * sum(kl[:4])


def test_a_teacher_of_other_tokens_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    config = recipe(make_teacher(tmp_path / "teacher", CREATE["characters"] + "ABC"))
    with pytest.raises(ConfigError, match=r"teacher=.*'A'"):
        with opened(config, tmp_path, tmp_path / "run", "auto", Silent()):
            pass
