"""The numbers of steps, prompts and learning rates of TRL's own trainer, and those of the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from tests.library.trl.tiny import ROWS, save_tiny
from tests.trl_classes import trl_class
from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.library.trl.schedule import Schedule
from verizero.pipeline.train.optimizer import schedule
from verizero.trl import GRPOTrainer

pytestmark = pytest.mark.integration
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"num_train_epochs": 2.5, "per_device_train_batch_size": 24},
    {"num_generations": 4, "gradient_accumulation_steps": 3},
    {"num_generations": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_iterations": 3},
    {"num_generations": 2, "generation_batch_size": 16, "num_iterations": 2, "lr_scheduler_type": "cosine"},
    {"num_generations": 4, "max_steps": 12, "steps_per_generation": 2, "lr_scheduler_type": "constant_with_warmup"},
    {"max_steps": 20, "warmup_steps": 4},
    {"max_steps": 20, "warmup_steps": 0.2, "lr_scheduler_type": "cosine"},
    {"max_steps": 20, "lr_scheduler_type": "constant", "warmup_steps": 4},
    {"max_steps": 20, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"max_steps": 20, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 2e-7}},
]


def reward(completions: list[str], **_: Any) -> list[float]:
    return [0.0 for _ in completions]


@pytest.mark.parametrize("options", ARGUMENTS, ids=str)
def test_the_recipe_has_the_steps_and_rates_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_tiny(tmp_path / "tiny")
    config = trl_class("GRPOConfig")(output_dir="theirs", bf16=False, use_cpu=True, report_to="none", **options)
    theirs = trl_class("GRPOTrainer")(folder, reward, args=config, train_dataset=Dataset.from_list(ROWS))
    loader = theirs.get_train_dataloader()
    num_updates = theirs.set_initial_training_values(theirs.args, loader)[-1]
    args = GRPOConfig("ours", max_completion_length=16, **options)
    ours = GRPOTrainer(folder, reward, args=args, train_dataset=ROWS)
    optimizer, steps = ours.recipe.rl.optimizer, Schedule.of(args, len(ROWS))
    assert steps.total_updates == num_updates
    assert ours.recipe.rl.prompts_per_step == config.generation_batch_size // config.num_generations
    assert ours.recipe.rl.group_size == config.num_generations
    theirs.create_optimizer_and_scheduler(num_updates)
    warmup = config.get_warmup_steps(num_updates) if config.lr_scheduler_type != "constant" else 0
    for update in range(num_updates):
        rate = theirs.lr_scheduler.get_last_lr()[0]
        mine = schedule(optimizer, update, num_updates)
        # In the warm-up ours is one update ahead, so that the first one moves.
        assert mine == pytest.approx(rate + (1e-6 / warmup if update < warmup else 0.0), rel=1e-9, abs=1e-15)
        theirs.optimizer.step()
        theirs.lr_scheduler.step()
    group = theirs.optimizer.param_groups[0]
    assert (tuple(group["betas"]), group["eps"], group["weight_decay"]) == (optimizer.betas, optimizer.eps, 0.0)
