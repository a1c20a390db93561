"""Stages that learn from preferences: from given pairs, or from pairs that are sampled at each step."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from verizero.pipeline.config.pairs import JUDGE, Judge, JudgedConfig, PairingConfig, PairStage, judges_stage
from verizero.pipeline.config.rates import Learns
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.config.stages import Recipe, RoundsConfig
from verizero.pipeline.preferences.base import PreferenceParams, explain_preference, load_preference
from verizero.pipeline.rl.parts import Part, Parts, PolicyParams


class PreferenceConfig(PairStage):
    """Training on pairs or labelled responses, from files or sampled by the stage."""

    where: ClassVar[str] = "preference"
    learns: ClassVar[Learns] = "preferences"
    in_rounds: ClassVar[bool] = True
    learns_from_responses: ClassVar[bool] = True

    loss: dict[str, Any] = Field(description="{name: dpo, …}: a loss of pipeline/preferences and its parameters")
    parts: int = Field(
        1, ge=1, description="divide the pairs into so many parts; the reference is refreshed after each (sDPO)"
    )
    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _fits(self) -> PreferenceConfig:
        params = check_loss("preference", self.loss)
        if self.parts > 1 and not params.needs_reference and not self.sampled.every_part:
            raise ValueError(
                f"preference.parts={self.parts} refreshes the reference after each part, and loss "
                f"{self.loss['name']!r} has none; set parts: 1, use dpo, or sample again with sampled.every_part: true"
            )
        if self.pairs and self.sampled.every_part:
            raise ValueError("preference.sampled.every_part samples again, and pairs names files; drop one of them")
        return self

    def explain(self, recipe: Recipe) -> str:
        """Return the loss that is minimised."""
        return explain_loss(self.loss)

    def steps_of_items(self) -> list[int]:
        """Return the steps of each part; 0 if they follow from the pairs, which are not known yet."""
        return [self.steps or 0] * self.parts


class OnlinePreferenceConfig(RoundsConfig):
    """Rounds in which a group is sampled and ranked, and the policy learns to prefer its best to its worst."""

    learns: ClassVar[Learns] = "preferences"

    loss: dict[str, Any] = Field(description="{name: dpo, …}: a loss of pipeline/preferences and its parameters")
    pairing: PairingConfig = PairingConfig()
    judge: Judge = Field(None, description=JUDGE)
    judged: JudgedConfig = JudgedConfig()

    @model_validator(mode="after")
    def _fits(self) -> OnlinePreferenceConfig:
        params = check_loss("online_preference", self.loss)
        if self.group_size < 2:
            raise ValueError(f"group_size must be >= 2 to form a pair, got {self.group_size}")
        if self.reference is not None and (self.reference.schedule == "none") == params.needs_reference:
            need = "needs a reference" if params.needs_reference else "has no reference"
            raise ValueError(
                f"online_preference.reference.schedule={self.reference.schedule}, and loss {self.loss['name']!r} "
                f"{need}; leave reference out, or change the loss"
            )
        return self

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stage whose reward model ranks."""
        return judges_stage("judge", self.judge)

    def explain(self, recipe: Recipe) -> str:
        """Return the loss that is minimised."""
        return explain_loss(self.loss)

    @property
    def has_reference(self) -> bool:
        """True if the loss compares the policy to a reference."""
        return check_loss("online_preference", self.loss).needs_reference


def check_loss(section: str, loss: dict[str, Any]) -> PreferenceParams:
    """Return the parameters of the loss. Raises: ValueError, ConfigError, UnknownName."""
    params = dict(loss)
    name = params.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"{section}.loss needs a name, e.g. {{name: dpo}}, got {loss!r}")
    return load_preference(name, params)[0]


def explain_loss(loss: dict[str, Any]) -> str:
    """Return the page of a loss that was checked."""
    params = dict(loss)
    return explain_preference(params.pop("name"), params)


def loop_parts(groups_differ: bool = True) -> Parts:
    """Return parts for the loop of rounds, for stages without an algorithm: no critic, and which groups train."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="token_mean",
        params=PolicyParams(dynamic_sampling=groups_differ),
    )
