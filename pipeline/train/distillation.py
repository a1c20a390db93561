"""The update of distillation on responses, alone or as a term of RL's; teachers: models, the reference, servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from verizero.pipeline.config.teaching import TeacherConfig
from verizero.pipeline.errors import DataError, EngineError, GradingError, NonFiniteError
from verizero.pipeline.models.comparison import Readout, compare_at, readout
from verizero.pipeline.models.forward import Targets, can_pack, spread
from verizero.pipeline.models.strictness import given_away
from verizero.pipeline.rl.distillation import Compared, ServedLogprobs, stale_weights
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.rl.reduce import aggregate
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.texts import Row, laid_out, pieces_of_rank, row_after
from verizero.pipeline.train.trees import best_paths, packed_paths, tree_metrics
from verizero.pipeline.types import Path, StepMetrics
from verizero.verifiers._chat_request import first_choice

Ids = tuple[int, ...]
SUMS = ("divergence", "kl", "entropy", "outside", "tokens", "stale_tokens", "stale_weight", "stale_clamped")


@dataclass(frozen=True, slots=True)
class DistillRow:
    """A response with its two prompts: the policy's, and the one that the teacher gets."""

    teacher: str
    """Key of the teacher."""
    prompt_ids: Ids
    teacher_prompt_ids: Ids
    response_ids: Ids
    rollout_logprobs: tuple[float, ...] | None = None
    """Log-probs of a response that an older policy sampled, where it is weighted; None: its tokens have weight 1."""

    @property
    def longest(self) -> int:
        """Tokens of the response with the longer prompt."""
        return max(len(self.prompt_ids), len(self.teacher_prompt_ids)) + len(self.response_ids)

    def text(self, of_teacher: bool) -> Row:
        """Return one of the prompts with the response, on which it trains."""
        prompt = self.teacher_prompt_ids if of_teacher else self.prompt_ids
        return row_after((*prompt, *self.response_ids), len(prompt))


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """The numbers of an update."""

    pad_id: int
    micro_batch_tokens: int
    chunk_tokens: int | None = None
    """At most so many rows of logits are in memory at a time; None: as many as take 128 MiB."""


@dataclass(frozen=True, slots=True)
class Distillation:
    """The term of distillation in an update of RL."""

    coef: float
    teachers: Mapping[str, Teacher]
    rows: Sequence[DistillRow | None]
    """One for each response that has a reward, in the order of their groups; None: it has no term."""
    objective: Objective
    settings: DistillSettings
    counts: StepMetrics
    """Numbers of responses without a term, and of those whose teacher read what, in the whole batch."""

    def gradient(self, backend: Backend, rows: Sequence[int]) -> StepMetrics:
        """Accumulate the term's gradient of some responses; return its metrics. Raises: NonFiniteError."""
        chosen = [row for i in rows if (row := self.rows[i]) is not None]
        counts = {**self.counts, "distill/rows": float(len(chosen))}
        if not chosen:
            return counts
        metrics = distill_gradient(backend, self.teachers, chosen, self.objective, self.settings, self.coef)
        own = {name: value for name, value in metrics.items() if name.startswith("distill/")}
        return {
            **counts,
            **own,
            "distill/tokens": metrics["tokens/trained"],
            "loss/distill": self.coef * metrics["loss"],
        }


def distill_update(
    backend: Backend,
    teachers: Mapping[str, Teacher],
    rows: Sequence[DistillRow],
    objective: Objective,
    settings: DistillSettings,
) -> StepMetrics:
    """Take one optimiser step on the mean divergence of all response tokens, and return its metrics.

    Raises: NonFiniteError if loss or gradient is not finite; that update was refused, the weights are as before.
    """
    metrics = distill_gradient(backend, teachers, rows, objective, settings)
    return {**metrics, "rows": float(len(rows)), **backend.step()}


def distill_gradient(
    backend: Backend,
    teachers: Mapping[str, Teacher],
    rows: Sequence[DistillRow],
    objective: Objective,
    settings: DistillSettings,
    coef: float = 1.0,
) -> StepMetrics:
    """Accumulate the gradient of `coef` times the mean divergence of all response tokens, and return the metrics.

    Every rank gets all rows and takes its share of them. The denominator is the number of response tokens of the whole
    step, counted before any backward: micro-batches and ranks change nothing. A micro-batch has one teacher.

    Raises: NonFiniteError if the mean is not finite; all gradients were dropped.
    """
    # Every rank has all rows, so the denominator needs no sum over ranks.
    total = float(sum(len(r.response_ids) for r in rows))
    names = sorted({r.teacher for r in rows})
    of_step = _Rows.of(backend, rows)
    stats = torch.zeros(len(names), len(SUMS), dtype=torch.float64)
    for number, name in enumerate(names):
        chosen = [i for i, r in enumerate(rows) if r.teacher == name]
        for batch, answer in _with_answers(backend, teachers[name], of_step, chosen, settings):
            compared = _compared(backend, batch, answer, objective, settings.chunk_tokens)
            divergences, logprobs = (
                spread(x, batch.mask, batch.targets.at) for x in (compared.divergence, compared.logprobs)
            )
            divergences, sums = _weighted(divergences, logprobs, batch, objective)
            loss = aggregate("token_mean", divergences, batch.mask, tokens=total, sequences=0.0, norm_length=None)
            backend.backward(coef * loss)
            stats[number] += torch.cat([_sums(divergences, compared), sums])
    stats = backend.ranks.all_reduce(stats)
    loss_of_step = float(stats[:, 0].sum()) / total
    if not math.isfinite(loss_of_step):  # a sum over ranks, so that all of them raise and none waits for another
        backend.discard()
        raise NonFiniteError(
            f"the divergence to the teacher is {loss_of_step}; the update was refused, lower the learning rate"
        )
    return {**_summary(stats, names, objective), **tree_metrics(of_step.joint, of_step.is_refused)}


def _weighted(
    divergences: Tensor, logprobs: Tensor, batch: ResponseBatch, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return the divergences [B, T] times their weights, and the last three sums of SUMS."""
    sums = torch.zeros(3, dtype=torch.float64)
    if objective.stale_weights and batch.stale is not None and batch.rollout_logprobs is not None:
        weights = stale_weights(logprobs, batch.rollout_logprobs.to(logprobs), batch.stale, batch.mask, objective)
        divergences = divergences * weights.values
        stale_tokens = batch.mask & batch.stale.unsqueeze(1)
        counted = (stale_tokens, weights.values * stale_tokens, weights.clamped)
        sums = torch.stack([x.detach().double().sum().cpu() for x in counted])
    return divergences, sums


def _compared(
    backend: Backend,
    batch: ResponseBatch,
    answer: Readout | ServedLogprobs,
    objective: Objective,
    chunk_tokens: int | None,
) -> Compared:
    """Return the policy's divergences from a teacher's answer for a micro-batch."""

    def compute(model: Any) -> tuple[Tensor, ...]:
        # A plain tuple, which the hooks of sharded modules can take apart and put together again.
        return tuple(compare_at(model, batch.input_ids, batch.mask, answer, objective, chunk_tokens, batch.targets))

    return Compared(*backend.compute(compute))


class _Rows(NamedTuple):
    """The rows of a step, and how both forwards compute them."""

    rows: Sequence[DistillRow]
    texts: tuple[list[Row], list[Row]]
    """With the prompts of the policy, and with those of the teachers."""
    joint: Sequence[Path] | None
    """The path of each row in the tree of what both its prompts share, by which micro-batches are cut. The tree of
    either forward shares at least that, so a micro-batch that fits in it fits in both. None: rows are padded."""
    paths: tuple[Sequence[Path], Sequence[Path]] | tuple[None, None]
    """The path of each row in the tree of either forward."""
    is_refused: bool

    @classmethod
    def of(cls, backend: Backend, rows: Sequence[DistillRow]) -> _Rows:
        """Lay the rows out. Every rank must call it."""
        texts = [row.text(False) for row in rows], [row.text(True) for row in rows]
        numbers: dict[tuple[str, int, int], int] = {}

        def joint(row: DistillRow, policy: Row, teacher: Row) -> list[int]:
            pairs = zip_longest(policy.ids, teacher.ids, fillvalue=-1)
            return [numbers.setdefault((row.teacher, *pair), len(numbers)) for pair in pairs]

        shared, is_refused = packed_paths(backend, map(joint, rows, *texts))
        if shared is None:
            return cls(rows, texts, None, (None, None), is_refused)
        policy, teacher = (best_paths((text.ids for text in own), backend.model.device) for own in texts)
        return cls(rows, texts, shared, (policy, teacher), is_refused)


def _with_answers(
    backend: Backend, teacher: Teacher, of_step: _Rows, chosen: Sequence[int], settings: DistillSettings
) -> Iterator[tuple[ResponseBatch, Readout | ServedLogprobs]]:
    """Yield this rank's micro-batches of the chosen rows, each with the teacher's answer for it.

    All ranks have as many; the last may be idle, a row of which nothing trains.
    """
    rows, most, device = of_step.rows, settings.micro_batch_tokens, backend.model.device
    joint = of_step.joint and [of_step.joint[i] for i in chosen]
    pieces = pieces_of_rank(backend, [rows[i].longest for i in chosen], joint, most)
    pieces = [[chosen[k] for k in piece] for piece in pieces]
    of_policy, of_teacher = (
        laid_out(texts, paths, pieces, settings.pad_id, most, device)
        for texts, paths in zip(of_step.texts, of_step.paths, strict=True)
    )
    batches = [
        ResponseBatch(*layout, *_of_stale_rows([rows[i] for i in piece], layout[0]))
        for piece, layout in zip(pieces, of_policy, strict=True)
    ]
    yield from zip(batches, teacher.read([ResponseBatch(*layout) for layout in of_teacher]), strict=True)


def _of_stale_rows(rows: Sequence[DistillRow], ids: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return `rollout_logprobs` and `stale` of the micro-batch with those rows and `ids` [B, T]."""
    if all(row.rollout_logprobs is None for row in rows):
        return None, None
    logprobs = torch.zeros(ids.shape, dtype=torch.float64)
    for out_T, row in zip(logprobs, rows, strict=True):
        if row.rollout_logprobs is not None:
            values = torch.tensor(row.rollout_logprobs, dtype=torch.float64)
            out_T[len(row.prompt_ids) :][: len(values)] = values
    stale = torch.tensor([row.rollout_logprobs is not None for row in rows])
    return logprobs.to(ids.device), stale.to(ids.device)


def _sums(divergences: Tensor, compared: Compared) -> Tensor:
    """Return the sums over the tokens of one micro-batch, in the order of SUMS, without its last three."""
    columns = (divergences, compared.reverse_kl, compared.entropy, compared.outside, torch.ones_like(compared.entropy))
    return torch.stack([c.detach().double().sum().cpu() for c in columns])


def _summary(stats: Tensor, names: Sequence[str], objective: Objective) -> StepMetrics:
    """Return the metrics of all tokens; with several teachers also the KL to each."""
    sums = dict(zip(SUMS, stats.sum(0).tolist(), strict=True))
    tokens = max(sums["tokens"], 1.0)
    out = {
        "loss": sums["divergence"] / tokens,
        "distill/kl": sums["kl"] / tokens,
        "entropy": sums["entropy"] / tokens,
        "tokens/trained": sums["tokens"],
    }
    if objective.over == "top_k":
        out["distill/outside"] = sums["outside"] / tokens
    if objective.stale_weights:
        out["distill/stale"] = sums["stale_tokens"] / tokens
        out["distill/stale_clamped"] = sums["stale_clamped"] / tokens
        if sums["stale_tokens"]:
            out["distill/stale_weight"] = sums["stale_weight"] / sums["stale_tokens"]
    if len(names) > 1:
        by_teacher = {
            name: dict(zip(SUMS, sums, strict=True)) for name, sums in zip(names, stats.tolist(), strict=True)
        }
        out |= {f"distill/kl/{name}": sums["kl"] / max(sums["tokens"], 1.0) for name, sums in by_teacher.items()}
    return out


@dataclass(frozen=True, slots=True)
class ResponseBatch:
    """One micro-batch: prompts, each followed by the policy's response."""

    input_ids: Tensor
    """int64 [B, T], right-padded."""
    mask: Tensor
    """bool [B, T]: the response tokens; none in an idle micro-batch."""
    targets: Targets
    """Their places, and how the rows are packed."""
    rollout_logprobs: Tensor | None = None
    """float64 [B, T], of the tokens of stale rows; None where no weights need them, and for teachers."""
    stale: Tensor | None = None
    """bool [B]: an older policy sampled the response."""


class Teacher(Protocol):
    """A distribution over the next token at each token of a response."""

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield the teacher's distributions at the N response tokens of each micro-batch, in order, row by row."""
        ...


class ModelTeacher(Teacher):
    """A frozen model, whole in every rank."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield hidden states and the output layer. Rows are padded if this model cannot be packed."""
        for batch in batches:
            targets = batch.targets
            if targets.runs is not None and not can_pack(self.model):
                targets = replace(targets, runs=None)
            with torch.no_grad():
                answer = readout(self.model, batch.input_ids, batch.mask, targets)
            yield answer


class ReferenceTeacher(Teacher):
    """The backend's reference: an earlier state of the policy, with other prompts than the policy."""

    def __init__(self, backend: Backend, whole: bool) -> None:
        """`whole`: yield logits, because the reference's output layer may not stay in memory (LoRA, offload, FSDP)."""
        self._backend, self._whole = backend, whole

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield hidden states and the output layer, or logits."""
        for batch in batches:

            def compute(model: Any, batch: ResponseBatch = batch) -> Readout:
                return readout(model, batch.input_ids, batch.mask, batch.targets, whole=self._whole)

            with torch.no_grad():
                answer = self._backend.compute(compute, "reference")
            yield answer


class ServedTeacher(Teacher):
    """A server of log-probs: of the sampled tokens, or of the k most likely tokens at each of them.

    It has vLLM's `prompt_logprobs` at the completions of an OpenAI-compatible interface.
    """

    def __init__(self, server: TeacherConfig, top_k: int, vocab: int, backoff_s: float = 1.0) -> None:
        """`top_k` 0: the sampled tokens alone. `vocab`: the policy's number of logits.

        `backoff_s`: seconds before the first request that is repeated.
        """
        self._server, self._top_k, self._vocab, self._backoff_s = server, top_k, vocab, backoff_s

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield the server's log-probs, after requests for all rows, several at a time.

        Raises: EngineError if the server does not answer; DataError for tokens that the policy does not have.
        """
        rows = [row for batch in batches for row in _rows_of(batch)]
        with given_away(), ThreadPoolExecutor(self._server.parallel, thread_name_prefix="teacher") as pool:
            try:
                answers = iter(list(pool.map(self._ask, rows)))
            except GradingError as exc:
                pool.shutdown(cancel_futures=True)
                raise EngineError(
                    f"{exc}; check that it runs, and that it gives prompt_logprobs={self._top_k} (vllm serve "
                    "--max-logprobs), then start the same command again"
                ) from exc
        width = self._top_k or 1
        for batch in batches:
            pairs = [pair for _ in _rows_of(batch) for pair in next(answers)]
            ids = torch.tensor([i for i, _ in pairs], dtype=torch.int64, device=batch.input_ids.device)
            logprobs = torch.tensor([v for _, v in pairs], dtype=torch.float64, device=batch.input_ids.device)
            yield ServedLogprobs(ids.reshape(-1, width), logprobs.reshape(-1, width))

    def _ask(self, row: tuple[list[int], int]) -> list[tuple[list[int], list[float]]]:
        """Return ids and log-probs at each response token of one row."""
        ids, start = row
        server = self._server
        body = {"model": server.model, "prompt": ids, "prompt_logprobs": self._top_k, "max_tokens": 1, "temperature": 0}

        def read(choice: dict[str, Any]) -> list[dict[str, Any]]:
            entries: list[dict[str, Any]] = choice["prompt_logprobs"]
            if len(entries) != len(ids):
                raise ValueError(f"{len(entries)} places for a prompt of {len(ids)} tokens")
            return entries[start:]

        address, what = f"{str(server.url).rstrip('/')}/completions", f"teacher at {server.url}"
        entries_of_tokens = first_choice(address, body, read, server, what, self._backoff_s)
        return [self._read_entry(entry, token) for entry, token in zip(entries_of_tokens, ids[start:], strict=True)]

    def _read_entry(self, entry: dict[str, Any], token: int) -> tuple[list[int], list[float]]:
        """Return the sampled token, or the k most likely ones, with log-probs, from the server's entry for a token."""
        logprobs = {int(name): float(value["logprob"]) for name, value in entry.items()}
        if unknown := [i for i in logprobs if i >= self._vocab]:
            raise DataError(
                f"the teacher at {self._server.url} has a token {unknown[0]}, and the policy {self._vocab} tokens; "
                "serve a model of the policy's own vocabulary"
            )
        # The server adds the sampled token to its k most likely ones, if it is none of them.
        ids = [token] if self._top_k == 0 else sorted(logprobs, key=lambda i: (-logprobs[i], i))[: self._top_k]
        if len(ids) < self._top_k or token not in logprobs:
            raise EngineError(
                f"the teacher at {self._server.url} names {len(logprobs)} tokens in the place of token {token}, and "
                f"{self._top_k or 'that one'} was asked for; serve it with vLLM's prompt_logprobs"
            )
        return ids, [logprobs[i] for i in ids]


def _rows_of(batch: ResponseBatch) -> list[tuple[list[int], int]]:
    """Return the tokens of each row that has a response, and the index at which the response starts."""
    rows = []
    for ids, is_response in zip(batch.input_ids.tolist(), batch.mask.tolist(), strict=True):
        if any(is_response):
            start = is_response.index(True)
            rows.append((ids[: start + sum(is_response)], start))
    return rows
