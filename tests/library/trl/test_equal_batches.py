"""TRL's own trainer and this project's update on the same rows: equal losses and gradients, for every objective of TRL.

TRL's trainer is given the responses by its `rollout_func`. It grades them, computes advantages, old and reference
log-probs, and the loss of two updates, the second of which is off-policy. Here the same arguments are translated, and
the same rows train. Both in float64; TRL keeps rewards and advantages in float32.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from torch import Tensor

from tests.library.trl.tiny import save_tiny
from tests.trl_classes import trl_class
from verizero.pipeline.algorithms.base import chosen, load_algorithm, weighted
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.library.trl.fields import fields_of
from verizero.pipeline.train.prepare import Controllers, Settings
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
SCALES = ("group", "batch", "none")
LEVELS = ("token", "sequence")
LONGEST, GENERATIONS, PROMPTS = 9, 4, 2
COMMON: dict[str, Any] = {
    "num_iterations": 2, "per_device_train_batch_size": GENERATIONS * PROMPTS, "num_generations": GENERATIONS,
    "max_completion_length": LONGEST, "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "max_steps": 2,
    "model_init_kwargs": {"dtype": torch.float64},
}  # fmt: skip
OPTIMIZER = OptimizerConfig(learning_rate=0.02, eps=1e-2, max_grad_norm=None)
LOSS_OF: dict[str, dict[str, Any]] = {"cispo": {"epsilon_high": 1.05}}
MORE: dict[str, dict[str, Any]] = {
    "kl": {"beta": 0.3},
    "kl_of_a_response": {"beta": 0.3, "importance_sampling_level": "sequence"},
    "kl_biased": {"beta": 0.3, "use_bias_correction_kl": False, "loss_type": "grpo"},
    "unequal_clip": {"epsilon": 0.02, "epsilon_high": 0.04, "loss_type": "dr_grpo"},
    "two_sided": {"delta": 1.06, "epsilon": 0.02, "epsilon_high": 0.05},
    "truncated": {"mask_truncated_completions": True, "beta": 0.3},
    "truncated_by_response": {"mask_truncated_completions": True, "beta": 0.3, "loss_type": "grpo"},
    "truncated_by_constant": {"mask_truncated_completions": True, "loss_type": "dr_grpo"},
    "off_policy": {"off_policy_mask_threshold": 0.1, "loss_type": "grpo"},
    "off_policy_response": {"off_policy_mask_threshold": 0.1, "beta": 0.1, "importance_sampling_level": "sequence"},
    "entropy": {"entropy_coef": 0.1, "loss_type": "luspo"},
    "weights": {"reward_weights": [0.3, 2.0]},
    "each_reward": {"reward_weights": [0.3, 2.0], "multi_objective_aggregation": "normalize_then_sum"},
    "gates": {"loss_type": "sapo", "sapo_temperature_neg": 3.0, "sapo_temperature_pos": 0.5},
    "gammas": {"loss_type": "vespo", "vespo_k_pos": 1.5, "vespo_lambda_pos": 1.0, "vespo_k_neg": 1.2, "beta": 0.2},
}
"""Arguments besides loss, scale and level, each set once."""
BOUNDS = {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": 1.5}
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
VLLM: dict[str, dict[str, Any]] = {
    **{mode: {"vllm_importance_sampling_mode": mode} for mode in MODES},
    **{f"{mode}_floor": {"vllm_importance_sampling_mode": mode, **BOUNDS} for mode in MODES},
    "no_cap": {"vllm_importance_sampling_clip_min": 0.7, "vllm_importance_sampling_clip_max": None},
    "by_response": {"vllm_importance_sampling_mode": "sequence_truncate", "importance_sampling_level": "sequence"},
    "with_kl": {"beta": 0.2, "loss_type": "dr_grpo"},
    "with_mask": {"off_policy_mask_threshold": 0.1, "loss_type": "cispo", "epsilon_high": 1.05},
}
"""Arguments of the correction for a mismatch between vLLM and the trainer."""


class Rows:
    """Random responses to two prompts, the same for both sides."""

    def __init__(self, end: int, words: int) -> None:
        rng = random.Random(7)
        self.prompts = [[rng.randrange(2, words) for _ in range(3 + p)] for p in range(PROMPTS)]
        self.responses: list[list[int]] = []
        for i in range(PROMPTS * GENERATIONS):
            body = [rng.randrange(2, words) for _ in range(LONGEST if i % 3 == 0 else rng.randrange(1, LONGEST - 1))]
            self.responses.append(body if len(body) == LONGEST else [*body, end])
        self.logprobs = [[-rng.uniform(2.0, 6.0) for _ in ids] for ids in self.responses]
        self.rewards = [[rng.uniform(-1, 2), float(rng.random() < 0.5)] for _ in self.responses]

    def column(self, number: int, completion_ids: list[list[int]]) -> list[float]:
        """Return the rewards of these responses by one of the two functions."""
        return [self.rewards[self.responses.index(list(ids))][number] for ids in completion_ids]

    def groups(self, args: GRPOConfig) -> list[Group]:
        """Return the rows as this project has them, sampled by the present policy."""
        by_itself = args.multi_objective_aggregation == "normalize_then_sum"
        made: list[list[ScoredRollout]] = [[] for _ in range(PROMPTS)]
        for i, ids in enumerate(self.responses):
            prompt = i // GENERATIONS
            finish = "length" if len(ids) == LONGEST else "stop"
            rollout = Rollout(f"{prompt}", i, self.prompts[prompt], ids, self.logprobs[i], "", finish, 0)  # type: ignore[arg-type]
            given = self.rewards[i] if args.reward_weights else self.rewards[i][:1]
            reward = sum(w * r for w, r in zip(args.reward_weights or [1.0], given, strict=True))
            made[prompt].append(
                ScoredRollout(rollout, Verdict("graded", 0.5), reward, tuple(given) if by_itself else ())
            )
        return [Group(Prompt(str(p), "?", "exact", "x"), tuple(members)) for p, members in enumerate(made)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("model"))


def scored(folder: str, out: Path, arguments: dict[str, Any], kind: str = "GRPO") -> tuple[Any, Any, Rows]:
    """Return TRL's trainer `<kind>Trainer`, the inputs of its loss with advantages and old log-probs, and the rows."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = Rows(tokenizer.eos_token_id, len(tokenizer))
    options = {name: value for name, value in arguments.items() if name != "use_vllm"}
    use_vllm = "use_vllm" in arguments

    def first(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return rows.column(0, completion_ids)

    def second(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return rows.column(1, completion_ids)

    def sampled(prompts: list[str], trainer: Any) -> dict[str, Any]:
        own = [rows.prompts[i // GENERATIONS] for i in range(len(rows.responses))]
        return {"prompt_ids": own, "completion_ids": rows.responses, "logprobs": rows.logprobs}

    data = [{"prompt": str(p)} for p in range(PROMPTS)]
    trainer = trl_class(f"{kind}Trainer")(
        model=folder,
        reward_funcs=[first, second] if "reward_weights" in options else first,
        args=trl_class(f"{kind}Config")(output_dir=str(out), report_to="none", **{**COMMON, **options}),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
        rollout_func=sampled,
    )
    if use_vllm:  # only now, as there is no vLLM
        trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.train()
    if trainer.ref_model is not None:
        move(trainer.ref_model)
    inputs = trainer._generate_and_score_completions([data[i // GENERATIONS] for i in range(len(rows.responses))])
    return trainer, inputs, rows


def theirs(folder: str, out: Path, arguments: dict[str, Any]) -> tuple[list[float], list[dict[str, Tensor]], Rows]:
    """Return losses and gradients of TRL's trainer in two updates, and the rows."""
    trainer, inputs, rows = scored(folder, out, arguments)
    split_tensor_dict = trl_class("trainer.utils.split_tensor_dict")
    optimizer = torch.optim.AdamW(
        trainer.model.parameters(), lr=OPTIMIZER.learning_rate, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=0
    )
    losses, gradients = [], []
    for _ in range(2):
        total = 0.0
        for piece in split_tensor_dict(inputs, trainer.args.gradient_accumulation_steps):
            loss = trainer.compute_loss(trainer.model, piece)
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        gradients.append({n: p.grad.clone() for n, p in trainer.model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients, rows


def move(model: Any, seed: int = 3, size: float = 0.05) -> None:
    """Change the weights, so that the model is another policy."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += size * torch.randn(p.shape, generator=generator, dtype=torch.float64)


class Recording(TorchBackend):
    """Remembers the gradient of each update."""

    gradients: list[dict[str, Tensor]]

    def step(self) -> dict[str, float]:
        self.gradients.append({n: p.grad.clone() for n, p in self.model.named_parameters()})
        return super().step()


def ours(folder: str, options: dict[str, Any], rows: Rows) -> tuple[dict[str, float], list[dict[str, Tensor]]]:
    """Return the mean metrics and the gradients of two updates by the recipe that the arguments become."""
    load = transformers.AutoModelForCausalLM
    args = GRPOConfig(**{**COMMON, **options, "model_init_kwargs": None})
    num = 2 if "reward_weights" in options else 1
    fields, _ = fields_of(args, PROMPTS, num, is_chat=False, has_evaluation=False)
    parts = weighted(load_algorithm(*chosen(fields["rl.algorithm"]))[1], ()).resolve(LONGEST)
    backend = Recording(load.from_pretrained(folder, dtype=torch.float64))
    backend.gradients = []
    backend.start(OPTIMIZER, 2)
    if parts.needs_reference:
        backend.reference = load.from_pretrained(folder, dtype=torch.float64).requires_grad_(False)
        move(backend.reference)
    settings = Settings(0, 1.0, 60, 0, LONGEST, Controllers(parts))
    metrics = update(backend, parts, rows.groups(args), settings)
    assert metrics["updates"] == 2
    return metrics, backend.gradients


def agree(folder: str, out: Path, options: dict[str, Any]) -> tuple[dict[str, float], list[dict[str, Tensor]], Rows]:
    losses, expected, rows = theirs(folder, out, options)
    metrics, found = ours(folder, options, rows)
    assert metrics["loss/total"] == pytest.approx(sum(losses) / 2, rel=1e-5, abs=1e-6)
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys()
        assert apart(mine, other) < 1e-5
    return metrics, found, rows


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the distance of two gradients, as a share of the second one's size."""
    size = torch.cat([g.flatten() for g in b.values()]).norm()
    assert size > 1e-6
    return float(torch.cat([(a[name] - b[name]).flatten() for name in b]).norm() / size)


pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")]


@pytest.mark.parametrize(
    ("loss", "scale", "level"),
    [(loss, scale, LEVELS[(i + j) % 2]) for i, loss in enumerate(LOSSES) for j, scale in enumerate(SCALES)],
)
def test_any_two_of_loss_scale_and_level_of_trl(folder: str, tmp_path: Path, loss: str, scale: str, level: str) -> None:
    options = {"loss_type": loss, "scale_rewards": scale, "importance_sampling_level": level, **LOSS_OF.get(loss, {})}
    metrics, (first, second), _ = agree(folder, tmp_path, options)
    assert apart(second, first) > 1e-2  # off-policy
    if level == "token" and loss not in ("sapo", "vespo"):
        assert metrics["clip_fraction/low"] + metrics["clip_fraction/high"] > 0


@pytest.mark.parametrize("name", MORE)
def test_every_other_argument_of_the_objective(folder: str, tmp_path: Path, name: str) -> None:
    _, (_, second), rows = agree(folder, tmp_path, MORE[name])
    without = {k: v for k, v in MORE[name].items() if k in ("loss_type", "importance_sampling_level")}
    assert apart(second, ours(folder, without, rows)[1][1]) > 1e-3


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "bnpo"])
def test_a_batch_in_two_pieces(folder: str, tmp_path: Path, loss: str) -> None:
    half = {"per_device_train_batch_size": GENERATIONS * PROMPTS // 2, "gradient_accumulation_steps": 2}
    agree(folder, tmp_path, {"loss_type": loss, "beta": 0.3, **half, **LOSS_OF.get(loss, {})})


@pytest.mark.parametrize("name", VLLM)
def test_every_correction_for_a_mismatch_with_vllm(folder: str, tmp_path: Path, name: str) -> None:
    options = {**VLLM[name], "use_vllm": True}
    metrics, (first, _), rows = agree(folder, tmp_path, options)
    off = {**options, "vllm_importance_sampling_correction": False}
    assert apart(first, ours(folder, off, rows)[1][0]) > 1e-2
    if "mask" in VLLM[name].get("vllm_importance_sampling_mode", "sequence_mask"):
        assert 0 < metrics["masked/mismatch"] < 1
