"""A reward model: a scalar head on a causal LM, trained on pairs or steps, saved as a classifier of one label."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

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


class LabelledSteps(NamedTuple):
    """A response whose steps are right or wrong."""

    ids: Ids
    """Tokens of the prompt and the response, up to the end of its last labelled step."""
    ends: tuple[int, ...]
    """Index of the last token of each labelled step."""
    right: tuple[bool, ...]


Example = Sides | LabelledSteps


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

    def rewards(self, rows: Sequence[Ids], ends: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Return the rewards [N] at those tokens of each row, by default [B] at its last token, with gradient."""
        ids = padded_ids(rows, self.model.config.pad_token_id, self.model.device)
        # Rows are padded on the right, which causal attention does not show to their own tokens.
        ends = [[len(r) - 1] for r in rows] if ends is None else ends
        at = torch.tensor([(i, end) for i, own in enumerate(ends) for end in own], device=ids.device)

        def compute(model: Any) -> Tensor:
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            scores: Tensor = score_of(model)(hidden[at[:, 0], at[:, 1]])
            return scores[:, 0]

        return self._run(compute)

    def update(self, batch: Sequence[Example], micro_batch_tokens: int) -> dict[str, float]:
        """Take one optimiser step on the mean loss of the batch's pairs or steps, and return its metrics.

        Raises: NonFiniteError if loss or gradient is not finite; weights and optimiser are as before.
        """
        loss, places = 0.0, _places(batch)
        margins = torch.zeros(places[-1].stop, dtype=torch.float64)
        for indices, weight in self._of_rank(_micro_batches(batch, micro_batch_tokens, self.model.device)):
            # A share of the mean loss: the gradients add up.
            share, micro_margins = self._loss([batch[i] for i in indices], len(margins))
            self._backward(share * weight)
            loss += weight * float(share.detach())
            margins[_joined(places, indices)] += weight * micro_margins
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
    def margins(self, examples: Sequence[Example], micro_batch_tokens: int) -> Tensor:
        """Return r_w - r_l of each pair, or r of each right step and -r of each wrong one, float64 [N], in order."""
        places = _places(examples)
        out = torch.zeros(places[-1].stop if places else 0, dtype=torch.float64)
        for indices, weight in self._of_rank(_micro_batches(examples, micro_batch_tokens, self.model.device)):
            chosen, rejected = self._both([examples[i] for i in indices])
            out[_joined(places, indices)] += weight * (chosen - rejected).double().cpu()
        return self.ranks.all_reduce(out)

    def held_out(self, examples: Sequence[Example], micro_batch_tokens: int) -> dict[str, float]:
        """Return accuracy, calibration error and loss on pairs or steps that were not trained on."""
        margins = self.margins(examples, micro_batch_tokens)
        zero = torch.zeros_like(margins)
        return {
            "held_out/pairs": float(len(examples)),
            "held_out/accuracy": pair_accuracy(margins),
            "held_out/calibration_error": calibration_error(margins),
            "held_out/loss": float(bradley_terry_loss(margins, zero, max(1, len(margins)))),
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
        self.optimizer = with_masters(self.model, self.config)

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

    def _loss(self, rows: Sequence[Example], total: int) -> tuple[Tensor, Tensor]:
        chosen, rejected = self._both(rows)
        margins = (chosen.detach() - rejected.detach()).double().cpu()
        return bradley_terry_loss(chosen, rejected, total), margins

    def _both(self, rows: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Return two rewards [N] of each pair, the better side's first.

        A step's are r and 0 if it is right, else -r and 0: -log sigmoid of their difference is its cross-entropy.
        """
        steps = [row for row in rows if isinstance(row, LabelledSteps)]
        if steps:
            rewards = self.rewards([row.ids for row in steps], [row.ends for row in steps])
            right = torch.tensor([is_right for row in steps for is_right in row.right], device=rewards.device)
            return torch.where(right, rewards, -rewards), torch.zeros_like(rewards)
        # One forward for both sides: all better ones, then all worse ones.
        rewards = self.rewards([*(row[0] for row in rows), *(row[1] for row in rows)])
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


def _micro_batches(examples: Sequence[Example], micro_batch_tokens: int, device: torch.device) -> list[list[int]]:
    """Divide examples, as indices, into micro-batches; a pair counts as two rows of its longer side."""

    def num_tokens(example: Example) -> int:
        if isinstance(example, LabelledSteps):
            return padded_width(len(example.ids), device)
        return 2 * padded_width(max(map(len, example)), device)

    return micro_batches([num_tokens(example) for example in examples], micro_batch_tokens)


def _places(examples: Sequence[Example]) -> list[range]:
    """Return the indices of each example's margins among those of all: one of a pair, one of each step."""
    sizes = [len(e.ends) if isinstance(e, LabelledSteps) else 1 for e in examples]
    stops = list(accumulate(sizes))
    return [range(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def _joined(places: Sequence[range], indices: Sequence[int]) -> Tensor:
    """Return the indices of the margins of those examples, in order."""
    return torch.tensor([place for i in indices for place in places[i]])
