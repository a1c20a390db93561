"""PPO's critic: a backbone of its own or a head on the policy's, what it says of a batch, and how it learns from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.sections import OptimizerConfig
from pipeline.errors import CheckpointError, NonFiniteError, boundary
from pipeline.models.forward import spread
from pipeline.models.load import ready
from pipeline.models.scalar_head import score_of, with_scalar_head
from pipeline.models.sequence_parallel import Pieces
from pipeline.rl.gae import summarize_values, value_loss
from pipeline.rl.logprobs import working
from pipeline.rl.parts import Critic
from pipeline.rl.reduce import AllReduce, identity
from pipeline.train.backend import CriticBackend
from pipeline.train.optimizer import adamw, clipped_step, finite_norm, schedule
from pipeline.train.ranks import ALONE, Ranks
from pipeline.types import TrainBatch


@dataclass(frozen=True, slots=True)
class Within:
    """How one computes with a policy whose weights are shards, and what becomes of a loss."""

    run: Callable[[Callable[[Any], Any]], Any]
    backward: Callable[[Tensor], None]
    scale: int
    """By how much `backward` multiplies: what is not the policy's divides by it again."""


class TorchCritic:
    """A scalar head on a backbone, with an optimiser of its own. Implements `CriticBackend`.

    With a backbone of its own (`model`: an AutoModelForTokenClassification of one label) the optimiser moves all of it.
    A shared one is a head on the policy's backbone: the optimiser moves the head, and what its loss asks of the
    backbone adds to the policy's gradient. The head begins at zero, so that the first values are 0.
    """

    def __init__(
        self,
        policy: Any,
        model: Any | None,
        optimizer: OptimizerConfig,
        total_steps: int,
        ranks: Ranks = ALONE,
        within: Within | None = None,
    ) -> None:
        """`within`: how to compute with a policy that is not whole in this process."""
        self.ranks = ranks
        self.policy = policy
        self.model = model
        self.head = score_of(model) if model is not None else _fresh_head(policy)
        self.within = within
        if within is not None and within.scale > 1:
            for p in self.head.parameters():
                p.register_hook(lambda g: g / within.scale)
        self.config = optimizer
        self.total_steps = total_steps
        self.num_updates = 0
        self.optimizer = adamw((model or self.head).parameters(), optimizer)

    @classmethod
    def new(
        cls, policy: Any, shared: bool, optimizer: OptimizerConfig, total_steps: int, ranks: Ranks = ALONE
    ) -> TorchCritic:
        """A critic that has learned nothing; its own backbone is a copy of the policy's."""
        return cls(policy, None if shared else own_backbone(policy), optimizer, total_steps, ranks)

    def values(self, input_ids: Tensor, where: Tensor) -> Tensor:
        """V [B, T] of the states before the tokens at `where` (bool, False at column 0), 0 elsewhere."""
        if self.within is None:
            return values_of(self.model or self.policy, self.head, input_ids, where, self.ranks.pieces)
        found: Tensor = self.within.run(
            lambda policy: values_of(policy, self.head, input_ids, where, self.ranks.pieces)
        )
        return found

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        if self.within is not None:
            self.within.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def require_finite(self) -> None:
        """Sum the gradient over ranks. Raises: NonFiniteError if it is not finite."""
        self.ranks.sum_gradients(self._parameters())
        self._norm()

    def step(self) -> dict[str, float]:
        """One clipped AdamW update; the gradient is gone."""
        norm = self._norm()
        rate = schedule(self.config, self.num_updates, self.total_steps)
        clipped_step(self.optimizer, self.config, self._parameters(), norm, rate)
        self.discard()
        self.num_updates += 1
        return {"critic/grad_norm": float(norm), "critic/learning_rate": rate}

    def discard(self) -> None:
        """Forget the gradient of what this optimiser moves."""
        for p in self._parameters():
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """All but the weights of a backbone of its own, which are saved as a model."""
        return {
            "shared": self.model is None,
            "config": self.config.model_dump(),
            "total_steps": self.total_steps,
            "num_updates": self.num_updates,
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    @classmethod
    def restored(
        cls, policy: Any, state: dict[str, Any], folder: Path, ranks: Ranks = ALONE, within: Within | None = None
    ) -> TorchCritic:
        """The critic whose state that is; a backbone of its own is read from `folder`.

        Raises: CheckpointError if they do not fit.
        """
        with boundary(CheckpointError, f"the critic of {folder.parent} does not fit the policy"):
            model = None if state["shared"] else load_backbone(folder, policy)
            optimizer = OptimizerConfig.model_validate(state["config"])
            critic = cls(policy, model, optimizer, state["total_steps"], ranks, within)
            critic.head.load_state_dict(state["head"])
            critic.optimizer.load_state_dict(state["optimizer"])
            critic.num_updates = state["num_updates"]
        return critic

    def _parameters(self) -> list[Tensor]:
        return list((self.model or self.head).parameters())

    def _norm(self) -> Tensor:
        return finite_norm(self._parameters(), "critic's gradient norm", self.num_updates)


def own_backbone(policy: Any) -> Any:
    """A token classifier of one label whose backbone is a copy of the policy's and whose head is zero.

    Raises: ConfigError for an architecture of which transformers has no such model.
    """
    what = f"a critic of its own for model type {policy.config.model_type!r}"
    remedy = "set critic_shared: true for a head on the policy's backbone"
    return with_scalar_head(policy, "TokenClassification", f"{what} ({remedy})")


def _fresh_head(policy: Any) -> torch.nn.Linear:
    width = policy.config.get_text_config().hidden_size
    head: torch.nn.Linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
        torch.nn.Linear, width, 1, device=policy.device, dtype=policy.dtype
    )
    for p in head.parameters():
        torch.nn.init.zeros_(p)
    return head


def load_backbone(folder: Path, policy: Any) -> Any:
    """The token classifier saved in `folder`, in the type and on the device of the policy."""
    import transformers

    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=policy.dtype)
    return ready(model).to(policy.device).eval()


def values_of(model: Any, head: Any, input_ids: Tensor, where: Tensor, pieces: Pieces | None = None) -> Tensor:
    """V [B, T] in float32 of the states before the tokens at `where`, 0 elsewhere: `head` on the model's backbone.

    With `pieces` each rank computes a piece of every row, and all get the same.
    """
    if pieces is not None:
        at = pieces.part(where[:, 1:])
        own = spread(working(head(pieces.states(model, input_ids[:, :-1])[at])[:, 0]), at)
        return torch.nn.functional.pad(pieces.whole(own, where.shape[1] - 1), (1, 0))
    hidden = model.base_model(input_ids=input_ids[:, :-1], use_cache=False).last_hidden_state
    return spread(working(head(hidden[where[:, 1:]])[:, 0]), where)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the critic said at batch start: V [B, T] before each response token, and [B] after the last one."""

    values: Tensor
    final: Tensor | None


@torch.no_grad()
def predict(
    critic: CriticBackend,
    batch: TrainBatch,
    micros: Sequence[tuple[Tensor, TrainBatch]],
    with_final: bool,
    all_reduce: AllReduce = identity,
) -> Predicted:
    """The critic's values of a batch cut into micro-batches (rows, their batch); the final ones where asked for.

    `micros` are this rank's; `all_reduce` puts together what all ranks found.
    """
    values = torch.zeros(batch.response_mask.shape, dtype=torch.float64, device=batch.rewards.device)
    final = torch.zeros(len(batch.rewards), dtype=torch.float64, device=values.device)
    for at, micro in micros:
        width = micro.input_ids.shape[1]
        where = micro.response_mask > 0
        found = critic.values(micro.input_ids, where).double()
        after = None
        if with_final:  # the state after the last token is the one before a token that would follow it
            longer = torch.cat([micro.input_ids, micro.input_ids[:, :1]], 1)
            last = torch.zeros(longer.shape, dtype=torch.bool, device=longer.device)
            last[torch.arange(len(at), device=at.device), micro.attention_mask.sum(1)] = True
            after = critic.values(longer, last).double().sum(1)
        if not bool(where.any()):  # only keeps step with the other ranks
            continue
        values[at, :width] = found
        if after is not None:
            final[at] = after
    return Predicted(all_reduce(values), all_reduce(final) if with_final else None)


def learn(
    critic: CriticBackend,
    how: Critic,
    micros: Sequence[tuple[Tensor, TrainBatch]],
    predicted: Predicted,
    returns: Tensor,
    all_reduce: AllReduce,
) -> dict[str, float]:
    """The critic's metrics; its gradient of the value loss over these micro-batches is accumulated, not yet taken.

    The mean is over all response tokens of the optimiser step, counted over micro-batches and ranks before any
    backward. Raises: NonFiniteError if the loss is not finite.
    """
    local = torch.stack([micro.response_mask.sum().double() for _, micro in micros]).sum().reshape(1)
    total = float(all_reduce(local)[0])
    stats: Tensor | None = None
    loss = 0.0
    for at, micro in micros:
        width = micro.input_ids.shape[1]
        mask = micro.response_mask
        values = critic.values(micro.input_ids, mask > 0)
        old, wanted = predicted.values[at, :width].to(values.dtype), returns[at, :width].to(values.dtype)
        share, seen = value_loss(values, old, wanted, mask, total, how.clip)
        critic.backward(how.loss_coef * share)
        stats = seen if stats is None else stats + seen
        loss += float(share.detach())
    assert stats is not None
    summed = all_reduce(torch.cat([stats, torch.tensor([loss], dtype=stats.dtype, device=stats.device)]))
    if not bool(torch.isfinite(summed[-1])):  # known to all ranks alike, so that none waits for one that gave up
        raise NonFiniteError(f"the critic's loss is {float(summed[-1])}; update refused, lower critic_learning_rate")
    return {**summarize_values(summed[:-1]), "critic/loss": float(summed[-1])}
