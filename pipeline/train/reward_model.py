"""A reward model: a scalar head on a causal LM, trained on pairs, saved as a sequence classifier of one label."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import CheckpointError, NonFiniteError, boundary
from verizero.pipeline.models.load import ready, save_folder
from verizero.pipeline.models.scalar_head import score_of, with_scalar_head
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.rl.bradley_terry import bradley_terry_loss, calibration_error, pair_accuracy
from verizero.pipeline.train.collate import micro_batches, padded_ids
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import clipped_step, finite_norm, schedule, trained_by, with_masters
from verizero.pipeline.train.ranks import ALONE, Ranks

NORM = "reward model's gradient norm"
Ids = tuple[int, ...]
Sides = tuple[Ids, Ids]
"""Tokens of the prompt with the better response, and with the worse one."""


class RewardModel:
    """A classifier whose blocks and head train together. The head starts at zero, so that the first rewards are 0.

    Every rank has the whole model and computes all pairs; `verizero.pipeline.train.fsdp_classifier` divides both.
    """

    ranks: Ranks = ALONE
    """The ranks among which rows are divided."""

    def __init__(self, model: Any, optimizer: OptimizerConfig, total_steps: int) -> None:
        self.model = model.eval()  # no dropout: held-out numbers are of the same function
        self.config = optimizer
        self.total_steps = total_steps
        self.num_updates = 0
        self._start()

    @classmethod
    def of(cls, policy: Any, optimizer: OptimizerConfig, total_steps: int) -> RewardModel:
        """Return an untrained reward model with the policy's blocks."""
        return cls(classifier_of(policy), optimizer, total_steps)

    @classmethod
    def continued(cls, folder: Path, optimizer: OptimizerConfig, total_steps: int, device: Any) -> RewardModel:
        """Return the reward model of a Hugging Face folder, with a fresh optimiser. Raises: CheckpointError."""
        return cls(ready(classifier_in(folder)).to(device), optimizer, total_steps)

    @classmethod
    def restored(cls, folder: Path, optimizer: OptimizerConfig, total_steps: int, device: Any) -> RewardModel:
        """Return the reward model that `save` wrote. Raises: CheckpointError if it does not load."""
        reward_model = cls.continued(folder / "model", optimizer, total_steps, device)
        with boundary(CheckpointError, f"the optimiser of the reward model of {folder} does not load"):
            state = torch.load(folder / "trainer.pt", map_location=device, weights_only=True)
            reward_model.optimizer.load_state_dict(state["optimizer"])
            reward_model.num_updates = state["num_updates"]
        return reward_model

    def save(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write model and optimiser into `folder`, by the first rank."""
        self.write(folder / "model", tokenizer, is_first)
        if is_first:
            state = {"optimizer": self.optimizer.state_dict(), "num_updates": self.num_updates}
            with (folder / "trainer.pt").open("wb") as file:
                torch.save(state, file)

    def write(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write the model as a Hugging Face folder, by the first rank."""
        if is_first:
            save_folder(self.model, tokenizer, folder)

    def rewards(self, rows: Sequence[Ids]) -> Tensor:
        """Return the rewards [B] at the last tokens of the rows, with gradient."""
        ids = padded_ids(rows, self.model.config.pad_token_id, self.model.device)
        # Rows are padded on the right, which causal attention does not show to their last token.
        last = torch.tensor([len(r) - 1 for r in rows], device=ids.device)

        def compute(model: Any) -> Tensor:
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            scores: Tensor = score_of(model)(hidden[torch.arange(len(rows), device=ids.device), last])
            return scores[:, 0]

        return self._run(compute)

    def update(self, batch: Sequence[Sides], micro_batch_tokens: int) -> dict[str, float]:
        """Take one optimiser step on the mean loss of the batch's pairs, and return its metrics.

        Raises: NonFiniteError if loss or gradient is not finite; weights and optimiser are as before.
        """
        loss, margins = 0.0, torch.zeros(len(batch), dtype=torch.float64)
        for indices, weight in self._of_rank(_micro_batches(batch, micro_batch_tokens, self.model.device)):
            # A share of the mean loss: the gradients add up.
            share, micro_margins = self._loss([batch[i] for i in indices], len(batch))
            self._backward(share * weight)
            loss += weight * float(share.detach())
            margins[torch.tensor(indices)] += weight * micro_margins
        loss = float(self.ranks.all_reduce(torch.tensor([loss], dtype=torch.float64)))
        rate = schedule(self.config, self.num_updates, self.total_steps)
        try:
            if not math.isfinite(loss):
                raise NonFiniteError(f"the reward model's loss is {loss}; the update was refused")
            norm = self._step(rate)
        finally:
            self._discard()
        self.num_updates += 1
        margins = self.ranks.all_reduce(margins)
        return {
            "loss": loss,
            "accuracy": pair_accuracy(margins),
            "margin": float(margins.mean()),
            "grad_norm": norm,
            "learning_rate": rate,
        }

    @torch.no_grad()
    def margins(self, pairs: Sequence[Sides], micro_batch_tokens: int) -> Tensor:
        """Return r_w - r_l of each pair, float64 [N], in order."""
        out = torch.zeros(len(pairs), dtype=torch.float64)
        for indices, weight in self._of_rank(_micro_batches(pairs, micro_batch_tokens, self.model.device)):
            chosen, rejected = self._both([pairs[i] for i in indices])
            out[torch.tensor(indices)] += weight * (chosen - rejected).double().cpu()
        return self.ranks.all_reduce(out)

    def held_out(self, pairs: Sequence[Sides], micro_batch_tokens: int) -> dict[str, float]:
        """Return accuracy, calibration error and loss on pairs that were not trained on."""
        margins = self.margins(pairs, micro_batch_tokens)
        zero = torch.zeros_like(margins)
        return {
            "held_out/pairs": float(len(pairs)),
            "held_out/accuracy": pair_accuracy(margins),
            "held_out/calibration_error": calibration_error(margins),
            "held_out/loss": float(bradley_terry_loss(margins, zero, max(1, len(pairs)))),
        }

    @torch.no_grad()
    def spread(self, rows: Sequence[Ids], micro_batch_tokens: int) -> tuple[float, float]:
        """Return mean and standard deviation of the rewards of rows."""
        rewards = torch.zeros(len(rows), dtype=torch.float64)
        widths = [padded_width(len(r), self.model.device) for r in rows]
        for indices, weight in self._of_rank(micro_batches(widths, micro_batch_tokens)):
            rewards[torch.tensor(indices)] += weight * self.rewards([rows[i] for i in indices]).double().cpu()
        rewards = self.ranks.all_reduce(rewards)
        return float(rewards.mean()), float(rewards.std(correction=0))

    def _of_rank(self, batches: Sequence[list[int]]) -> list[tuple[list[int], float]]:
        """Return this rank's micro-batches, each with its weight in the sum over ranks.

        The weight is 1, or 0 for one that only keeps this rank in step with the others.
        """
        of_rank = [(indices, 1.0) for indices in batches[self.ranks.rank :: self.ranks.size]]
        num = -(-len(batches) // self.ranks.size)  # of the rank with the most
        return of_rank + [(batches[0], 0.0)] * (num - len(of_rank))

    def _start(self) -> None:
        self.optimizer = with_masters(self.model.parameters(), self.config)

    def _run(self, compute: Callable[[Any], Tensor]) -> Tensor:
        return compute(self.model)

    def _backward(self, loss: Tensor) -> None:
        with fixed_order():
            loss.backward()  # type: ignore[no-untyped-call]

    def _step(self, rate: float) -> float:
        parameters = [p for p in trained_by(self.optimizer) if p.grad is not None]
        norm = finite_norm(parameters, NORM, self.num_updates)
        clipped_step(self.optimizer, self.config, parameters, norm, rate)
        return float(norm)

    def _discard(self) -> None:
        for p in trained_by(self.optimizer):
            p.grad = None

    def _loss(self, rows: Sequence[Sides], total: int) -> tuple[Tensor, Tensor]:
        chosen, rejected = self._both(rows)
        margins = (chosen.detach() - rejected.detach()).double().cpu()
        return bradley_terry_loss(chosen, rejected, total), margins

    def _both(self, rows: Sequence[Sides]) -> tuple[Tensor, Tensor]:
        # One forward for both sides: all better ones, then all worse ones.
        rewards = self.rewards([*(w for w, _ in rows), *(r for _, r in rows)])
        return rewards[: len(rows)], rewards[len(rows) :]


def classifier_in(folder: Path) -> Any:
    """Return the sequence classifier of a Hugging Face folder. Raises: CheckpointError if it does not load."""
    import transformers

    with boundary(CheckpointError, f"the reward model of {folder} does not load"):
        return transformers.AutoModelForSequenceClassification.from_pretrained(folder)


def classifier_of(policy: Any) -> Any:
    """Return a sequence classifier of one label: its blocks are a copy of the policy's, its head is zero.

    Raises: ConfigError if transformers has no sequence classifier of this architecture.
    """
    return with_scalar_head(policy, "SequenceClassification", no_reward_model_message(policy))


def no_reward_model_message(policy: Any) -> str:
    """Return the beginning of the error message for a policy that has no sequence classifier."""
    return f"a reward model of model type {policy.config.model_type!r} (use a policy that has a sequence classifier)"


def _micro_batches(pairs: Sequence[Sides], micro_batch_tokens: int, device: torch.device) -> list[list[int]]:
    """Divide pairs, as indices, into micro-batches; a pair counts as two rows of its longer side."""
    return micro_batches([2 * padded_width(max(map(len, sides)), device) for sides in pairs], micro_batch_tokens)
