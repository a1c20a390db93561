"""The update of a preference loss: pairs or labelled responses to one optimiser step, with its metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from verizero.pipeline.errors import DataError, NonFiniteError
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.preferences.base import Loss, Losses, PreferenceParams, Responses, Sides, weighed
from verizero.pipeline.train.backend import Backend, WhichModel
from verizero.pipeline.train.collate import padded_ids, rank_micro_batches
from verizero.pipeline.types import StepMetrics

Ids = tuple[int, ...]
ABSENT = float("nan")
"""In a table of log-probs: the row has no response on this side."""


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """A prompt with a better and a worse response, in tokens; losses of labels may have only one of the two."""

    prompt_ids: Ids
    chosen_ids: Ids | None
    rejected_ids: Ids | None

    @property
    def sides(self) -> tuple[Ids | None, Ids | None]:
        """Both responses, chosen first."""
        return self.chosen_ids, self.rejected_ids

    @property
    def num_sides(self) -> int:
        """The number of responses."""
        return sum(s is not None for s in self.sides)

    @property
    def longest(self) -> int:
        """Tokens of the prompt with the longer response."""
        return len(self.prompt_ids) + max(len(s) for s in self.sides if s is not None)


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
    """Prompts with responses to other prompts, for the estimate of the KL."""
    mismatched_ref: Tensor | None = None


def mismatched(rows: Sequence[PreferenceRow]) -> list[PreferenceRow]:
    """Return each row's prompt with the responses of the next row that has another prompt.

    Raises: DataError if all prompts are the same.
    """
    last = len(rows)
    # following[i]: the next index with another prompt than row i. Indices go round: they may exceed `last`.
    # From the end to the start, twice round, each is known from its successor, so that equal prompts cost no search.
    following = [last] * last
    for i in range(2 * last - 1, -1, -1):
        here, after = rows[i % last], rows[(i + 1) % last]
        index = i + 1 if after.prompt_ids != here.prompt_ids else following[(i + 1) % last]
        following[i % last] = index
    if any(rows[j % last].prompt_ids == row.prompt_ids for row, j in zip(rows, following, strict=True)):
        raise DataError(
            f"the {last} responses all answer one prompt, and kto compares each with responses to other prompts; "
            "give it more prompts a step (batch_size, prompts_per_step), or use dpo"
        )
    others = [rows[j % last] for j in following]
    return [PreferenceRow(row.prompt_ids, o.chosen_ids, o.rejected_ids) for row, o in zip(rows, others, strict=True)]


@torch.no_grad()
def side_logprobs(
    backend: Backend, rows: Sequence[PreferenceRow], which: WhichModel, settings: PreferenceSettings
) -> Tensor:
    """Return [rows, 2] summed log-probs of the chosen and rejected sides, on the CPU; ranks divide the rows."""
    out = torch.zeros(len(rows), 2, dtype=torch.float64)
    for piece in _pieces(backend, rows, settings):
        sums, _ = _summed(backend, rows, piece, which, settings)
        if piece:
            for (row, side), value in zip(_places(rows, piece), sums.tolist(), strict=True):
                out[row, side] = value
    # Each rank has 0 in the places of the others. Absent sides are marked after the sum, which NaN would survive.
    out = backend.ranks.row_ranks.all_reduce(out)
    there = torch.tensor([[s is not None for s in r.sides] for r in rows])
    return torch.where(there, out, torch.full_like(out, ABSENT))


def preference_update(
    backend: Backend, params: PreferenceParams, loss: Loss, batch: PreferenceBatch, settings: PreferenceSettings
) -> StepMetrics:
    """Take one optimiser step on the mean loss of the batch, and return its metrics.

    The denominator is the number of pairs (or of responses, for a loss of labels) of the whole step, counted before
    any backward: micro-batches and ranks change nothing.

    Raises: NonFiniteError if loss or gradient is not finite; that update was refused, the weights are as before.
    """
    z = _divergence(backend, batch, settings) if params.needs_divergence else 0.0
    rows = batch.rows
    # Every rank has all rows, so the denominator needs no sum over ranks.
    total = sum(r.num_sides for r in rows) if params.from_labels else len(rows)
    seen = _Seen()
    for piece in _pieces(backend, rows, settings):
        sharpened = _sharpened(backend, rows, piece, settings) if params.needs_weights else None
        sums, lengths = _summed(backend, rows, piece, "policy", settings)
        if not piece:  # an idle micro-batch: the backward keeps in step with the other ranks
            backend.backward(sums.sum() * 0.0)
            continue
        weights = None if sharpened is None else _pair_weights(sums, sharpened, lengths)
        sides = replace(_sides(batch, piece, sums, lengths, z), weights=weights)
        losses = weighed(loss(params, sides), sides)
        share = losses.values.sum() / total
        backend.backward(share)
        seen.add(losses, sides, params.from_labels)
    stats = backend.ranks.row_ranks.all_reduce(torch.tensor(seen.numbers, dtype=torch.float64)).tolist()
    mean = stats[0] / total
    if not math.isfinite(mean):  # a sum over ranks, so that all of them raise and none waits for another
        backend.discard()
        raise NonFiniteError(f"the loss of preferences is {mean}; the update was refused, lower the learning rate")
    metrics = {"loss": mean, "rows": float(len(rows)), **_summary(stats)}
    if params.needs_divergence:
        metrics["preference/z"] = z
    return {**metrics, **backend.step()}


@dataclass
class _Seen:
    """Sums over a rank's micro-batches, in the order in which `_summary` reads them."""

    numbers: list[float] = field(default_factory=lambda: [0.0] * 12)

    def add(self, losses: Losses, sides: Sides, from_labels: bool) -> None:
        """Count a micro-batch."""
        good, bad = losses.chosen_rewards.detach().double(), losses.rejected_rewards.detach().double()
        wins = 0.0 if from_labels else float((good > bad).sum() + 0.5 * (good == bad).sum())
        # The order is that of `_summary`.
        each: list[Tensor | float] = [
            *(losses.values.detach().double().sum(), good.sum(), len(good), bad.sum(), len(bad)),
            *(wins, 0 if from_labels else len(good)),
            *(sides.chosen.logprobs.detach().double().sum(), sides.rejected.logprobs.detach().double().sum()),
            sides.chosen.lengths.sum() + sides.rejected.lengths.sum(),
            0.0 if sides.weights is None else sides.weights.double().sum(),
            0.0 if losses.clamped is None else losses.clamped,
        ]
        self.numbers = [a + float(b) for a, b in zip(self.numbers, each, strict=True)]


def _summary(stats: Sequence[float]) -> StepMetrics:
    _, good, num_good, bad, num_bad, wins, num_pairs, lp_good, lp_bad, tokens, weights, clamped = stats
    out = {"tokens": tokens}
    if num_good:
        out |= {"preference/chosen_reward": good / num_good, "preference/chosen_logprob": lp_good / num_good}
    if num_bad:
        out |= {"preference/rejected_reward": bad / num_bad, "preference/rejected_logprob": lp_bad / num_bad}
    if num_good and num_bad:
        out["preference/margin"] = good / num_good - bad / num_bad
    if num_pairs:
        out["preference/accuracy"] = wins / num_pairs
    if weights:
        out["preference/weight"] = weights / num_pairs
    if clamped:
        out["preference/clamped"] = clamped
    return out


def _divergence(backend: Backend, batch: PreferenceBatch, settings: PreferenceSettings) -> float:
    """Return max(0, mean of log pi - log pi_ref) over the mismatched responses of the whole step."""
    assert batch.mismatched_ref is not None
    drift = side_logprobs(backend, batch.mismatched, "policy", settings) - batch.mismatched_ref.double()
    return max(0.0, float(drift[~drift.isnan()].mean()))


def _pieces(backend: Backend, rows: Sequence[PreferenceRow], settings: PreferenceSettings) -> Iterator[list[int]]:
    """Yield this rank's micro-batches, both sides of a pair in one. All ranks have as many; the last may be idle."""
    # Both sides are padded to the longer one.
    sizes = [r.num_sides * padded_width(r.longest, backend.model.device) for r in rows]
    pieces, num_idle = rank_micro_batches(
        sizes, settings.micro_batch_tokens, backend.ranks.row_ranks.rank, backend.ranks.row_ranks.size
    )
    yield from (*pieces, *([[]] * num_idle))


def _places(rows: Sequence[PreferenceRow], piece: Sequence[int]) -> list[tuple[int, int]]:
    """Return (row, side) of each sequence of a micro-batch: the chosen ones, then the rejected ones."""
    return [(i, side) for side in (0, 1) for i in piece if rows[i].sides[side] is not None]


def _summed(
    backend: Backend,
    rows: Sequence[PreferenceRow],
    piece: Sequence[int],
    which: WhichModel,
    settings: PreferenceSettings,
) -> tuple[Tensor, Tensor]:
    """Return summed log-probs [N] and lengths [N] of the sequences at `_places`.

    An idle micro-batch computes a row of which nothing trains, to keep in step with the other ranks.
    """
    spare = min(rows, key=lambda r: r.longest)
    texts = [(rows[i].prompt_ids, rows[i].sides[side] or ()) for i, side in _places(rows, piece)]
    device = backend.model.device
    # The shortest row, with `where` False throughout: its sum is 0, its gradient too.
    idle = [(*spare.prompt_ids, *(spare.chosen_ids or spare.rejected_ids or ()))]
    ids = padded_ids([(*p, *y) for p, y in texts] or idle, settings.pad_id, device)
    where = torch.zeros(ids.shape, dtype=torch.bool, device=device)
    for k, (prompt, response) in enumerate(texts):
        where[k, len(prompt) : len(prompt) + len(response)] = True
    logprobs, _ = backend.logprobs(ids, where, settings.temperature, which, False)
    sums = logprobs.sum(1)
    return sums, where.sum(1).to(sums.dtype)


def _sharpened(
    backend: Backend, rows: Sequence[PreferenceRow], piece: Sequence[int], settings: PreferenceSettings
) -> Tensor:
    """Return [N] summed log-probs of the policy at half the temperature, without gradient; see `_pair_weights`."""
    halved = replace(settings, temperature=settings.temperature / 2)
    with torch.no_grad():
        return _summed(backend, rows, piece, "policy", halved)[0]


def _pair_weights(sums: Tensor, sharpened: Tensor, lengths: Tensor) -> Tensor:
    """Return WPO's weights w(y_w) w(y_l) of a micro-batch, [pairs], without gradient (2406.11827 eq. 2).

    w(y) = exp(1/|y| sum_t log(p(y_t) / sum_v p(v)^2)). The ratio has mean 1 over the tokens that the policy would
    sample at t, however flat its distribution is there. Half the temperature makes the distribution
    p(v)^2 / sum_u p(u)^2, so the logarithm is the log-prob at half the temperature less the one at the temperature.
    """
    each = ((sharpened - sums.detach()) / lengths).exp()
    chosen, rejected = each.chunk(2)  # `_places` lists all chosen ones first, and each row has both
    return chosen * rejected


def _sides(batch: PreferenceBatch, piece: Sequence[int], sums: Tensor, lengths: Tensor, z: float) -> Sides:
    places = _places(batch.rows, piece)
    cut = sum(side == 0 for _, side in places)  # `_places` lists all chosen ones first
    ref: Tensor | None = None
    if batch.ref is not None:
        ref = torch.stack([batch.ref[i, side] for i, side in places]).to(sums)

    def of(part: slice) -> Responses:
        return Responses(sums[part], lengths[part], None if ref is None else ref[part])

    return Sides(of(slice(0, cut)), of(slice(cut, None)), z)


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """Log-probs of all rows under the reference, computed once, before the policy moves."""

    rows: Sequence[PreferenceRow]
    ref: Tensor | None = None
    mismatched: Sequence[PreferenceRow] = ()
    mismatched_ref: Tensor | None = None

    @classmethod
    def computed(
        cls, backend: Backend, params: PreferenceParams, rows: Sequence[PreferenceRow], settings: PreferenceSettings
    ) -> ReferenceTable:
        """Return the table of the present policy; for a loss without a reference it is empty."""
        others = mismatched(rows) if params.needs_divergence else []
        # Of the policy: it has not moved yet, so it is the reference.
        ref = side_logprobs(backend, rows, "policy", settings) if params.needs_reference else None
        return cls(rows, ref, others, side_logprobs(backend, others, "policy", settings) if others else None)

    def batch(self, at: Sequence[int]) -> PreferenceBatch:
        """Return the rows at those indices, for one optimiser step."""
        places = list(at)
        return PreferenceBatch(
            [self.rows[i] for i in places],
            None if self.ref is None else self.ref[places],
            [self.mismatched[i] for i in places] if self.mismatched else (),
            None if self.mismatched_ref is None else self.mismatched_ref[places],
        )

    def to_bytes(self) -> bytes:
        """Return the numbers, for a file."""
        named = {"ref": self.ref, "mismatched_ref": self.mismatched_ref}
        content: bytes = save_tensors({k: v for k, v in named.items() if v is not None})
        return content

    @classmethod
    def from_bytes(cls, params: PreferenceParams, rows: Sequence[PreferenceRow], content: bytes) -> ReferenceTable:
        """Return the table that `to_bytes` wrote for the same rows."""
        tensors = load_tensors(content)
        others = mismatched(rows) if params.needs_divergence else []
        return cls(rows, tensors.get("ref"), others, tensors.get("mismatched_ref"))


def key_of(rows: Sequence[PreferenceRow], temperature: float) -> str:
    """Return a hash of the rows and the temperature; with the weights, they determine the reference's log-probs."""
    digest = hashlib.sha256(repr(temperature).encode())
    for row in rows:
        digest.update(repr((row.prompt_ids, row.chosen_ids, row.rejected_ids)).encode())
    return digest.hexdigest()[:16]
