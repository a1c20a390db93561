"""Stages that train a reward model on pairs, for later stages to grade with."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from verizero.pipeline.config.pairs import PairStage
from verizero.pipeline.config.rates import Learns
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.config.stages import MODEL, Recipe
from verizero.verifiers._steps import check_expression

REPLAY = 0.1
"""Share of earlier pairs in DeepSeekMath's iterations (2402.03300, algorithm 1)."""


class RewardModelConfig(PairStage):
    """A scalar head on the current policy, trained so that better responses score higher (Bradley-Terry), or right
    steps of responses (cross-entropy).
    """

    where: ClassVar[str] = "reward_model"
    learns: ClassVar[Learns] = "ranks"
    trains_policy: ClassVar[bool] = False
    leaves: ClassVar[frozenset[str]] = frozenset({MODEL})

    parts: ClassVar[int] = 1

    step_end: str | None = Field(
        None,
        min_length=1,
        description="a process reward model: it scores each piece of a response up to a match of this regular "
        "expression, trained on the labelled steps of `pairs`, or on the steps (reward 1 or 0) of sampled responses' "
        "verdicts; null: trained on pairs",
    )
    continues: str | None = Field(
        None,
        min_length=1,
        description="an earlier stage whose reward model is trained on; null: a new head on the policy's blocks",
    )
    replay: float | None = Field(
        None,
        ge=0,
        le=1,
        description="with `continues`: pairs of that stage that are trained on again, as a share of the new ones; "
        "null: 0.1 (2402.03300, algorithm 1)",
    )
    held_out: float = Field(
        0.1, gt=0, lt=1, description="share of the prompts whose pairs are not trained on, only measured"
    )
    chat: bool = Field(
        False, description="write prompt and response with the tokenizer's chat template, as the verifier's `chat`"
    )
    include_thinking: bool = Field(
        False, description="score the text before </think> too, as the verifier's `include_thinking`"
    )
    optimizer: OptimizerConfig = OptimizerConfig(schedule="linear", warmup_steps=10)

    _is_expression = field_validator("step_end")(check_expression)

    @model_validator(mode="after")
    def _fits(self) -> RewardModelConfig:
        if self.replay is not None and self.continues is None:
            raise ValueError(
                f"reward_model.replay={self.replay:g} without reward_model.continues, and there are no earlier pairs; "
                "name the stage whose reward model is continued, or drop replay"
            )
        if self.step_end is not None and self.sampled.judge is not None:
            raise ValueError(
                "reward_model.step_end trains on steps that the prompts' verifiers score, and sampled.judge gives "
                "none; drop sampled.judge, or step_end"
            )
        if self.step_end is not None and self.on_wrong_chosen != "keep":
            raise ValueError(
                f"reward_model.on_wrong_chosen={self.on_wrong_chosen} is about pairs, and step_end trains on steps; "
                "set it to keep"
            )
        if self.sampled.every_part:
            raise ValueError("reward_model.sampled.every_part: a reward model has one part; drop it")
        return self

    @property
    def file(self) -> str:
        """The name of the file with what is trained on, in the stage's folder."""
        return "pairs.jsonl" if self.step_end is None else "steps.jsonl"

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stages whose reward models rank the samples, and are continued."""
        before = {} if self.continues is None else {"continues": (self.continues, MODEL)}
        return super().taken_from_stages() | before

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError for a model that would read other texts than the one that it continues."""
        section = next((recipe.section_of(s) for s in recipe.stages if s.name == self.continues), None)
        if not isinstance(section, RewardModelConfig):
            return  # a name of no such stage is refused with the names that there are
        for name in ("chat", "include_thinking", "step_end"):
            if getattr(section, name) != getattr(self, name):
                raise ValueError(
                    f"reward_model.{name}={getattr(self, name)} with continues: {self.continues}, whose model was "
                    f"trained with {name}={getattr(section, name)}; make them equal"
                )

    def explain(self, recipe: Recipe) -> str:
        """Return the loss that is minimised, and what the model begins with."""
        if self.step_end is None:
            what = "pairs"
            lines = [
                "loss        Bradley-Terry  (arXiv:2203.02155 eq. 1)",
                "minimise    the mean over pairs of -log sigmoid(r_w - r_l)",
            ]
        else:
            what = "responses"
            lines = [
                "loss        cross-entropy of steps  (arXiv:2312.08935 section 3.2)",
                "minimise    the mean over steps of -log sigmoid(r) if right, -log sigmoid(-r) if wrong",
                f"steps       pieces up to a match of {self.step_end!r} in which a labelled step ends",
                "departs     the mean is over all steps of an optimiser step; the paper sums those of a response",
            ]
        origin = "given" if self.pairs else f"{self.sampled.samples} answers of the policy to each prompt, graded"
        lines.insert(2, f"{what:<12}{origin}")
        begins = "the policy's blocks, a new scalar head"
        if self.continues is not None:
            begins = f"begins as that of stage {self.continues}"
            share = f"{self.replay_share:g} for each new one"
            lines.append(f"replay      {what} of stage {self.continues} are trained on again, {share}")
        return "\n".join([*lines, f"models      reward model (trained; {begins})"])

    @property
    def replay_share(self) -> float:
        """Earlier pairs that are trained on again, as a share of the new ones."""
        if self.continues is None:
            return 0.0
        return REPLAY if self.replay is None else self.replay
