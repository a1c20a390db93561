"""PPO's critic: whole in every process or divided among ranks; its values of a batch, and its gradient."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, NonFiniteError, boundary
from verizero.pipeline.models.forward import Targets, spread, states_before
from verizero.pipeline.models.load import ready
from verizero.pipeline.models.scalar_head import score_of, with_scalar_head
from verizero.pipeline.models.sequence_parallel import Pieces
from verizero.pipeline.rl.gae import summarize_values, value_loss
from verizero.pipeline.rl.logprobs import working
from verizero.pipeline.rl.parts import Critic
from verizero.pipeline.rl.reduce import AllReduce, single_rank_sum
from verizero.pipeline.train.backend import CriticBackend
from verizero.pipeline.train.collate import Micro
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import clipped_step, finite_norm, schedule, trained_by, with_masters
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.sharded import Sharded
from verizero.pipeline.types import TrainBatch

SHARDED_FILE = "critic.json"


@dataclass(frozen=True, slots=True)
class ShardedPolicyAccess:
    """Forward and backward of a policy whose weights are shards, for a critic that shares its backbone."""

    run: Callable[[Callable[[Any], Any]], Any]
    backward: Callable[[Tensor], None]
    scale: int
    """`backward` multiplies the loss by it; the head divides its gradients by it again."""
    dtype: torch.dtype | None = None
    """The number type of hidden states; None for that of the policy's weights."""


class TorchCritic:
    """A scalar head on a backbone, with an optimiser of its own. Implements `CriticBackend`.

    With a backbone of its own (`model`: an AutoModelForTokenClassification of one label) the optimiser moves all of it.
    Without one the head is on the policy's backbone: the optimiser moves the head, and the gradient of the backbone
    adds to the policy's. The head starts at zero, so that the first values are 0.
    """

    def __init__(
        self,
        policy: Any,
        model: Any | None,
        optimizer: OptimizerConfig,
        total_steps: int,
        ranks: Ranks = ALONE,
        policy_access: ShardedPolicyAccess | None = None,
    ) -> None:
        """Start with values of 0. `policy_access`: for a shared backbone whose weights are shards."""
        self.ranks = ranks
        self.policy = policy
        self.model = model
        dtype = policy.dtype if policy_access is None or policy_access.dtype is None else policy_access.dtype
        self.head = score_of(model) if model is not None else _fresh_head(policy, dtype)
        self.policy_access = policy_access
        if policy_access is not None and policy_access.scale > 1:
            for p in self.head.parameters():
                # Our own sum over ranks follows, not DeepSpeed's mean: the factor must go.
                p.register_hook(lambda g: g / policy_access.scale)
        self.config = optimizer
        self.total_steps = total_steps
        self.num_updates = 0
        self.optimizer = with_masters(model or self.head, optimizer)

    def values(self, input_ids: Tensor, where: Tensor, targets: Targets | None = None) -> Tensor:
        """Return V [B, T] of the states before the tokens at `where`; see `CriticBackend.values`."""
        pieces = self.ranks.pieces
        if self.policy_access is None:
            return values_of(self.model or self.policy, self.head, input_ids, where, pieces, targets)
        run = self.policy_access.run
        values: Tensor = run(lambda policy: values_of(policy, self.head, input_ids, where, pieces, targets))
        return values

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        if self.policy_access is not None:
            self.policy_access.backward(loss)
        else:
            with fixed_order():
                loss.backward()  # type: ignore[no-untyped-call]

    def require_finite(self) -> None:
        """Sum the gradient over ranks, and raise NonFiniteError if it is not finite."""
        # Not in `step`, which comes after the policy's: a bad gradient must be refused before.
        self.ranks.sum_gradients(self._parameters())
        self._norm()

    def step(self) -> dict[str, float]:
        """Take one clipped AdamW update; the gradient is gone."""
        norm = self._norm()  # `require_finite` has summed the gradient over ranks
        rate = schedule(self.config, self.num_updates, self.total_steps)
        clipped_step(self.optimizer, self.config, self._parameters(), norm, rate)
        self.discard()
        self.num_updates += 1
        return {"critic/grad_norm": float(norm), "critic/learning_rate": rate}

    def discard(self) -> None:
        """Delete the gradients of the weights that this optimiser moves."""
        for p in self._parameters():
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return all but the weights of the critic's own backbone, which are saved as a model."""
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
        cls,
        policy: Any,
        state: dict[str, Any],
        folder: Path,
        ranks: Ranks = ALONE,
        policy_access: ShardedPolicyAccess | None = None,
    ) -> TorchCritic:
        """Return the critic of that state, with its own backbone, if it has one, read from `folder`.

        Raises: CheckpointError if they do not fit the policy.
        """
        with boundary(CheckpointError, f"the critic of {folder.parent} does not fit the policy"):
            model = None if state["shared"] else load_backbone(folder, policy)
            optimizer = OptimizerConfig.model_validate(state["config"])
            critic = cls(policy, model, optimizer, state["total_steps"], ranks, policy_access)
            critic.head.load_state_dict(state["head"])
            critic.optimizer.load_state_dict(state["optimizer"])
            critic.num_updates = state["num_updates"]
        return critic

    def _parameters(self) -> list[Tensor]:
        return trained_by(self.optimizer)

    def _norm(self) -> Tensor:
        return finite_norm(self._parameters(), "critic's gradient norm", self.num_updates)


class Divided(Protocol):
    """A module that ranks divide, with its optimiser. `Sharded` (DeepSpeed) and `FsdpShards` have these methods."""

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model)."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        ...

    def require_finite(self, update: int) -> None:
        """Raise NonFiniteError if the gradient is not finite on some rank."""
        ...

    def step(self, config: OptimizerConfig, rate: float, update: int) -> float:
        """Take one clipped update, and return the gradient's norm."""
        ...

    def discard(self) -> None:
        """Delete the gradient."""
        ...


D = TypeVar("D", bound=Divided)


class DividedCritic(Generic[D]):
    """A token classifier of one label that ranks divide like the policy. Implements `CriticBackend`."""

    def __init__(self, sharded: D, ranks: Ranks, optimizer: OptimizerConfig, total_steps: int) -> None:
        self.sharded = sharded
        self.ranks = ranks
        self.config = optimizer
        self.total_steps = total_steps
        self.num_updates = 0

    def values(self, input_ids: Tensor, where: Tensor, targets: Targets | None = None) -> Tensor:
        """Return V [B, T] of the states before the tokens at `where`; see `CriticBackend.values`."""
        run, pieces = self.sharded.run, self.ranks.pieces
        values: Tensor = run(lambda model: values_of(model, score_of(model), input_ids, where, pieces, targets))
        return values

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        self.sharded.backward(loss)

    def require_finite(self) -> None:
        """Raise NonFiniteError if the gradient is not finite on some rank."""
        self.sharded.require_finite(self.num_updates)

    def step(self) -> dict[str, float]:
        """Take one clipped AdamW update; the gradient is gone."""
        rate = schedule(self.config, self.num_updates, self.total_steps)
        norm = self.sharded.step(self.config, rate, self.num_updates)
        self.num_updates += 1
        return {"critic/grad_norm": norm, "critic/learning_rate": rate}

    def discard(self) -> None:
        """Delete the gradient."""
        self.sharded.discard()

    def metadata(self) -> dict[str, Any]:
        """Return the critic's state in a checkpoint without its tensors."""
        config = self.config.model_dump()
        return {"config": config, "total_steps": self.total_steps, "num_updates": self.num_updates}


class ShardedCritic(DividedCritic[Sharded]):
    """A critic that DeepSpeed divides."""

    def __init__(
        self, model: Any, optimizer: OptimizerConfig, total_steps: int, config: TrainConfig, ranks: Ranks
    ) -> None:
        super().__init__(
            Sharded(model, "critic's gradient norm", optimizer, config, ranks), ranks, optimizer, total_steps
        )
        self.model = model
        self.sharded.watch_gradient()
        self.sharded.restart(optimizer)

    def write(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder `critic/`, master weights and moments next to the policy's."""
        first = self.ranks.is_first
        weights = {name: w.cpu().clone() for name, w in self.sharded.gathered() if first}  # all ranks iterate
        files = self.sharded.write(folder, "critic-optimizer")
        if first:
            self.model.save_pretrained(folder / "critic", state_dict=weights)
            (folder / SHARDED_FILE).write_text(json.dumps({**self.metadata(), "files": files}))

    @classmethod
    def restored(cls, folder: Path, policy: Any, config: TrainConfig, ranks: Ranks) -> ShardedCritic:
        """Return the critic that was written into `folder`. Raises: CheckpointError if it does not fit the policy."""
        with boundary(CheckpointError, f"the critic of {folder} does not fit the policy"):
            state = json.loads((folder / SHARDED_FILE).read_text())
            model = load_backbone(folder / "critic", policy)
            critic = cls(model, OptimizerConfig.model_validate(state["config"]), state["total_steps"], config, ranks)
            critic.sharded.read(folder, state["files"], state["num_updates"])
            critic.num_updates = state["num_updates"]
        return critic


def own_backbone(policy: Any) -> Any:
    """Return a token classifier of one label: its backbone is a copy of the policy's, its head is zero.

    Raises: ConfigError if transformers has no token classifier of this architecture.
    """
    return with_scalar_head(policy, "TokenClassification", no_critic_message(policy))


def no_critic_message(policy: Any) -> str:
    """Return the beginning of the error message for a policy that has no token classifier."""
    what = f"a critic of its own for model type {policy.config.model_type!r}"
    return f"{what} (set critic_shared: true for a head on the policy's backbone)"


def _fresh_head(policy: Any, dtype: torch.dtype) -> torch.nn.Linear:
    width = policy.config.get_text_config().hidden_size
    head: torch.nn.Linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
        torch.nn.Linear, width, 1, device=policy.device, dtype=dtype
    )
    for p in head.parameters():
        torch.nn.init.zeros_(p)
    return head


def load_backbone(folder: Path, policy: Any) -> Any:
    """Return the token classifier saved in `folder`, in the number type and on the device of the policy."""
    import transformers

    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=policy.dtype)
    return ready(model).to(policy.device).eval()


def values_of(
    model: Any,
    head: Any,
    input_ids: Tensor,
    where: Tensor,
    pieces: Pieces | None = None,
    targets: Targets | None = None,
) -> Tensor:
    """Return V [B, T] in float32 of the states before the tokens at `where`, 0 elsewhere, by `head` on the backbone.

    With `pieces` each rank computes a piece of every row, and all ranks get the whole. `targets`: indices of the
    tokens at `where`, if they are known on the host.
    """
    if pieces is not None:
        # V before token t is read from the hidden state of token t - 1: the mask is cut after the shift by one.
        mask_of_piece = pieces.part(where[:, 1:])
        states = pieces.states(model, input_ids[:, :-1])[mask_of_piece]
        values_of_piece = spread(working(head(states)[:, 0]), mask_of_piece)
        return torch.nn.functional.pad(pieces.whole(values_of_piece, where.shape[1] - 1), (1, 0))
    values = working(head(states_before(model, input_ids, where, targets))[:, 0])
    return spread(values, where, None if targets is None else targets.at)


@dataclass(frozen=True, slots=True)
class CriticValues:
    """The critic's values of a batch, before it learns from it."""

    values: Tensor
    """V [B, T] of the state before each response token."""
    final_values: Tensor | None
    """V [B] of the state after the last token; None if nothing reads it."""


@torch.no_grad()
def critic_values_of(
    critic: CriticBackend,
    batch: TrainBatch,
    micros: Sequence[Micro],
    with_final: bool,
    all_reduce: AllReduce = single_rank_sum,
) -> CriticValues:
    """Return the critic's values of a batch, of which `micros` are this rank's micro-batches.

    `all_reduce` adds up the values of all ranks, each of which has 0 for the others' rows.
    """
    values_B_T = torch.zeros(batch.response_mask.shape, dtype=torch.float64, device=batch.rewards.device)
    final_B = torch.zeros(len(batch.rewards), dtype=torch.float64, device=values_B_T.device)
    for rows, micro, targets in micros:
        width = micro.input_ids.shape[1]
        mask_b_t = micro.response_mask > 0
        final_b = None
        if with_final:
            values_b_t, final_b = _with_final(critic, micro, mask_b_t, targets)
        else:
            values_b_t = critic.values(micro.input_ids, mask_b_t, targets).double()
        # An idle micro-batch has an empty mask: its forward only keeps in step with the other ranks.
        values_B_T[rows, :width] = torch.where(mask_b_t, values_b_t, values_B_T[rows, :width])
        if final_b is not None:
            final_B[rows] = torch.where(mask_b_t.any(), final_b, final_B[rows])
    return CriticValues(all_reduce(values_B_T), all_reduce(final_B) if with_final else None)


def _with_final(critic: CriticBackend, micro: TrainBatch, mask: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return V [b, t] before the tokens of `mask`, and V [b] after the last token of each row, by one forward."""
    width = mask.shape[1]
    # The state after the last token is the one before a token that would follow it, whose id is not read.
    longer_ids = torch.cat([micro.input_ids, micro.input_ids[:, :1]], 1)
    lengths = micro.attention_mask.sum(1)
    end_mask = torch.zeros_like(longer_ids, dtype=torch.bool).scatter_(1, lengths[:, None], True)
    end_indices = torch.arange(len(lengths), device=lengths.device) * (width + 1) + lengths
    runs = None if targets.runs is None else targets.runs.in_longer_rows(width)
    # Rows have one column more now, so index i of a row of `width` columns becomes i + i // width.
    both = Targets(torch.cat([targets.at + targets.at // width, end_indices]), runs)
    values = critic.values(longer_ids, torch.nn.functional.pad(mask, (0, 1)) | end_mask, both).double()
    return values[:, :width], torch.where(end_mask, values, 0.0).sum(1)


def value_gradient(
    critic: CriticBackend,
    parts: Critic,
    micros: Sequence[Micro],
    old_values: CriticValues,
    returns: Tensor,
    all_reduce: AllReduce,
) -> dict[str, float]:
    """Accumulate the gradient of the value loss over these micro-batches, and return the critic's metrics.

    The mean is over all response tokens of the optimiser step, counted over micro-batches and ranks before any
    backward. Raises: NonFiniteError if the loss is not finite.
    """
    tokens_of_rank = torch.stack([micro.response_mask.sum().double() for _, micro, _ in micros]).sum().reshape(1)
    total_tokens = float(all_reduce(tokens_of_rank)[0])
    stats: Tensor | None = None
    loss = torch.zeros(1, dtype=torch.float64, device=old_values.values.device)
    for rows, micro, targets in micros:
        mask, width = micro.response_mask, micro.input_ids.shape[1]
        values = critic.values(micro.input_ids, mask > 0, targets)
        # Old values and returns are padded to the whole batch's width, the micro-batch to its own.
        old_b_t, returns_b_t = (x[rows, :width].to(values.dtype) for x in (old_values.values, returns))
        share, share_stats = value_loss(values, old_b_t, returns_b_t, mask, total_tokens, parts.clip)
        critic.backward(parts.loss_coef * share)
        stats = share_stats if stats is None else stats + share_stats
        loss += share.detach()  # shares add up to the mean
    assert stats is not None
    summed = all_reduce(torch.cat([stats, loss.to(stats.dtype)]))
    if not bool(torch.isfinite(summed[-1])):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the critic's loss is {float(summed[-1])}; update refused, lower critic_learning_rate")
    return {**summarize_values(summed[:-1]), "critic/loss": float(summed[-1])}
