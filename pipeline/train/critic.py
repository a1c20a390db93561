"""PPO's critic: its values of a batch, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.models.complete import loaded
from verizero.pipeline.models.forward import Targets, spread, states_before
from verizero.pipeline.models.load import ready
from verizero.pipeline.models.scalar_head import score_of
from verizero.pipeline.rl.gae import summarize_values, value_loss
from verizero.pipeline.rl.logprobs import working
from verizero.pipeline.rl.parts import Critic as CriticParts
from verizero.pipeline.train.collate import Micro
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.torch_trained import TorchTrained
from verizero.pipeline.train.trained import Trained
from verizero.pipeline.types import TrainBatch

CRITIC = "critic's gradient norm"


class Critic:
    """A scalar head on a backbone, with an optimiser of its own. The head starts at zero, so the first values are 0.

    With a backbone of its own (a token classifier of one label) the optimiser moves all of it. Without one the head is
    on the policy's backbone: the optimiser moves the head, and the gradient of the backbone adds to the policy's.
    """

    def __init__(self, trained: Trained, policy: Trained | None = None) -> None:
        """`policy`: on whose backbone `trained`, which is the head alone, computes; None: it has its own."""
        self.trained = trained
        self._backbone = policy or trained
        self.is_shared = policy is not None

    @classmethod
    def on(cls, policy: Trained) -> Critic:
        """Return a critic that is a head of zeros on the policy's backbone."""
        width, device = policy.model.config.get_text_config().hidden_size, policy.device
        head: torch.nn.Linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
            torch.nn.Linear, width, 1, device=device, dtype=policy.dtype
        )
        for p in head.parameters():
            torch.nn.init.zeros_(p)
            if policy.scale > 1:
                # Our own sum over ranks follows, not DeepSpeed's mean: the factor must go.
                p.register_hook(lambda g: g / policy.scale)  # type: ignore[no-untyped-call]
        return cls(TorchTrained(head, CRITIC, policy.ranks, device), policy)

    def values(self, input_ids: Tensor, where: Tensor, targets: Targets | None = None) -> Tensor:
        """Return V [B, T] of the states before the tokens at `where` (bool [B, T]), 0 elsewhere, with gradient.

        `where` is False at column 0. `targets`: indices of the tokens at `where`, if they are known on the host.
        """
        own = self.trained.model

        def compute(model: Any) -> Tensor:
            return values_of(model, own if self.is_shared else score_of(model), input_ids, where, targets)

        values: Tensor = self._backbone.run(compute)
        return values

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one micro-batch's share of the value loss."""
        self._backbone.backward(loss)

    def require_finite(self) -> None:
        """Raise NonFiniteError if the gradient is not finite on some rank; the gradient stays.

        Not in `step`, which comes after the policy's: a bad gradient must be refused before.
        """
        self.trained.require_finite()

    def step(self) -> dict[str, float]:
        """Clip, update, delete the gradient; return gradient norm and learning rate."""
        norm, rate = self.trained.step()
        return {"critic/grad_norm": norm, "critic/learning_rate": rate}

    def discard(self) -> None:
        """Delete the gradient of the weights that this optimiser moves."""
        self.trained.discard()


def no_critic_message(policy: Any) -> str:
    """Return the beginning of the error message for a policy that has no token classifier."""
    what = f"a critic of its own for model type {policy.config.model_type!r}"
    return f"{what} (set critic_shared: true for a head on the policy's backbone)"


def load_backbone(folder: Path, policy: Any) -> Any:
    """Return the token classifier saved in `folder`, in the number type and on the device of the policy."""
    import transformers

    model = loaded(transformers.AutoModelForTokenClassification, folder, f"{folder}", dtype=policy.dtype)
    return ready(model).to(policy.device).eval()


def values_of(model: Any, head: Any, input_ids: Tensor, where: Tensor, targets: Targets | None = None) -> Tensor:
    """Return V [B, T] in float32 of the states before the tokens at `where`, 0 elsewhere, by `head` on the backbone.

    `targets`: indices of the tokens at `where`, if they are known on the host.
    """
    values = working(head(states_before(model, input_ids, where, targets))[:, 0])
    return spread(values, where, None if targets is None else targets.at)


@torch.no_grad()
def critic_values_of(critic: Critic, batch: TrainBatch, micros: Sequence[Micro], ranks: Ranks = ALONE) -> Tensor:
    """Return V [B, T] of the state before each response token, before the critic learns from the batch.

    `micros` are this rank's micro-batches. The values of all ranks are added up: each has 0 for the others' rows.
    """
    values_B_T = torch.zeros(batch.response_mask.shape, dtype=torch.float64, device=batch.rewards.device)
    for rows, micro, targets in micros:
        width = micro.input_ids.shape[1]
        mask_b_t = micro.response_mask > 0
        values_b_t = critic.values(micro.input_ids, mask_b_t, targets).double()
        # An idle micro-batch has an empty mask: its forward only keeps in step with the other ranks.
        values_B_T[rows, :width] = torch.where(mask_b_t, values_b_t, values_B_T[rows, :width])
    return ranks.all_reduce(values_B_T)


def value_gradient(
    critic: Critic, parts: CriticParts, micros: Sequence[Micro], old_values: Tensor, returns: Tensor, ranks: Ranks
) -> dict[str, float]:
    """Accumulate the gradient of the value loss over these micro-batches, and return the critic's metrics.

    The mean is over all response tokens of the optimiser step, counted over micro-batches and ranks before any
    backward. Raises: NonFiniteError if the loss is not finite.
    """
    tokens_of_rank = torch.stack([micro.response_mask.sum().double() for _, micro, _ in micros]).sum().reshape(1)
    total_tokens = float(ranks.all_reduce(tokens_of_rank)[0])
    stats: Tensor | None = None
    loss = torch.zeros(1, dtype=torch.float64, device=old_values.device)
    for rows, micro, targets in micros:
        mask, width = micro.response_mask, micro.input_ids.shape[1]
        values = critic.values(micro.input_ids, mask > 0, targets)
        # Old values and returns are padded to the whole batch's width, the micro-batch to its own.
        old_b_t, returns_b_t = (x[rows, :width].to(values.dtype) for x in (old_values, returns))
        share, share_stats = value_loss(values, old_b_t, returns_b_t, mask, total_tokens, parts.clip)
        critic.backward(parts.loss_coef * share)
        stats = share_stats if stats is None else stats + share_stats
        loss += share.detach()  # shares add up to the mean
    assert stats is not None
    summed = ranks.all_reduce(torch.cat([stats, loss.to(stats.dtype)]))
    if not bool(torch.isfinite(summed[-1])):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the critic's loss is {float(summed[-1])}; update refused, lower critic_learning_rate")
    return {**summarize_values(summed[:-1]), "critic/loss": float(summed[-1])}
