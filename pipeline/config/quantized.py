"""The rules for a quantised base: what it needs, and what does not go together with it."""

from __future__ import annotations

from collections.abc import Iterator

from verizero.pipeline.config.rl import RlConfig, parts_of
from verizero.pipeline.config.stages import POLICY, Recipe


def check_quantized(recipe: Recipe) -> None:
    """Raise ValueError, with the reason and the remedy, for a recipe that a quantised base does not allow."""
    if recipe.model.quantize is None:
        return
    for reason in _against(recipe):
        raise ValueError(f"model.quantize={recipe.model.quantize}{reason}")


def _against(recipe: Recipe) -> Iterator[str]:
    """Yield what follows the field and its value in messages."""
    train = recipe.train
    if train.lora is None:
        yield " freezes the weights, so that nothing would learn; set train.lora: {rank: 16}, or drop model.quantize"
    if train.backend == "deepspeed":
        yield " with train.backend=deepspeed, which divides numbers and no bits; set train.backend: fsdp or torch"
    if recipe.rollout.engine not in ("auto", "torch") and not recipe.rollout.takes_adapters:
        yield (
            f" with rollout.engine={recipe.rollout.engine}, which takes weights with the adapters merged; set "
            "rollout.engine: torch, vllm or vllm_server"
        )
    for stage in recipe.stages:
        section = recipe.section_of(stage)
        where = f" with stage {stage.name!r}"
        if section.learns == "ranks" and train.backend == "fsdp":
            yield f"{where}, whose model train.backend=fsdp divides as numbers; set train.backend: torch"
        if isinstance(section, RlConfig) and (critic := parts_of(section).critic) is not None and not critic.shared:
            yield (
                f"{where}, whose critic trains all weights of a copy; set rl.algorithm.critic_shared: true, or take an "
                "algorithm without a critic"
            )
        if any(file == POLICY for _, file in section.taken_from_stages().values()):
            yield f"{where}, whose teacher is an earlier stage's policy, of which the adapters alone are kept"
