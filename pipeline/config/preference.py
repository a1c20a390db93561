"""The sections of the kinds of stages that learn from preferences: pairs at hand, or made anew in each step."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipeline.config.pairs import Judge, JudgedConfig, PairingConfig, PairSource, SampledPairsConfig, judges_stage
from pipeline.config.sections import OptimizerConfig
from pipeline.config.stages import RoundsConfig, StageSection
from pipeline.preferences.base import PreferenceParams, load_preference
from pipeline.rl.parts import Part, Parts


class PreferenceConfig(StageSection):
    """Training on pairs of better and worse responses, or on labelled ones: of files, or sampled and graded here."""

    in_rounds: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"prompts", "pairs", "rollout", "scoring", "sandbox"})

    loss: dict[str, Any] = Field(description="{name: dpo, …}: a loss of pipeline/preferences and its parameters")
    pairs: tuple[PairSource, ...] = Field((), description="empty: sampled and graded here, as `sampled` says")
    on_wrong_chosen: Literal["keep", "drop", "swap"] = Field(
        "keep", description="a pair of a file whose chosen side its verifier calls wrong; counted in any case"
    )
    sampled: SampledPairsConfig = SampledPairsConfig()
    parts: int = Field(1, ge=1, description="the pairs in so many parts; the reference is refreshed after each (sDPO)")
    steps: int | None = Field(None, ge=1, description="optimiser steps of each part; exactly one of steps and epochs")
    epochs: float | None = Field(None, gt=0, description="passes over the pairs of each part")
    batch_size: int = Field(32, ge=1, description="pairs a step")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-4)

    @model_validator(mode="after")
    def _fits(self) -> PreferenceConfig:
        params = check_loss("preference", self.loss)
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("preference needs exactly one of steps and epochs")
        if self.parts > 1 and not params.needs_reference and not self.sampled.every_part:
            raise ValueError(
                f"preference.parts={self.parts} refreshes the reference after each part, and loss "
                f"{self.loss['name']!r} has none; set parts: 1, use dpo, or sample anew with sampled.every_part: true"
            )
        if self.on_wrong_chosen != "keep":
            if not self.pairs:
                raise ValueError(
                    f"preference.on_wrong_chosen={self.on_wrong_chosen} is about pairs of files, and there are none; "
                    "set it to keep"
                )
            for source in self.pairs:
                if not source.can_grade:
                    raise ValueError(
                        f"preference.on_wrong_chosen={self.on_wrong_chosen} needs a verifier for {source.label}; set "
                        "its verifier and mapping.answer, or on_wrong_chosen: keep"
                    )
        if self.pairs and self.sampled.every_part:
            raise ValueError("preference.sampled.every_part samples anew, and pairs names files; drop one of them")
        return self

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """The stage whose reward model ranks what is sampled."""
        return judges_stage("sampled.judge", self.sampled.judge)

    def steps_of_items(self) -> list[int]:
        """One item a part; 0 steps where the number follows from the pairs, which are not known yet."""
        return [self.steps or 0] * self.parts


class OnlinePreferenceConfig(RoundsConfig):
    """Rounds of sampling a group, ranking it, and training its best against its worst."""

    loss: dict[str, Any] = Field(description="{name: dpo, …}: a loss of pipeline/preferences and its parameters")
    pairing: PairingConfig = PairingConfig()
    judge: Judge = Field(
        None,
        description="policy, or a verifier that ranks instead of the prompts' own; a reward model of an earlier stage: "
        "{name: reward_model, params: {model: stage:NAME}}",
    )
    judged: JudgedConfig = JudgedConfig()

    @model_validator(mode="after")
    def _fits(self) -> OnlinePreferenceConfig:
        params = check_loss("online_preference", self.loss)
        if self.group_size < 2:
            raise ValueError(f"group_size must be >= 2 to form a pair, got {self.group_size}")
        if self.reference is not None and (self.reference.schedule == "none") == params.needs_reference:
            said = "needs a reference" if params.needs_reference else "has no reference"
            raise ValueError(
                f"online_preference.reference.schedule={self.reference.schedule}, and loss {self.loss['name']!r} "
                f"{said}; leave reference out, or change the loss"
            )
        return self

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """The stage whose reward model ranks."""
        return judges_stage("judge", self.judge)

    @property
    def has_reference(self) -> bool:
        """The loss holds the policy against one."""
        return check_loss("online_preference", self.loss).needs_reference


def check_loss(section: str, loss: dict[str, Any]) -> PreferenceParams:
    """The parameters of the loss. Raises: ValueError; ConfigError, UnknownName naming what is wrong."""
    given = dict(loss)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"{section}.loss needs a name, e.g. {{name: dpo}}, got {loss!r}")
    return load_preference(name, given)[0]


def loop_parts() -> Parts:
    """What the loop of rounds asks of an algorithm, for a loss of preferences: groups that differ, and no critic."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="token_mean",
        dynamic_sampling=True,
    )
