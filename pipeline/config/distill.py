"""Stages of distillation: the policy learns from teachers at each token of its own responses."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.config.stages import RoundsConfig
from verizero.pipeline.config.teaching import DistillationConfig


class DistillConfig(DistillationConfig, RoundsConfig):
    """Rounds in which the policy samples responses and learns each token from a teacher's distribution."""

    groups_differ: ClassVar[bool] = False

    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _fits(self) -> DistillConfig:
        if self.select.keep == "informative" and self.group_size < 2:
            raise ValueError(
                f"a group of {self.group_size} is never informative; set distill.select.keep: all, or "
                "distill.group_size >= 2"
            )
        self._reference_fits()
        return self

    def _reference_fits(self) -> None:
        """Raise ValueError if `reference` is set but no teacher uses it, or its schedule is not possible here."""
        if self.reference is None:
            return
        schedule = self.reference.schedule
        if not self.has_reference:
            raise ValueError(
                f"distill.reference.schedule={schedule}, and no teacher is the policy itself; leave reference out, or "
                "give a teacher with hint, feedback or system"
            )
        if schedule == "none":
            raise ValueError(
                "distill.reference.schedule=none cannot be, because the teacher is the reference; set it to frozen, "
                "every_round, every_n_steps or ema"
            )

    @property
    def has_reference(self) -> bool:
        """True if a teacher is an earlier version of the policy."""
        return self.has_own_teacher
