"""A rollout server in this process, at the place where TRL has its client of vLLM: in step, late, hot, or in few bits.

TRL calls `sync_weights` before it samples new weights, and `generate` for tokens and their log-probs, as it does with
vLLM. Everything else of the trainer is its own.
"""

from __future__ import annotations

from typing import Any

import torch


class Server:
    """Samples from a copy of the trainer's model."""

    def __init__(self, trainer: Any, *, is_synced: bool = True, temperature: float = 1.0, levels: int = 0) -> None:
        self.trainer, self.is_synced, self.temperature, self.levels = trainer, is_synced, temperature, levels
        # A deep copy would call the trainer's own forward, which accelerate has bound to the trainer's model.
        self.model = type(trainer.model)(trainer.model.config)
        self.model.load_state_dict(trainer.model.state_dict())
        self._round()

    def sync_weights(self) -> None:
        """Take the trainer's weights, unless this server is one that never gets them."""
        if self.is_synced:
            self.model.load_state_dict(self.trainer.model.state_dict())
            self._round()

    def _round(self) -> None:
        """Round the weights to `levels` values a row, as a server with a small number type does."""
        for weight in self.model.parameters() if self.levels else ():
            scale = weight.data.abs().amax(dim=-1, keepdim=True).clamp(min=1e-9) / self.levels
            weight.data = (weight.data / scale).round() * scale

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], **_: Any) -> tuple[Any, list[list[int]], list[list[list[float]]], Any]:
        """Return completions and the log-prob of each token, by the distribution that they were drawn from."""
        tokenizer, most = self.trainer._tokenizer, self.trainer.max_completion_length
        width = max(map(len, prompts))
        ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        self.model.eval()
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=self.temperature,
            top_k=0,
            max_new_tokens=most,
            return_dict_in_generate=True,
            output_scores=True,
        )
        tokens = out.sequences[:, width:]
        logprobs = torch.stack([s.log_softmax(-1) for s in out.scores], dim=1).gather(2, tokens[:, :, None])[:, :, 0]
        lengths = [self._length(row.tolist(), tokenizer.eos_token_id) for row in tokens]
        completions = [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]
        own = [[[float(p)] for p in row[:n]] for row, n in zip(logprobs, lengths, strict=True)]
        return None, completions, own, None

    @staticmethod
    def _length(tokens: list[int], end: int) -> int:
        return tokens.index(end) + 1 if end in tokens else len(tokens)
