"""The `guard` section of a recipe: the signs that RL collapses, and what is then done."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from verizero.pipeline.config.sections import Section


class GuardConfig(Section):
    """Signs of a collapse: medians over the last `window` steps, compared to the stage's first steps."""

    action: Literal["none", "warn", "stop", "roll_back"] = Field(
        "warn", description="action at a sign; roll_back: return to the last checkpoint before it, with `knob` changed"
    )
    window: int = Field(5, ge=1, description="number of steps in a median")
    min_entropy: float | None = Field(
        0.1,
        gt=0,
        lt=1,
        description="least entropy, as a share of the first steps', unless most groups are all right; null here and "
        "below: not watched",
    )
    max_entropy: float | None = Field(5.0, gt=1, description="largest entropy, as a multiple of the first steps'")
    min_length: float | None = Field(
        0.25, gt=0, lt=1, description="least mean response length, as a share of the first steps'"
    )
    max_truncated: float | None = Field(0.4, gt=0, le=1, description="largest rise of the share of truncated responses")
    max_kl: float | None = Field(1.0, gt=0, description="largest KL (k3) to the reference, nats a token")
    max_clip_fraction: float | None = Field(0.3, gt=0, le=1, description="largest rise of the share of clipped tokens")
    max_flat: float | None = Field(
        0.95,
        gt=0,
        lt=1,
        description="largest share of groups whose rewards are all equal, not counting groups that are all right",
    )
    max_unanswered: float | None = Field(
        0.3,
        gt=0,
        le=1,
        description="largest rise of the share of responses without an answer, or whose check timed out",
    )
    knob: dict[str, float] = Field(
        {},
        description="number that each roll-back multiplies, and the factor, e.g. {rl.optimizer.learning_rate: 0.5}; "
        "a number of rl.optimizer or rl.algorithm, or rollout.temperature",
    )
    max_roll_backs: int = Field(2, ge=1, description="most roll-backs in one stage; the next collapse ends the run")

    @model_validator(mode="after")
    def _one_knob(self) -> GuardConfig:
        if self.action == "roll_back" and len(self.knob) != 1:
            raise ValueError(
                f"guard.action=roll_back changes one number, or the run would go the same way again; guard.knob has "
                f"{len(self.knob)}: give one, e.g. {{rl.optimizer.learning_rate: 0.5}}"
            )
        if self.action != "roll_back" and self.knob:
            raise ValueError(
                f"guard.knob is for guard.action=roll_back, which is {self.action!r}; drop it, or change that"
            )
        for name, factor in self.knob.items():
            if factor <= 0 or factor == 1:
                raise ValueError(f"guard.knob multiplies {name} by {factor:g}; give a factor above 0 that is not 1")
        return self
