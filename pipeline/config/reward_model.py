"""The section of stages that train a reward model on pairs, for verifiers and for RL to ask."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from pipeline.config.pairs import PairSource, SampledPairsConfig, judges_stage
from pipeline.config.sections import OptimizerConfig
from pipeline.config.stages import MODEL, StageSection, check_one_length


class RewardModelConfig(StageSection):
    """A scalar head on the present policy's blocks, trained so that better responses get more (Bradley-Terry)."""

    trains_policy: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset({"prompts", "pairs", "rollout", "scoring", "sandbox"})
    leaves: ClassVar[frozenset[str]] = frozenset({MODEL})

    parts: ClassVar[int] = 1

    pairs: tuple[PairSource, ...] = Field((), description="empty: sampled and graded here, as `sampled` says")
    on_wrong_chosen: Literal["keep", "drop", "swap"] = Field(
        "keep", description="a pair of a file whose chosen side its verifier calls wrong; counted in any case"
    )
    sampled: SampledPairsConfig = SampledPairsConfig()
    held_out: float = Field(0.1, gt=0, lt=1, description="share of the prompts whose pairs are only measured")
    steps: int | None = Field(None, ge=1, description="optimiser steps; exactly one of steps and epochs")
    epochs: float | None = Field(None, gt=0, description="passes over the pairs that are trained on")
    batch_size: int = Field(32, ge=1, description="pairs a step")
    chat: bool = Field(False, description="as the verifier's `chat`: through the tokenizer's chat template")
    include_thinking: bool = Field(False, description="as the verifier's: it sees what stands before </think>")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-4, schedule="linear", warmup_steps=10)

    @model_validator(mode="after")
    def _fits(self) -> RewardModelConfig:
        check_one_length("reward_model", self.steps, self.epochs)
        for source in self.pairs if self.on_wrong_chosen != "keep" else ():
            if not source.can_grade:
                raise ValueError(
                    f"reward_model.on_wrong_chosen={self.on_wrong_chosen} needs a verifier for {source.label}; set its "
                    "verifier and mapping.answer, or on_wrong_chosen: keep"
                )
        if self.on_wrong_chosen != "keep" and not self.pairs:
            raise ValueError(
                f"reward_model.on_wrong_chosen={self.on_wrong_chosen} is about pairs of files, and there are none; set "
                "it to keep"
            )
        if self.sampled.every_part:
            raise ValueError("reward_model.sampled.every_part: a reward model has one part; drop it")
        return self

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """The stage whose reward model ranks what is sampled."""
        return judges_stage("sampled.judge", self.sampled.judge)
