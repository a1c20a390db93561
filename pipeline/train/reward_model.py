"""A reward model: a scalar head on a causal LM, trained on pairs or steps, saved as a classifier of one label."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, ConfigError, NonFiniteError, boundary
from verizero.pipeline.models.complete import loaded
from verizero.pipeline.models.load import save_folder
from verizero.pipeline.models.lora import Adapted, trained_by_saved_name
from verizero.pipeline.models.proof import packs
from verizero.pipeline.models.runs import Runs, moved, padded_width, states
from verizero.pipeline.models.saved_names import on_meta
from verizero.pipeline.models.scalar_head import of_one_label, score_of
from verizero.pipeline.rl.bradley_terry import bradley_terry_loss, calibration_error, pair_accuracy
from verizero.pipeline.train.collate import micro_batches, padded_ids, sizes_of
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.torch_trained import TorchTrained
from verizero.pipeline.train.trained import Trained
from verizero.pipeline.train.trees import packed_paths, tree_metrics
from verizero.pipeline.types import Path as RowPath
from verizero.pipeline.types import StepMetrics

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

    Where FSDP divides it, ranks divide the rows too; else every rank has the whole model and computes all rows.
    """

    def __init__(self, trained: Trained, optimizer: OptimizerConfig, total_steps: int, train: TrainConfig) -> None:
        self.trained = trained
        self.model: Any = trained.model
        """The classifier. Its weights may be shards."""
        self.ranks = trained.ranks
        """The ranks among which rows are divided."""
        self.train_config = train
        trained.start(optimizer, total_steps)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward."""
        return self.trained.dtype

    def save(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write weights and optimiser into `folder`; every rank must call it."""
        self._write_weights(folder, tokenizer, is_first)
        if is_first or self.trained.is_divided:
            self.trained.write(folder, {}, {}, in_background=False)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, besides weights that were read from its folder. Raises: CheckpointError."""
        self.trained.read(folder, self.trained.read_state(folder))

    def write(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write the model as a Hugging Face folder; every rank must call it."""
        model = self.trained.savable(is_first)
        if model is not None:
            model.save_pretrained(folder)
        if is_first:
            tokenizer.save_pretrained(folder)

    def _write_weights(self, folder: Path, tokenizer: Any, is_first: bool) -> None:
        self.write(folder / "model", tokenizer, is_first)

    def can_pack(self) -> bool:
        """True if the model computes packed rows exactly, tried on its weights. Every rank must call it."""
        return bool(self.trained.run(lambda model: torch.tensor(packs(model))))

    def rewards(
        self, rows: Sequence[Ids], ends: Sequence[Sequence[int]] | None = None, paths: Sequence[RowPath] | None = None
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
            most = self.train_config.most_tokens
            cut = Runs.of(paths, ids.shape[1], ends=True, most=most, device=device)
            runs = cut.with_tensors(moved(cut.tensors(), device))

        def compute(model: Any) -> Tensor:
            if runs is None:
                hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[at[0], at[1]]
            else:
                hidden = states(model, ids.flatten()[runs.source], runs)[runs.place[at[0], at[1]]]
            scores: Tensor = score_of(model)(hidden)
            return scores[:, 0]

        rewards: Tensor = self.trained.run(compute)
        return rewards

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
            self.trained.backward(share * micro.weight)
            loss += micro.weight * float(share.detach())
            own_margins = (chosen.detach() - rejected.detach()).double().cpu()
            margins[_joined(places, micro.indices)] += micro.weight * own_margins
        loss = float(self.ranks.all_reduce(torch.tensor([loss], dtype=torch.float64)))
        if not math.isfinite(loss):
            self.trained.discard()
            raise NonFiniteError(f"the reward model's loss is {loss}; the update was refused")
        norm, rate = self.trained.step()
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
        batches = micro_batches(costs, self.train_config.most_tokens)
        of_rank = [(batch, 1.0) for batch in batches[self.ranks.rank :: self.ranks.size]]
        num = -(-len(batches) // self.ranks.size)  # of the rank with the most
        of_rank += [(batches[0], 0.0)] * (num - len(of_rank))
        micros = [_Micro(batch, None if paths is None else [paths[i] for i in batch], w) for batch, w in of_rank]
        return micros, tree_metrics(all_paths, is_refused)

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


class AdaptedRewardModel(RewardModel):
    """A classifier that begins with the policy's adapters, and whose base takes no memory of its own."""

    def __init__(self, adapted: Adapted, optimizer: OptimizerConfig, total_steps: int, train: TrainConfig) -> None:
        """Raises: ConfigError if transformers has no sequence classifier of this architecture."""
        self.adapted = adapted
        self._copied = adapted.trainable_copy()
        trained = TorchTrained(_classifier_around(self._copied), NORM, ALONE)
        super().__init__(trained, optimizer, total_steps, train)

    def take(self, folder: Path) -> None:
        """Set adapters and head to those that `write` wrote; the optimiser is fresh. Raises: CheckpointError."""
        self.adapted.load(folder, self.model)
        assert self.trained.config is not None
        self.trained.start(self.trained.config, self.trained.total_steps)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises: CheckpointError."""
        self.take(folder)
        super().load(folder)

    def _write_weights(self, folder: Path, tokenizer: Any, is_first: bool) -> None:
        """Write adapters and head, and no base."""
        if is_first:
            self._write_adapters(folder)

    def write(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write the model as a Hugging Face folder of plain numbers, with the adapters in its `adapter/`."""
        if not is_first:
            return
        model = _classifier_around(self.adapted.plain_model(self._copied, device=torch.device("cpu")))
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


def classifier_in(folder: Path) -> Any:
    """Return the sequence classifier of a Hugging Face folder. Raises: CheckpointError if it does not load."""
    import transformers

    with boundary(CheckpointError, f"the reward model of {folder} does not load"):
        return loaded(transformers.AutoModelForSequenceClassification, folder, f"{folder}")


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
