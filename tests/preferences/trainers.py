"""TRL's trainers without a model: their own loss functions on given log-probs; and ours on the same."""

from collections import defaultdict
from types import SimpleNamespace

import torch

from tests.preferences.sides import LONGEST
from tests.trl_classes import trl_class
from verizero.pipeline.preferences.base import load_preference


def gradient_of(batch, function):
    lp = batch.lp.clone().requires_grad_()
    value = function(lp)
    value.backward()
    return float(value.detach()), lp.grad


def our_loss(name, batch, z=0.0, **params):
    checked, loss = load_preference(name, params)

    return gradient_of(batch, lambda lp: loss(checked, batch.sides(lp, z)).values.mean())


def trainer_of(kind, **attributes):
    """A trainer that was never set up: only what its loss reads is there."""
    trainer = object.__new__(trl_class(kind))
    trainer.accelerator = SimpleNamespace(
        device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x, unwrap_model=lambda x: x
    )
    trainer.args = SimpleNamespace(gradient_checkpointing_kwargs=None)
    trainer._metrics = {"train": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    trainer.aux_loss_enabled = False
    for name, value in attributes.items():
        setattr(trainer, name, value)
    return trainer


class Scripted:
    """A model whose log-probs are given: `rows` [B, T], masked."""

    training, is_gradient_checkpointing = True, False

    def __init__(self, rows):
        self.rows = rows
        self._modules = {}  # none is compiled, as accelerate asks

    def __call__(self, **_):
        still = torch.zeros_like(self.rows.detach())
        told = {"entropy": still, "mean_logits": still, "is_top1": still.bool(), "log_sum_sq_probs": None}
        return SimpleNamespace(log_probs=self.rows, **told)


def with_prompt(mask):
    return torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask.long()], 1)


def their_dpo(batch, lp, **given):
    settings = {"ld_alpha": None, "f_divergence_type": "reverse_kl", "use_weighting": False}
    settings |= {"loss_weights": [1.0], "label_smoothing": 0.0, **given}
    mask = with_prompt(batch.mask)
    n = batch.num_chosen
    trainer = trainer_of("DPOTrainer", **settings)
    trainer.args.discopop_tau = 0.05
    trainer.precompute_ref_logps = True
    trainer.model = Scripted(lp * batch.mask)
    refs = (batch.ref * batch.mask).sum(1).to(lp.dtype)
    inputs = {
        "input_ids": mask,
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": refs[:n],
        "ref_rejected_logps": refs[n:],
    }
    return trainer._compute_loss(trainer.model, inputs, False)


def their_kto(batch, lp, mismatched, **given):
    """`mismatched`: summed log-probs of prompts with the responses of others, of the policy and of the reference."""
    settings = {"loss_type": "kto", "calculate_KL": True, "precompute_ref_logps": True, **given}
    trainer = trainer_of("KTOTrainer", **settings)
    trainer.model = Scripted(lp * batch.mask)
    trainer._compute_kl_logps = lambda model, inputs: mismatched[0]
    mask = with_prompt(batch.mask)
    labels = torch.arange(len(mask)) < batch.num_chosen
    inputs = {
        "input_ids": mask,
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": labels,
        "ref_logps": (batch.ref * batch.mask).sum(1),
        "ref_KL_logps": mismatched[1],
    }
    return trainer._compute_loss(trainer.model, inputs, False)


def their_pairwise(trainer, batch, lp, prompt=1):
    """The whole loss of TRL's CPO or ORPO trainer over logits whose log-probs of tokens 0 are `lp`.

    Prompts are `prompt` tokens of probability 1/2 each.
    """
    rows, vocab = len(lp), 2
    front = torch.full((rows, prompt), 0.5, dtype=lp.dtype).log()
    p = torch.cat([front, lp], 1)
    logits = torch.stack([p, torch.log1p(-p.exp())], -1)
    logits = torch.cat([logits[:, 1:], logits[:, :1]], 1)  # position t predicts token t + 1
    assert logits.shape[-1] == vocab
    ids = torch.zeros(rows, prompt + LONGEST, dtype=torch.long)
    there = torch.cat([torch.ones(rows, prompt, dtype=torch.bool), batch.mask], 1)
    labels = torch.where(torch.cat([torch.zeros(rows, prompt, dtype=torch.bool), batch.mask], 1), ids, -100)
    fed = {"concatenated_input_ids": ids, "concatenated_attention_mask": there.long(), "concatenated_labels": labels}
    trainer.is_encoder_decoder, trainer.pad_token_id, trainer.padding_value = False, 0, 0
    trainer.concatenated_inputs = lambda *a, **k: fed
    model = lambda *a, **k: SimpleNamespace(logits=logits)  # noqa: E731
    given = {"chosen_labels": labels[: batch.num_chosen]}
    loss, _ = trainer.get_batch_loss_metrics(model, given)
    return loss
