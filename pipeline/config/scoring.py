"""The `scoring` section of a recipe: the reward for each verdict, and additional rewards."""

from __future__ import annotations

from pydantic import Field, model_validator

from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.sections import Section
from verizero.pipeline.types import Ending


class ComponentConfig(Section):
    """A verifier whose reward is added to that of the row's own verifier, for every response."""

    verifier: VerifierChoice = Field(description="{name, params}; it gets the row's reference")
    weight: float = Field(1.0, description="weight of the reward in the sum; the row's own verifier has weight 1")


class ScoringConfig(Section):
    """The reward for each kind of verdict, and what happens when graders fail."""

    no_answer: float = Field(0.0, description="reward of a response without an answer")
    timeout: float = Field(0.0, description="reward of an answer that exceeded its own time limit")
    truncated: float | None = Field(
        0.0, description="reward of a response cut at the length limit; null: the reward of its verdict"
    )
    endings: dict[Ending, float | None] = Field(
        {},
        description="reward of an episode by how it ended, e.g. {turns: 0, unread: -0.5}; an ending that is not here: "
        "the reward of its verdict, and that of `truncated` for tokens and context",
    )
    overlap: bool | None = Field(
        None,
        description="grade each response as soon as it ends, while others are still generated, if the engine can; "
        "null: if generation leaves cores free (on a GPU, or with fewer threads than cores)",
    )
    workers: int = Field(1, ge=1, description="threads that grade")
    retries: int = Field(
        1, ge=0, description="retries after a grader failed, before the response is taken out of its group"
    )
    alarm_rate: float = Field(
        0.05, gt=0, le=1, description="share of failed gradings in a step above which an alarm is raised"
    )
    components: tuple[ComponentConfig, ...] = Field(
        (), description="further rewards, in training only; the reward is the sum (gdpo uses each by itself)"
    )

    @model_validator(mode="after")
    def _endings_have_rewards(self) -> ScoringConfig:
        if self.endings.get("failed") is not None:
            raise ValueError(
                f"scoring.endings.failed={self.endings['failed']:g}: an episode whose environment broke has no reward, "
                "and leaves its group; drop it"
            )
        return self

    def require_no_negative(self, algorithm: str) -> None:
        """Raise ValueError if a field gives a reward below 0, for an algorithm that divides by their mean."""
        table = {
            **{f"scoring.{name}": getattr(self, name) for name in ("no_answer", "timeout", "truncated")},
            **{f"scoring.endings.{ending}": value for ending, value in self.endings.items()},
            **{f"scoring.components.{i}.weight": c.weight for i, c in enumerate(self.components)},
        }
        for field, value in table.items():
            if value is not None and value < 0:
                raise ValueError(
                    f"{field} is {value:g}, and algorithm {algorithm!r} divides by the mean of rewards of at least 0; "
                    f"set {field} to 0 or above, or use dr_grpo"
                )

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the rewards in the sum: 1 for the row's own verifier, then those of the components."""
        return (1.0, *(c.weight for c in self.components))
