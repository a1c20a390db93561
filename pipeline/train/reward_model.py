"""A reward model: a scalar head on a causal LM, trained on pairs or steps, saved as a classifier of one label."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, NonFiniteError, boundary
from verizero.pipeline.models.load import ready, save_folder
from verizero.pipeline.models.proof import packs
from verizero.pipeline.models.runs import Runs, moved, states
from verizero.pipeline.models.scalar_head import score_of, with_scalar_head
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.rl.bradley_terry import bradley_terry_loss, calibration_error, pair_accuracy
from verizero.pipeline.train.collate import micro_batches, padded_ids, sizes_of
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import clipped_step, finite_norm, schedule, trained_by, with_masters
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.trees import packed_paths, tree_metrics
from verizero.pipeline.types import Path as RowPath
from verizero.pipeline.types import StepMetrics

NORM = "reward model's gradient norm"
OPTIMIZER = "trainer.pt"
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


class _Micro(NamedTuple):
    """A micro-batch of a rank."""

    indices: list[int]
    """Indices of its examples."""
    paths: list[tuple[RowPath, ...]] | None
    """The paths of each example's rows; None: they are padded."""
    weight: float
    """In the sum over ranks: 1, or 0 for one that only keeps this rank in step with the others."""


class RewardModel:
    """A classifier whose blocks and head train together. The head starts at zero, so that the first rewards are 0.

    Every rank has the whole model and computes all pairs; `verizero.pipeline.train.fsdp_classifier` divides both.
    """

    ranks: Ranks = ALONE
    """The ranks among which rows are divided."""

    def __init__(self, model: Any, optimizer: OptimizerConfig, total_steps: int, train: TrainConfig) -> None:
        self.train_config = train
        self.model = model.eval()  # no dropout: held-out numbers are of the same function
        self.config = optimizer
        self.total_steps = total_steps
        self.num_updates = 0
        self._start()

    @classmethod
    def of(cls, policy: Any, optimizer: OptimizerConfig, total_steps: int, train: TrainConfig) -> RewardModel:
        """Return an untrained reward model with the policy's blocks."""
        return cls(classifier_of(policy), optimizer, total_steps, train)

    @classmethod
    def continued(
        cls, folder: Path, optimizer: OptimizerConfig, total_steps: int, train: TrainConfig, device: Any
    ) -> RewardModel:
        """Return the reward model of a Hugging Face folder, with a fresh optimiser. Raises: CheckpointError."""
        return cls(ready(classifier_in(folder)).to(device), optimizer, total_steps, train)

    @classmethod
    def restored(
        cls, folder: Path, optimizer: OptimizerConfig, total_steps: int, train: TrainConfig, device: Any
    ) -> RewardModel:
        """Return the reward model that `save` wrote. Raises: CheckpointError if it does not load."""
        reward_model = cls.continued(folder / "model", optimizer, total_steps, train, device)
        reward_model.load_optimizer(folder)
        return reward_model

    def save(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write model and optimiser into `folder`, by the first rank."""
        self.write(folder / "model", tokenizer, is_first)
        if is_first:
            self.save_optimizer(folder)

    def save_optimizer(self, folder: Path) -> None:
        """Write the optimiser into `folder`."""
        state = {"optimizer": self.optimizer.state_dict(), "num_updates": self.num_updates}
        with (folder / OPTIMIZER).open("wb") as file:
            torch.save(state, file)

    def load_optimizer(self, folder: Path) -> None:
        """Restore what `save_optimizer` wrote. Raises: CheckpointError if it does not load."""
        with boundary(CheckpointError, f"the optimiser of the reward model of {folder} does not load"):
            state = torch.load(folder / OPTIMIZER, map_location=self.model.device, weights_only=True)
            self.optimizer.load_state_dict(state["optimizer"])
            self.num_updates = state["num_updates"]

    def write(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write the model as a Hugging Face folder, by the first rank."""
        if is_first:
            save_folder(self.model, tokenizer, folder)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    def can_pack(self) -> bool:
        """True if the model computes packed rows exactly, tried on its weights. Every rank must call it."""
        return bool(self._run(lambda model: torch.tensor(packs(model))))

    def rewards(
        self,
        rows: Sequence[Ids],
        ends: Sequence[Sequence[int]] | None = None,
        paths: Sequence[RowPath] | None = None,
    ) -> Tensor:
        """Return the rewards [N] at those tokens of each row, by default [B] at its last token, with gradient.

        `paths`: of the rows, if what they share is computed once.
        """
        device = self.model.device
        # Rows are padded on the right, which causal attention does not show to their own tokens.
        ids = padded_ids(rows, self.model.config.pad_token_id, device)
        ends = [[len(r) - 1] for r in rows] if ends is None else ends
        at = torch.tensor([(i, end) for i, own in enumerate(ends) for end in own], device=device).T
        runs = None
        if paths is not None:
            most = self.train_config.micro_batch_tokens
            cut = Runs.of(paths, ids.shape[1], ends=True, most=most, device=device)
            runs = cut.with_tensors(moved(cut.tensors(), device))

        def compute(model: Any) -> Tensor:
            if runs is None:
                hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[at[0], at[1]]
            else:
                hidden = states(model, ids.flatten()[runs.source], runs)[runs.place[at[0], at[1]]]
            scores: Tensor = score_of(model)(hidden)
            return scores[:, 0]

        return self._run(compute)

    def update(self, batch: Sequence[Example]) -> StepMetrics:
        """Take one optimiser step on the mean loss of the batch's pairs or steps, and return its metrics.

        Raises: NonFiniteError if loss or gradient is not finite; weights and optimiser are as before.
        """
        loss, places = 0.0, _places(batch)
        margins = torch.zeros(places[-1].stop, dtype=torch.float64)
        micros, metrics_of_tree = self._micro_batches(batch)
        for micro in micros:
            chosen, rejected = self._both(batch, micro)
            # A share of the mean loss: the gradients add up.
            share = bradley_terry_loss(chosen, rejected, len(margins))
            self._backward(share * micro.weight)
            loss += micro.weight * float(share.detach())
            own_margins = (chosen.detach() - rejected.detach()).double().cpu()
            margins[_joined(places, micro.indices)] += micro.weight * own_margins
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
            **metrics_of_tree,
        }

    @torch.no_grad()
    def margins(self, examples: Sequence[Example]) -> Tensor:
        """Return r_w - r_l of each pair, or r of each right step and -r of each wrong one, float64 [N], in order."""
        places = _places(examples)
        out = torch.zeros(places[-1].stop if places else 0, dtype=torch.float64)
        for micro in self._micro_batches(examples)[0]:
            chosen, rejected = self._both(examples, micro)
            out[_joined(places, micro.indices)] += micro.weight * (chosen - rejected).double().cpu()
        return self.ranks.all_reduce(out)

    def held_out(self, examples: Sequence[Example]) -> dict[str, float]:
        """Return accuracy, calibration error and loss on pairs or steps that were not trained on."""
        margins = self.margins(examples)
        zero = torch.zeros_like(margins)
        return {
            "held_out/pairs": float(len(examples)),
            "held_out/accuracy": pair_accuracy(margins),
            "held_out/calibration_error": calibration_error(margins),
            "held_out/loss": float(bradley_terry_loss(margins, zero, max(1, len(margins)))),
        }

    def spread(self, rows: Sequence[Ids]) -> tuple[float, float]:
        """Return mean and standard deviation of the rewards of rows."""
        rewards = self.margins([LabelledSteps(row, (len(row) - 1,), (True,)) for row in rows])
        return float(rewards.mean()), float(rewards.std(correction=0))

    def _micro_batches(self, examples: Sequence[Example]) -> tuple[list[_Micro], StepMetrics]:
        """Return this rank's micro-batches, of which all ranks have as many, and metrics of the tree of all rows."""
        rows_of = [(e.ids,) if isinstance(e, LabelledSteps) else e for e in examples]
        all_paths, is_refused = packed_paths(self, (row for rows in rows_of for row in rows), texts=True)
        if all_paths is None:
            # All rows of an example are as wide as its longest.
            costs = [len(rows) * padded_width(max(map(len, rows)), self.model.device) for rows in rows_of]
            paths = None
        else:
            in_order = iter(all_paths)
            paths = [tuple(islice(in_order, len(rows))) for rows in rows_of]
            costs = [sum(sizes_of(*own).values()) for own in paths]
        batches = micro_batches(costs, self.train_config.micro_batch_tokens)
        of_rank = [(batch, 1.0) for batch in batches[self.ranks.rank :: self.ranks.size]]
        num = -(-len(batches) // self.ranks.size)  # of the rank with the most
        of_rank += [(batches[0], 0.0)] * (num - len(of_rank))
        micros = [_Micro(batch, None if paths is None else [paths[i] for i in batch], w) for batch, w in of_rank]
        return micros, tree_metrics(all_paths, is_refused)

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

    def _both(self, examples: Sequence[Example], micro: _Micro) -> tuple[Tensor, Tensor]:
        """Return two rewards [N] of each pair, the better side's first.

        A step's are r and 0 if it is right, else -r and 0: -log sigmoid of their difference is its cross-entropy.
        """
        own = [examples[i] for i in micro.indices]
        # All better sides, then all worse ones.
        paths = None if micro.paths is None else [path for side in zip(*micro.paths, strict=True) for path in side]
        steps = [row for row in own if isinstance(row, LabelledSteps)]
        if steps:
            rewards = self.rewards([row.ids for row in steps], [row.ends for row in steps], paths)
            right = torch.tensor([is_right for row in steps for is_right in row.right], device=rewards.device)
            return torch.where(right, rewards, -rewards), torch.zeros_like(rewards)
        rewards = self.rewards([*(sides[0] for sides in own), *(sides[1] for sides in own)], paths=paths)
        return rewards[: len(own)], rewards[len(own) :]


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


def _places(examples: Sequence[Example]) -> list[range]:
    """Return the indices of each example's margins among those of all: one of a pair, one of each step."""
    sizes = [len(e.ends) if isinstance(e, LabelledSteps) else 1 for e in examples]
    stops = list(accumulate(sizes))
    return [range(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def _joined(places: Sequence[range], indices: Sequence[int]) -> Tensor:
    """Return the indices of the margins of those examples, in order."""
    return torch.tensor([place for i in indices for place in places[i]])
