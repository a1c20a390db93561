"""Stages of RL, and their rules with other sections of the recipe."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator

from verizero.pipeline.algorithms.base import chosen, explain_algorithm, load_algorithm
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.episodes import has_episodes, longest_response, max_sampled_tokens
from verizero.pipeline.config.rollout import RolloutConfig, check_older_weights
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.config.stages import MODEL, Recipe, RoundsConfig, located
from verizero.pipeline.config.teaching import DistillTermConfig
from verizero.pipeline.rl.explain import Setting
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.rules import UNUSUAL

ARCHITECTURES_WITHOUT_EXPERTS = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})
"""Architectures of new models that surely have no experts."""
MODEL_VERIFIERS = {"reward_model": "here", "judge": "at its own endpoint"}
"""Verifier that asks a model -> where that model runs."""


class RlConfig(RoundsConfig):
    """Rounds of generate, verify, select, update."""

    plays_episodes: ClassVar[bool] = True

    algorithm: dict[str, Any] = Field(
        description="{name: grpo, …}, or {path: my_algo.py, …} from the recipe's folder: an algorithm, its parameters"
    )
    reward: VerifierChoice | None = Field(
        None,
        description="verifier that grades the stage's responses instead of the rows' own, which still evaluate; a "
        "reward model of an earlier stage: {name: reward_model, params: {model: stage:NAME}}",
    )
    ptx_batch_size: int = Field(16, ge=1, description="demonstrations in each update, if ptx_coef is above 0")
    distill: DistillTermConfig | None = Field(
        None, description="term of distillation in each update, e.g. from the policy itself with feedback (SDPO)"
    )

    _file = field_validator("algorithm")(located)

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stage whose reward model grades, and the stages whose policies are teachers."""
        teachers = {} if self.distill is None else self.distill.taken_from_stages()
        taken = {f"distill.{field}": stage for field, stage in teachers.items()}
        return (
            taken
            if self.reward is None or self.reward.stage is None
            else {**taken, "reward": (self.reward.stage, MODEL)}
        )

    @property
    def teacher_paths(self) -> list[str]:
        """Folders and hub ids of the teachers of the term of distillation."""
        return [] if self.distill is None else self.distill.teacher_paths

    @property
    def needs_demonstrations(self) -> bool:
        """True if the loss has a term of demonstrations."""
        return parts_of(self).params.ptx_coef > 0

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError for settings of the recipe that do not fit this stage."""
        check_rl(self, recipe.scoring)
        check_sampling(self, recipe.rollout)
        check_budget(recipe, self)
        check_lag(self, recipe.rollout, recipe.train)
        check_guard(recipe)
        check_term(self, recipe)

    def explain(self, recipe: Recipe) -> str:
        """Return the objective of the algorithm, with the recipe's numbers, and the term of distillation."""
        page = explain_algorithm(
            *chosen(self.algorithm),
            max_response_tokens=longest_response(recipe.rollout, recipe.episodes),
            setting=self._setting(recipe),
            weights=recipe.scoring.weights,
        )
        return page if self.distill is None else f"{page}\n{self.distill.explain(recipe, self.distill.coef)}"

    def _setting(self, recipe: Recipe) -> Setting:
        """Return the settings outside the algorithm on which the objective depends."""
        new_model = recipe.model.create
        reference = {} if self.reference is None else self.reference.model_dump(exclude_none=True)
        own = recipe.data.verifiers.values() if self.reward is None else (self.reward,)
        verifiers = [*own, *(c.verifier for c in recipe.scoring.components)]
        return Setting(
            reference=", ".join([reference.pop("schedule"), *(f"{k} {v}" for k, v in reference.items())])
            if reference
            else None,
            reward_models=[
                f"reward model {c.params.get('model', '')} (verifier {c.name}, frozen, {MODEL_VERIFIERS[c.name]})"
                for c in {c.key: c for c in verifiers}.values()
                if c.name in MODEL_VERIFIERS
            ],
            top_p=recipe.rollout.top_p,
            top_k=recipe.rollout.top_k,
            experts=new_model is None or new_model.model_type not in ARCHITECTURES_WITHOUT_EXPERTS,
        )


def check_guard(recipe: Recipe) -> None:
    """Raise ValueError if a roll-back is impossible."""
    if recipe.guard.action == "roll_back" and recipe.train.backend == "deepspeed":
        raise ValueError(
            f"guard.action=roll_back cannot go back within a run of train.backend={recipe.train.backend!r}; set "
            "guard.action: stop, or train.backend: torch or fsdp"
        )


def parts_of(rl: RlConfig) -> Parts:
    """Return the parts of the recipe's algorithm. Raises: UnknownName, ConfigError."""
    return load_algorithm(*chosen(rl.algorithm))[1]


def check_rl(rl: RlConfig, scoring: ScoringConfig) -> None:
    """Check the section for its algorithm. Raises: ValueError naming field and remedy; ConfigError if unknown."""
    name, params = chosen(rl.algorithm)
    _, parts = load_algorithm(name, params)
    weights, num_rewards = parts.advantage.options.get("weights"), 1 + len(scoring.components)
    if parts.needs_components and num_rewards < 2:
        raise ValueError(
            f"algorithm {name!r} takes several rewards one by one and the recipe has one; add others under "
            "scoring.components, e.g. {verifier: {name: format}}, or use grpo"
        )
    if parts.leaves_out_outcome and scoring.components:
        raise ValueError(
            f"scoring.components change the reward of the whole response, which algorithm {name!r} leaves out with "
            "credit_outcome 0; drop them, or set rl.algorithm.credit_outcome above 0"
        )
    if parts.needs_no_negative:
        scoring.require_no_negative(name)
    if isinstance(weights, tuple) and len(weights) != num_rewards:
        raise ValueError(
            f"rl.algorithm.weights has {len(weights)} numbers for {num_rewards} rewards (the row's own, then "
            "scoring.components); give one for each, or none to take scoring.components' weights"
        )
    if rl.reference is not None and rl.reference.schedule == "none" and parts.needs_reference:
        raise ValueError(
            f"rl.reference.schedule is 'none' and the kl in the {parts.params.kl_place} of algorithm {name!r} needs a "
            "reference; set rl.algorithm.kl_coef: 0, or another schedule"
        )
    if rl.group_size < 2 and parts.needs_group:
        raise ValueError(f"group_size must be >= 2 to form a baseline, got {rl.group_size}; set rl.group_size")
    if rl.select.keep == "informative" and rl.group_size < 2:
        raise ValueError(
            f"a group of {rl.group_size} is never informative; set rl.select.keep: all, or rl.group_size >= 2"
        )
    if parts.params.num_minibatches > rl.prompts_per_step:
        raise ValueError(
            f"num_minibatches={parts.params.num_minibatches} is more than rl.prompts_per_step={rl.prompts_per_step}; "
            "lower rl.algorithm.num_minibatches or raise rl.prompts_per_step"
        )


def check_term(rl: RlConfig, recipe: Recipe) -> None:
    """Raise ValueError for a term of distillation that this recipe cannot have."""
    if rl.distill is None:
        return
    rl.distill.check(recipe)
    if has_episodes(recipe.data, recipe.episodes):
        raise ValueError("rl.distill reads single responses, and rows have environments; drop it, or the environments")
    if rl.distill.has_own_teacher and rl.reference is not None and rl.reference.schedule == "none":
        raise ValueError(
            "rl.reference.schedule is 'none', and the policy teaches itself in rl.distill as its reference; set "
            "another schedule, e.g. {schedule: ema, alpha: 0.05}"
        )


def check_sampling(rl: RlConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError for top-p and top-k that training does not know: it would compute other probabilities."""
    parts = parts_of(rl)
    if rollout.top_p == 1 and rollout.top_k == 0:
        return
    setting = f"rollout.top_p={rollout.top_p:g} and rollout.top_k={rollout.top_k}"
    if not parts.params.keep_sampling:
        if "cut_sampling" not in parts.params.allow:
            raise ValueError(
                f"{setting} cut off tokens that training would not: {UNUSUAL['cut_sampling']}. Set "
                "rl.algorithm.keep_sampling: true, or top_p: 1 and top_k: 0, or ask for it with "
                "rl.algorithm.allow: [cut_sampling]"
            )
        return
    if rollout.top_k > rollout.max_kept:
        raise ValueError(
            f"rollout.top_k={rollout.top_k} leaves more tokens than rollout.max_kept={rollout.max_kept} records; raise "
            "max_kept or lower top_k"
        )
    if rollout.engine not in ("auto", "torch") and rollout.top_k == 0:
        raise ValueError(
            f"rl.algorithm.keep_sampling with rollout.engine={rollout.engine!r} and {setting}: vLLM records sets only "
            "where top_k bounds them; set rollout.top_k, to rollout.max_kept at most, or rollout.engine: torch"
        )


def check_lag(rl: RlConfig, rollout: RolloutConfig, train: TrainConfig) -> None:
    """Raise ValueError for old responses if nothing corrects for them, or if their policy cannot be kept."""
    if rollout.max_staleness == 0:
        return
    parts = parts_of(rl)
    is_bypassed = parts.params.mismatch_stale == "bypass"
    if is_bypassed and parts.ratio_entry.is_one and "stale_without_ratio" not in parts.params.allow:
        raise ValueError(
            f"rollout.max_staleness={rollout.max_staleness} trains on old responses and the algorithm has no ratio: "
            f"{UNUSUAL['stale_without_ratio']}. Set "
            "rl.algorithm.mismatch_stale: decoupled, or ask for it with rl.algorithm.allow: [stale_without_ratio]"
        )
    check_older_weights(rollout, train)


def max_group_tokens(recipe: Recipe, rl: RoundsConfig, greedy: bool, are_played: bool | None = None) -> int:
    """Return the maximum of tokens in a group, with its greedy baseline if any.

    are_played: True if prompts have environments; None: as the recipe says.
    """
    if are_played is None:
        are_played = has_episodes(recipe.data, recipe.episodes)
    return (rl.group_size + greedy) * max_sampled_tokens(recipe.rollout, recipe.episodes, are_played)


def check_budget(recipe: Recipe, rl: RlConfig) -> None:
    """Raise ValueError if a single step may exceed `max_tokens`, with the minimum that is enough."""
    min_tokens = rl.prompts_per_step * max_group_tokens(recipe, rl, parts_of(rl).needs_greedy)
    if rl.max_tokens is not None and rl.max_tokens < min_tokens:
        raise ValueError(
            f"rl.max_tokens={rl.max_tokens} is less than one step may generate, {min_tokens} (prompts_per_step x "
            "group_size x max_response_tokens, or the most of an episode); raise it, or set it to null"
        )
