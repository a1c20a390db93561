"""Faults that only a bug in code can cause: functions of the pipeline are replaced in the process that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

import verizero.pipeline.data.render as render
import verizero.pipeline.models.cpu as cpu
import verizero.pipeline.rollout.generate as generate
import verizero.pipeline.rollout.torch_engine as torch_engine
import verizero.pipeline.run.build as build
import verizero.pipeline.train.prepare as prepare
import verizero.pipeline.train.torch_backend as torch_backend
from benchmarks.diagnose.fault import Fault, Patch, replaced
from verizero.pipeline.models.cpu.onednn import packed


def around(holder: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Return a patch that replaces an attribute by what `make` builds from the present one."""

    @contextmanager
    def patch() -> Iterator[None]:
        before = getattr(holder, name)
        with replaced(holder, name, wraps(before)(make(before))):
            yield

    return patch


def keeps_first_weights(publish: Any) -> Any:
    """Let an engine report every version, with the weights of the first one that it was given."""

    def wrong(self: Any, version: int) -> None:
        if self.version < 0:
            publish(self, version)
        self.version = version

    return wrong


def takes_every_twelfth(publish: Any) -> Any:
    """Let an engine report every version, with new weights at every twelfth call alone."""
    calls = [0]

    def wrong(self: Any, version: int) -> None:
        if calls[0] % 12 == 0:
            publish(self, version)
        calls[0] += 1
        self.version = version

    return wrong


def at_temperature(actual: float) -> Callable[[Any], Any]:
    """Let the engine sample at a temperature that nobody asked for; its log-probs are those of the one asked for."""

    def make(pick: Any) -> Any:
        def wrong(logits: Tensor, uniforms: Tensor, sampling: Any) -> tuple[Tensor, Tensor]:
            if sampling.temperature == 0:
                greedy: tuple[Tensor, Tensor] = pick(logits, uniforms, sampling)
                return greedy
            tokens, _ = pick(logits, uniforms, replace(sampling, temperature=actual))
            return tokens, (logits / sampling.temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]

        return wrong

    return make


def rounded(bits: int) -> Callable[[Any], Any]:
    """Let the engine compute with weights that are rounded to a few bits, each row to a scale of its own."""

    def make(refresh: Any) -> Any:
        @torch.no_grad()
        def wrong(self: Any) -> None:
            refresh(self)
            for layer in self.layers:
                for name in layer.__dataclass_fields__:
                    weight = getattr(layer, name)
                    if isinstance(weight, Tensor) and weight.dim() == 2:
                        plain = weight.to_dense() if weight.is_mkldnn else weight
                        scale = plain.abs().amax(1, keepdim=True).clamp(min=1e-9) / 2 ** (bits - 1)
                        coarse = (plain / scale).round() * scale
                        if weight.is_mkldnn:  # a packed weight cannot be written to
                            setattr(layer, name, packed(coarse))
                        else:
                            weight.copy_(coarse)

        return wrong

    return make


def with_prompt(collate: Any) -> Any:
    """Let the mask of trained tokens begin at the prompt's second token."""

    def wrong(*args: Any, **named: Any) -> Any:
        batch = collate(*args, **named)
        mask = batch.attention_mask.float()
        mask[:, 0] = 0
        return replace(batch, response_mask=mask)

    return wrong


def without_end(collate: Any) -> Any:
    """Leave the last token of each row out of the mask: the one that ends the response."""

    def wrong(*args: Any, **named: Any) -> Any:
        batch = collate(*args, **named)
        last = batch.attention_mask.sum(1) - 1
        mask = batch.response_mask.clone()
        mask[torch.arange(len(mask)), last] = 0
        return replace(batch, response_mask=mask)

    return wrong


def mean_of_the_group(collate: Any) -> Any:
    """Give each response the mean reward of its group, as after a join by prompt."""

    def wrong(*args: Any, **named: Any) -> Any:
        batch = collate(*args, **named)
        rewards = batch.rewards.clone()
        for group in batch.group_ids.unique():
            rewards[batch.group_ids == group] = batch.rewards[batch.group_ids == group].mean()
        return replace(batch, rewards=rewards)

    return wrong


def same_for_the_group(derive: Any) -> Any:
    """Give all samples of a prompt the same seed."""

    def wrong(root: int, *names: Any) -> int:
        seed: int = derive(root, *names[:-1]) if names and names[0] == "rollout" else derive(root, *names)
        return seed

    return wrong


def only_once(refresh: Any) -> Any:
    """Let the reference be set once; later calls are counted and do nothing."""

    def wrong(self: Any, alpha: float = 1.0) -> None:
        if self.reference is None:
            refresh(self, alpha)

    return wrong


def with_a_line_break(prompt_ids: Any) -> Any:
    """Add a line break to each prompt that the engine is given, which no demonstration had."""

    def wrong(self: Any, prompt: Any) -> Any:
        (line_break,) = self.tokenizer("\n", add_special_tokens=False)["input_ids"]
        return (*prompt_ids(self, prompt), line_break)

    return wrong


def no_end_token(text_ids: Any) -> Any:
    """Leave the end token off the demonstrations."""

    def wrong(self: Any, text: str, where: str) -> Any:
        return text_ids(self, text, where)[:-1]

    return wrong


def another_end(eos_ids: Any) -> Any:
    """Name a token as the end that no response ends with."""

    def wrong(model: Any, tokenizer: Any) -> list[int]:
        (other,) = tokenizer("Z", add_special_tokens=False)["input_ids"]
        return [other]

    return wrong


ENGINE = (
    Fault(
        name="weights_never_arrive",
        cause="stale_engine_weights",
        complaint="The evaluation after training equals the one before, to the last digit. The trainer's loss moves.",
        patch=around(torch_engine.TorchEngine, "publish", keeps_first_weights),
    ),
    Fault(
        name="weights_arrive_rarely",
        cause="stale_engine_weights",
        complaint="The reward stays flat for a dozen steps, then jumps up or down.",
        patch=around(torch_engine.TorchEngine, "publish", takes_every_twelfth),
    ),
    Fault(
        name="engine_too_cold",
        cause="sampling_differs",
        complaint="The samples hardly differ although the temperature is 1, and RL gains less than it should.",
        patch=around(torch_engine, "pick", at_temperature(0.4)),
        hurts=False,
    ),
    Fault(
        name="engine_too_hot",
        cause="sampling_differs",
        complaint="The samples are full of slips that the model does not make in my notebook.",
        patch=around(torch_engine, "pick", at_temperature(1.5)),
    ),
    Fault(
        name="engine_in_few_bits",
        cause="engine_mismatch",
        complaint="The rollouts are worse than the model that I load from the checkpoint.",
        patch=around(cpu.Decoder, "refresh", rounded(2)),
    ),
    Fault(
        name="same_seed_in_a_group",
        cause="advantages_vanish",
        complaint="The loss is zero. All responses to a prompt are the same text.",
        patch=around(generate, "derive", same_for_the_group),
    ),
    Fault(
        name="end_not_known_to_the_engine",
        cause="end_token_missing",
        complaint="All responses are cut at the limit; after the answer comes more and more text.",
        patch=around(build, "eos_ids", another_end),
    ),
)

TRAINER = (
    Fault(
        name="mask_with_the_prompt",
        cause="mask_trains_prompt",
        complaint="The run is unstable, and the number of trained tokens is larger than that of sampled ones.",
        patch=around(prepare, "collate", with_prompt),
        hurts=False,
    ),
    Fault(
        name="mask_without_the_end",
        cause="mask_leaves_end",
        complaint="The trained tokens are fewer than the sampled ones, by one a response.",
        patch=around(prepare, "collate", without_end),
        hurts=False,
    ),
    Fault(
        name="joined_by_prompt",
        cause="advantages_vanish",
        complaint="Rewards differ within groups, and even so the loss and the gradient are zero.",
        patch=around(prepare, "collate", mean_of_the_group),
    ),
    Fault(
        name="reference_set_once",
        cause="reference_never_moves",
        complaint="The reference should move every fifth step; the KL grows from round to round as if it did not.",
        overrides=("rl.reference={schedule: every_n_steps, every: 5}", "rl.algorithm.kl_coef=0.3"),
        patch=around(torch_backend.TorchBackend, "refresh_reference", only_once),
    ),
)

TEXTS = (
    Fault(
        name="line_break_after_the_question",
        cause="other_template",
        complaint="The SFT model is good in my notebook and bad in the first evaluation.",
        patch=around(render.Renderer, "prompt_ids", with_a_line_break),
    ),
    Fault(
        name="demonstrations_without_end",
        cause="end_token_missing",
        complaint="No response ends by itself. Each has the answer and then goes through the same again.",
        patch=around(render.Renderer, "_text_ids", no_end_token),
        shares_sft=False,
    ),
)

FAULTS = (*ENGINE, *TRAINER, *TEXTS)
