"""The `scoring` section of a recipe: what a verdict is worth, and what else a response is graded for."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.data import VerifierChoice
from pipeline.config.sections import Section


class ComponentConfig(Section):
    """A further reward of every response, beside that of its row's own verifier."""

    verifier: VerifierChoice = Field(description="{name, params}; it sees the row's own reference")
    weight: float = Field(1.0, description="of its reward in the sum; the row's own verifier has weight 1")


class SecondOpinionConfig(Section):
    """A share of verdicts is given again by another verifier: no reward changes, disagreements are counted and kept."""

    share: float = Field(0.02, gt=0, le=1, description="of the responses whose own grader did not fail")
    verifier: VerifierChoice = Field(description="{name | path, params}; it sees the row's own reference")
    domains: tuple[str, ...] | None = Field(None, description="only in these; null: in all")


class ScoringConfig(Section):
    """The table that turns a verdict into a reward, and how failures of graders are met."""

    no_answer: float = Field(0.0, description="reward of a response without an answer")
    timeout: float = Field(0.0, description="reward of an answer that ran past its own budget")
    truncated: float | None = Field(0.0, description="reward of a response cut at its length; null: its verdict's")
    overlap: bool | None = Field(
        None,
        description="responses are graded as they end, while others are still written, where the engine can; null: "
        "where writing leaves cores free (on a GPU, or with fewer threads than cores)",
    )
    workers: int = Field(1, ge=1, description="threads that grade")
    retries: int = Field(1, ge=0, description="of a grader's failure, before the response leaves its group")
    alarm_rate: float = Field(0.05, gt=0, le=1, description="share of grader failures in a step that is reported")
    components: tuple[ComponentConfig, ...] = Field(
        (), description="further rewards, in training only; the sum is the reward, and gdpo takes them one by one"
    )
    second_opinion: SecondOpinionConfig | None = None

    @property
    def weights(self) -> tuple[float, ...]:
        """Of the rewards that make up the sum: 1 for the row's own verifier, then the components'."""
        return (1.0, *(c.weight for c in self.components))
