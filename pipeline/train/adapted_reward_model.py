"""A reward model on the policy's own base in bits: adapters of its own and the head train."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.load import save_folder
from verizero.pipeline.models.lora import Adapted, trained_by_saved_name
from verizero.pipeline.models.saved_names import filled
from verizero.pipeline.models.scalar_head import of_one_label, score_of
from verizero.pipeline.models.unloaded import on_meta
from verizero.pipeline.train.reward_model import RewardModel, no_reward_model_message


class AdaptedRewardModel(RewardModel):
    """A classifier that begins with the policy's adapters, and whose base takes no memory of its own."""

    def __init__(self, adapted: Adapted, optimizer: OptimizerConfig, total_steps: int, train: TrainConfig) -> None:
        """Raises: ConfigError if transformers has no sequence classifier of this architecture."""
        self.adapted = adapted
        self._copied = adapted.trainable_copy()
        super().__init__(_classifier_around(self._copied), optimizer, total_steps, train)

    def take(self, folder: Path) -> None:
        """Set adapters and head to those that `write` wrote; the optimiser is fresh. Raises: CheckpointError."""
        self.adapted.load(folder, self.model)
        self._start()

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises: CheckpointError."""
        self.take(folder)
        self.load_optimizer(folder)

    def save(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write adapters, head and optimiser into `folder`, by the first rank, and no base."""
        if is_first:
            self._write_adapters(folder)
            self.save_optimizer(folder)

    def write(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write the model as a Hugging Face folder of plain numbers, with the adapters in its `adapter/`."""
        if not is_first:
            return
        blocks = self.adapted.plain_blocks(self._copied)
        plain = filled(self.adapted.twin, (named for block in blocks for named in block.items()), torch.device("cpu"))
        model = _classifier_around(plain)
        score_of(model).load_state_dict(score_of(self.model).state_dict())
        save_folder(model, tokenizer, folder)
        self._write_adapters(folder)

    def _write_adapters(self, folder: Path) -> None:
        """Write adapters and head as peft saves those of a classifier."""
        config = copy.copy(self.adapted.config)
        head = score_of(self.model)
        config.task_type = "SEQ_CLS"
        config.modules_to_save = [name for name, module in self.model.named_children() if module is head]
        tensors = {n: p.detach().cpu().contiguous().clone() for n, p in trained_by_saved_name(self.model).items()}
        self.adapted.write(folder, config, tensors)


def _classifier_around(policy: Any) -> Any:
    """Return a classifier of one label with the policy's very blocks, and a head of zeros."""
    import transformers

    with boundary(ConfigError, no_reward_model_message(policy)):
        maker = transformers.AutoModelForSequenceClassification
        model = on_meta(maker, of_one_label(policy.config), policy.dtype)
    blocks = policy.base_model
    for module in blocks.modules():
        if getattr(module, "config", None) is policy.config:
            module.config = model.config  # one for all, since packed rows set the attention there
    setattr(model, model.base_model_prefix, blocks)
    head = score_of(model).to_empty(device=policy.device)
    with torch.no_grad():
        for p in head.parameters():
            p.zero_()
    return model
