"""The update of a preference loss: one optimiser step on pairs or labelled responses, with its metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from verizero.pipeline.errors import DataError, NonFiniteError
from verizero.pipeline.models.runs import padded_width
from verizero.pipeline.preferences.base import Loss, Losses, PreferenceParams, Responses, Sides
from verizero.pipeline.train.backend import Backend, WhichModel
from verizero.pipeline.train.collate import rank_micro_batches, sizes_of
from verizero.pipeline.train.texts import Row, Texts, idle_text, row_after, text_batches
from verizero.pipeline.train.trees import packed_paths, tree_metrics
from verizero.pipeline.types import Path, StepMetrics

Ids = tuple[int, ...]
ABSENT = float("nan")
"""In a table of log-probs: the row has no response on that side."""


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """A prompt with a better and a worse response, in tokens; for losses of labels one of them may be None."""

    prompt_ids: Ids
    chosen_ids: Ids | None
    rejected_ids: Ids | None

    @property
    def sides(self) -> tuple[Ids | None, Ids | None]:
        """Both responses, the chosen one first."""
        return self.chosen_ids, self.rejected_ids

    @property
    def num_sides(self) -> int:
        """The number of responses."""
        return sum(s is not None for s in self.sides)

    @property
    def longest(self) -> int:
        """Tokens of the prompt with the longer response."""
        return len(self.prompt_ids) + max(len(s) for s in self.sides if s is not None)

    def text(self, side: int) -> Row:
        """Return the prompt with one of its responses, on which it trains; side 0 is the chosen one."""
        return row_after((*self.prompt_ids, *(self.sides[side] or ())), len(self.prompt_ids))


@dataclass(frozen=True, slots=True)
class PreferenceSettings:
    """The numbers of an update."""

    pad_id: int
    temperature: float
    micro_batch_tokens: int


@dataclass(frozen=True, slots=True)
class PreferenceBatch:
    """The rows of one optimiser step; every rank gets all of them."""

    rows: Sequence[PreferenceRow]
    ref: Tensor | None = None
    """[rows, 2] log-probs of the sides under the reference; None for a loss without one."""
    mismatched: Sequence[PreferenceRow] = ()
    """Prompts with responses to other prompts, for KTO's estimate of the KL."""
    mismatched_ref: Tensor | None = None


def mismatched(rows: Sequence[PreferenceRow]) -> list[PreferenceRow]:
    """Return each row's prompt with the responses of the next row that has another prompt; after the last, the first.

    Raises: DataError if all prompts are the same.
    """
    out, num = [], len(rows)
    for i, row in enumerate(rows):
        following = (rows[(i + k) % num] for k in range(1, num))
        other = next((r for r in following if r.prompt_ids != row.prompt_ids), None)
        if other is None:
            raise DataError(
                f"the {num} responses all answer one prompt, and kto compares each with responses to other "
                "prompts; give it more prompts a step (batch_size, prompts_per_step), or use dpo"
            )
        out.append(PreferenceRow(row.prompt_ids, other.chosen_ids, other.rejected_ids))
    return out


@torch.no_grad()
def side_logprobs(
    backend: Backend, rows: Sequence[PreferenceRow], which: WhichModel, settings: PreferenceSettings
) -> Tensor:
    """Return [rows, 2] summed log-probs of the chosen and rejected sides, on the CPU; ranks divide the rows."""
    out = torch.zeros(len(rows), 2, dtype=torch.float64)
    for micro in _micro_batches(backend, rows, settings)[0]:
        summed = _summed_logprobs(backend, rows, micro, which, settings)
        if micro.rows:
            for (row, side), value in zip(_sequences(rows, micro.rows), summed.logprobs.tolist(), strict=True):
                out[row, side] = value
    # Each rank has 0 in the rows of the others. Absent sides become NaN after the sum, which would spread it.
    out = backend.ranks.all_reduce(out)
    exists = torch.tensor([[s is not None for s in r.sides] for r in rows])
    return torch.where(exists, out, torch.full_like(out, ABSENT))


def preference_update(
    backend: Backend, params: PreferenceParams, loss: Loss, batch: PreferenceBatch, settings: PreferenceSettings
) -> StepMetrics:
    """Take one optimiser step on the mean loss of the batch, and return its metrics.

    The denominator is the number of pairs (or of responses, for a loss of labels) of the whole step, counted before
    any backward: micro-batches and ranks change nothing.

    Raises: NonFiniteError if loss or gradient is not finite; that update was refused, the weights are as before.
    """
    rows, z = batch.rows, 0.0
    if params.needs_divergence:  # max(0, mean of log pi - log pi_ref) over the mismatched responses of the whole step
        assert batch.mismatched_ref is not None
        drift = side_logprobs(backend, batch.mismatched, "policy", settings) - batch.mismatched_ref.double()
        z = max(0.0, float(drift[~drift.isnan()].mean()))
    # Every rank has all rows, so the denominator needs no sum over ranks.
    total = sum(r.num_sides for r in rows) if params.from_labels else len(rows)
    sums_of_rank = _Sums()
    micros, metrics_of_tree = _micro_batches(backend, rows, settings)
    for micro in micros:
        summed = _summed_logprobs(backend, rows, micro, "policy", settings)
        if not micro.rows:  # an idle micro-batch: the backward keeps in step with the other ranks
            backend.backward(summed.logprobs.sum() * 0.0)
            continue
        sides = _sides(batch, micro.rows, summed, z)
        losses = loss(params, sides)
        share = losses.values.sum() / total
        backend.backward(share)
        sums_of_rank.add(losses, sides, params.from_labels)
    stats = backend.ranks.all_reduce(torch.tensor(sums_of_rank.numbers, dtype=torch.float64)).tolist()
    mean = stats[0] / total
    if not math.isfinite(mean):  # a sum over ranks, so that all of them raise and none waits for another
        backend.discard()
        raise NonFiniteError(f"the loss of preferences is {mean}; the update was refused, lower the learning rate")
    metrics = {"loss": mean, "rows": float(len(rows)), **metrics_of_tree, **_summary(stats)}
    if params.needs_divergence:
        metrics["preference/z"] = z
    return {**metrics, **backend.step()}


@dataclass
class _Sums:
    """Statistics summed over a rank's micro-batches, in the order in which `_summary` reads them."""

    numbers: list[float] = field(default_factory=lambda: [0.0] * 10)

    def add(self, losses: Losses, sides: Sides, from_labels: bool) -> None:
        """Add the statistics of a micro-batch."""
        good, bad = losses.chosen_rewards.detach().double(), losses.rejected_rewards.detach().double()
        wins = 0.0 if from_labels else float((good > bad).sum() + 0.5 * (good == bad).sum())
        # The order is that of `_summary`.
        numbers: list[Tensor | float] = [
            *(losses.values.detach().double().sum(), good.sum(), len(good), bad.sum(), len(bad)),
            *(wins, 0 if from_labels else len(good)),
            *(sides.chosen.logprobs.detach().double().sum(), sides.rejected.logprobs.detach().double().sum()),
            sides.chosen.lengths.sum() + sides.rejected.lengths.sum(),
        ]
        self.numbers = [a + float(b) for a, b in zip(self.numbers, numbers, strict=True)]


def _summary(stats: Sequence[float]) -> StepMetrics:
    _, good, num_good, bad, num_bad, wins, num_pairs, lp_good, lp_bad, tokens = stats
    out = {"tokens": tokens}
    if num_good:
        out |= {"preference/chosen_reward": good / num_good, "preference/chosen_logprob": lp_good / num_good}
    if num_bad:
        out |= {"preference/rejected_reward": bad / num_bad, "preference/rejected_logprob": lp_bad / num_bad}
    if num_good and num_bad:
        out["preference/margin"] = good / num_good - bad / num_bad
    if num_pairs:
        out["preference/accuracy"] = wins / num_pairs
    return out


class _Micro(NamedTuple):
    """A micro-batch: both sides of a pair are in one."""

    rows: list[int]
    """Indices of its rows; empty for an idle one."""
    paths: list[Path] | None
    """The path of each of its sequences; None: they are padded."""

    def texts(self, rows: Sequence[PreferenceRow]) -> Texts:
        """Return its sequences; of an idle one the shortest row, of which nothing trains."""
        if self.rows:
            return [rows[i].text(side) for i, side in _sequences(rows, self.rows)], self.paths
        return idle_text(rows[i].text(side) for i, side in _sequences(rows, range(len(rows))))


def _micro_batches(
    backend: Backend, rows: Sequence[PreferenceRow], settings: PreferenceSettings
) -> tuple[list[_Micro], StepMetrics]:
    """Return this rank's micro-batches, of which all ranks have as many, and metrics of the tree of all rows.

    Sequences are a tree where that pays: both sides share their prompt, and so do all pairs of a prompt.
    """
    sequences = _sequences(rows, range(len(rows)))
    # Every sequence in its turn: tokens of all would take as much memory as all rows.
    all_paths, is_refused = packed_paths(backend, (rows[i].text(side).ids for i, side in sequences))
    # Padded, both sides are as wide as the longer one.
    sizes = [r.num_sides * padded_width(r.longest, backend.model.device) for r in rows]
    paths = None if all_paths is None else dict(zip(sequences, all_paths, strict=True))
    if paths is not None:
        sizes = [sum(sizes_of(*(paths[at] for at in _sequences(rows, [i]))).values()) for i in range(len(rows))]
    ranks = backend.ranks
    pieces, num_idle = rank_micro_batches(sizes, settings.micro_batch_tokens, ranks.rank, ranks.size)
    micros = [
        _Micro(piece, None if paths is None else [paths[at] for at in _sequences(rows, piece)])
        for piece in [*pieces, *[[]] * num_idle]
    ]
    return micros, tree_metrics(all_paths, is_refused)


def _sequences(rows: Sequence[PreferenceRow], micro_rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return (row, side) of each of the N sequences of a micro-batch: the chosen ones, then the rejected ones."""
    return [(i, side) for side in (0, 1) for i in micro_rows if rows[i].sides[side] is not None]


@dataclass(frozen=True, slots=True)
class _Summed:
    """Log-probs of the N responses of a micro-batch; see `_sequences`."""

    logprobs: Tensor
    """[N] summed over the tokens."""
    lengths: Tensor
    """[N] tokens, in the type of `logprobs`."""


def _summed_logprobs(
    backend: Backend, rows: Sequence[PreferenceRow], micro: _Micro, which: WhichModel, settings: PreferenceSettings
) -> _Summed:
    """Return the summed log-probs of a micro-batch; of an idle one, of its shortest row, of which nothing trains."""
    most, device = settings.micro_batch_tokens, backend.model.device
    ((ids_N_T, mask_N_T, targets),) = text_batches([micro.texts(rows)], settings.pad_id, most, device)
    logprobs_N_T, _ = backend.logprobs(ids_N_T, mask_N_T, settings.temperature, which, False, targets=targets)
    sums_N = logprobs_N_T.sum(1)
    return _Summed(sums_N, mask_N_T.sum(1).to(sums_N.dtype))


def _sides(batch: PreferenceBatch, micro_rows: Sequence[int], summed: _Summed, z: float) -> Sides:
    sequences = _sequences(batch.rows, micro_rows)
    num_chosen = sum(side == 0 for _, side in sequences)  # `_sequences` lists all chosen ones first
    ref: Tensor | None = None
    if batch.ref is not None:
        ref = torch.stack([batch.ref[i, side] for i, side in sequences]).to(summed.logprobs)

    def responses(part: slice) -> Responses:
        return Responses(summed.logprobs[part], summed.lengths[part], None if ref is None else ref[part])

    return Sides(responses(slice(0, num_chosen)), responses(slice(num_chosen, None)), z)


class ReferenceTable(PreferenceBatch):
    """Log-probs of rows under the reference: of one step, or of all rows, computed once, before the policy moves."""

    @classmethod
    def computed(
        cls,
        backend: Backend,
        params: PreferenceParams,
        rows: Sequence[PreferenceRow],
        settings: PreferenceSettings,
        which: WhichModel,
    ) -> ReferenceTable:
        """Compute the table; for a loss without a reference it is empty.

        `which`: the reference, or the policy, which is the reference as long as it has not been updated.
        """
        others = mismatched(rows) if params.needs_divergence else []
        ref = side_logprobs(backend, rows, which, settings) if params.needs_reference else None
        return cls(rows, ref, others, side_logprobs(backend, others, which, settings) if others else None)

    def batch(self, indices: Sequence[int]) -> PreferenceBatch:
        """Return the rows at those indices, for one optimiser step."""
        indices = list(indices)
        return PreferenceBatch(
            [self.rows[i] for i in indices],
            None if self.ref is None else self.ref[indices],
            [self.mismatched[i] for i in indices] if self.mismatched else (),
            None if self.mismatched_ref is None else self.mismatched_ref[indices],
        )

    def to_bytes(self) -> bytes:
        """Return the log-probs as the bytes of a file."""
        tensors = {"ref": self.ref, "mismatched_ref": self.mismatched_ref}
        content: bytes = save_tensors({k: v for k, v in tensors.items() if v is not None})
        return content

    @classmethod
    def from_bytes(cls, params: PreferenceParams, rows: Sequence[PreferenceRow], content: bytes) -> ReferenceTable:
        """Return the table that `to_bytes` wrote for the same rows."""
        tensors = load_tensors(content)
        others = mismatched(rows) if params.needs_divergence else []
        return cls(rows, tensors.get("ref"), others, tensors.get("mismatched_ref"))


def key_of(rows: Sequence[PreferenceRow], settings: PreferenceSettings) -> str:
    """Return a hash of what, besides the policy's weights, determines the reference's log-probs."""
    digest = hashlib.sha256(f"{settings.temperature!r}".encode())
    for row in rows:
        digest.update(repr((row.prompt_ids, row.chosen_ids, row.rejected_ids)).encode())
    return digest.hexdigest()[:16]
