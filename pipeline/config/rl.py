"""The section of stages of RL, and its rules with the other sections of a recipe."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from verizero.pipeline.algorithms.base import chosen, explain_algorithm, load_algorithm
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.episodes import longest_response, most_sampled, names_episodes
from verizero.pipeline.config.guard import GuardConfig
from verizero.pipeline.config.rollout import RolloutConfig, check_older_weights, check_quantized
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.config.stages import MODEL, Recipe, RoundsConfig, located
from verizero.pipeline.rl.explain import Setting
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.rules import UNUSUAL

OF_OPTIMIZER = ("learning_rate", "max_grad_norm")
ADAPTIVE = {"kl_coef": "kl_target", "entropy_coef": "entropy_target"}
"""Coefficients of algorithms, each with the parameter that makes it adapt by itself."""
DENSE = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})
"""Architectures of new models that are known to have no experts."""
MODELS = {"reward_model": "here", "reference_model": "here", "judge": "at its own endpoint"}
"""Verifiers that ask a model -> where that model runs."""


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
    critic: OptimizerConfig | None = Field(
        None,
        description="optimiser of the critic; null: `optimizer`, at the algorithm's critic_learning_rate if it has one",
    )

    @field_validator("algorithm")
    @classmethod
    def _file(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return located(value, info)

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stage whose reward model grades."""
        return {} if self.reward is None or self.reward.stage is None else {"reward": (self.reward.stage, MODEL)}

    @property
    def needs_demonstrations(self) -> bool:
        """True if they are a term of the loss."""
        return parts_of(self).terms.ptx_coef > 0

    def check(self, recipe: Recipe) -> None:
        """Refuse what does not fit in a recipe of one RL stage. Raises: ValueError."""
        check_rl(self, recipe.scoring)
        check_sampling(self, recipe.rollout)
        check_budget(recipe, self)
        check_lag(self, recipe.rollout, recipe.train)
        check_quantized(recipe.rollout, recipe.model.dtype, parts_of(self).mismatch.needs_rollout_logprobs)
        check_guard(self, recipe)

    def explain(self, recipe: Recipe) -> str:
        """Return the objective of the algorithm, with the recipe's numbers."""
        return explain_algorithm(
            *chosen(self.algorithm),
            max_response_tokens=longest_response(recipe.rollout, recipe.episodes),
            setting=self._setting(recipe),
            weights=recipe.scoring.weights,
        )

    def _setting(self, recipe: Recipe) -> Setting:
        """Return the recipe's choices outside the algorithm that the objective depends on."""
        create = recipe.model.create
        moves = {} if self.reference is None else self.reference.model_dump(exclude_none=True)
        verifiers = [*recipe.data.verifiers.values(), *(c.verifier for c in recipe.scoring.components)]
        return Setting(
            reference=", ".join([moves.pop("schedule"), *(f"{k} {v}" for k, v in moves.items())]) if moves else None,
            reward_models=[
                f"reward model {c.params.get('model', '')} (verifier {c.name}, frozen, {MODELS[c.name]})"
                for c in {c.key: c for c in verifiers}.values()
                if c.name in MODELS
            ],
            top_p=recipe.rollout.top_p,
            top_k=recipe.rollout.top_k,
            experts=create is None or create.model_type not in DENSE,
            observation_coef=recipe.episodes.observation_coef,
        )


def turned(rl: RlConfig, rollout: RolloutConfig, guard: GuardConfig, times: int) -> tuple[RlConfig, RolloutConfig]:
    """Return both sections with the number that the guard's knob names multiplied `times` times.

    Raises: ValueError for a knob that is no such number; pydantic's own for a value that its section refuses.
    """
    for name, factor in guard.knob.items():
        section, _, field = name.rpartition(".")
        if section == "rl.optimizer" and field in OF_OPTIMIZER:
            value = _number(name, getattr(rl.optimizer, field)) * factor**times
            optimizer = OptimizerConfig.model_validate({**rl.optimizer.model_dump(), field: value})
            rl = rl.model_copy(update={"optimizer": optimizer})
        elif name == "rollout.temperature":
            rollout = rollout.model_copy(update={"temperature": rollout.temperature * factor**times})
        elif section == "rl.algorithm":
            params = _params(rl)
            if getattr(params, ADAPTIVE.get(field, ""), None) is not None:
                raise ValueError(f"guard.knob: {name} follows {ADAPTIVE[field]} by itself; name another number")
            value = _number(name, getattr(params, field, None)) * factor**times
            rl = rl.model_copy(update={"algorithm": {**rl.algorithm, field: value}})
        else:
            known = ", ".join(f"rl.optimizer.{n}" for n in OF_OPTIMIZER)
            raise ValueError(
                f"guard.knob cannot turn {name}; it can {known}, rollout.temperature, or a number of rl.algorithm, "
                "e.g. rl.algorithm.kl_coef"
            )
    return rl, rollout


def _params(rl: RlConfig) -> Any:
    return load_algorithm(*chosen(rl.algorithm))[0]


def _number(name: str, value: Any) -> float:
    """Return the value. Raises: ValueError if it cannot be multiplied, or if multiplying does not change it."""
    if not isinstance(value, float) or value == 0:
        raise ValueError(
            f"guard.knob: {name} is {value!r} here, which is no number to multiply; set it, or name another"
        )
    return value


def check_guard(rl: RlConfig, recipe: Recipe) -> None:
    """Refuse a roll-back that cannot be done, or a knob with nothing to turn. Raises: ValueError, ConfigError."""
    guard = recipe.guard
    if guard.action == "roll_back" and recipe.train.backend == "deepspeed":
        raise ValueError(
            f"guard.action=roll_back cannot go back within a run of train.backend={recipe.train.backend!r}; set "
            "guard.action: stop, or train.backend: torch or fsdp"
        )
    for times in range(1, guard.max_roll_backs + 1 if guard.knob else 1):
        check_rl(turned(rl, recipe.rollout, guard, times)[0], recipe.scoring)


def parts_of(rl: RlConfig) -> Parts:
    """The parts of the recipe's algorithm. Raises: UnknownName, ConfigError."""
    return load_algorithm(*chosen(rl.algorithm))[1]


def check_rl(rl: RlConfig, scoring: ScoringConfig) -> None:
    """Refuse what makes no sense for the algorithm chosen.

    Raises: ValueError naming field, value and remedy; ConfigError for an algorithm that does not exist.
    """
    name, params = chosen(rl.algorithm)
    _, parts = load_algorithm(name, params)
    weights, num = parts.advantage.options.get("weights"), 1 + len(scoring.components)
    if parts.needs_components and num < 2:
        raise ValueError(
            f"algorithm {name!r} takes several rewards one by one and the recipe has one; add others under "
            "scoring.components, e.g. {verifier: {name: format}}, or use grpo"
        )
    if parts.needs_no_negative:
        scoring.require_no_negative(name)
    if isinstance(weights, tuple) and len(weights) != num:
        raise ValueError(
            f"rl.algorithm.weights has {len(weights)} numbers for {num} rewards (the row's own, then "
            "scoring.components); give one for each, or none to take scoring.components' weights"
        )
    if rl.reference is not None and rl.reference.schedule == "none" and parts.needs_reference:
        raise ValueError(
            f"rl.reference.schedule is 'none' and the kl in the {parts.kl.where} of algorithm {name!r} needs a "
            "reference; set rl.algorithm.kl_coef: 0, or another schedule"
        )
    if rl.critic is not None and parts.critic is None:
        raise ValueError(f"rl.critic is given but algorithm {name!r} has no critic; drop rl.critic, or use ppo")
    if rl.critic is not None and parts.critic is not None and parts.critic.learning_rate is not None:
        raise ValueError(
            f"rl.critic.learning_rate={rl.critic.learning_rate:g} and critic_learning_rate="
            f"{parts.critic.learning_rate:g} of rl.algorithm both set the critic's learning rate; drop one of them"
        )
    if rl.group_size < 2 and parts.needs_group:
        raise ValueError(f"group_size must be >= 2 to form a baseline, got {rl.group_size}; set rl.group_size")
    if rl.select.keep == "informative" and rl.group_size < 2:
        raise ValueError(
            f"a group of {rl.group_size} is never informative; set rl.select.keep: all, or rl.group_size >= 2"
        )
    if parts.updates.num_minibatches > rl.prompts_per_step:
        raise ValueError(
            f"num_minibatches={parts.updates.num_minibatches} is more than rl.prompts_per_step={rl.prompts_per_step}; "
            "lower rl.algorithm.num_minibatches or raise rl.prompts_per_step"
        )


def check_sampling(rl: RlConfig, rollout: RolloutConfig) -> None:
    """Refuse a cut of the sampled distribution that training would not know of.

    Raises: ValueError naming field, value and remedy.
    """
    parts = parts_of(rl)
    if rollout.top_p == 1 and rollout.top_k == 0:
        return
    cut = f"rollout.top_p={rollout.top_p:g} and rollout.top_k={rollout.top_k}"
    if not parts.masks.keep_sampling:
        if "cut_sampling" not in parts.allow:
            raise ValueError(
                f"{cut} cut off tokens that training would not: {UNUSUAL['cut_sampling']}. Set "
                "rl.algorithm.keep_sampling: true, or top_p: 1 and top_k: 0, or ask for it with "
                "rl.algorithm.allow: [cut_sampling]"
            )
        return
    if rollout.top_k > rollout.max_kept:
        raise ValueError(
            f"rollout.top_k={rollout.top_k} leaves more tokens than rollout.max_kept={rollout.max_kept} records; raise "
            "max_kept or lower top_k"
        )
    if rollout.engine != "torch" and rollout.top_k == 0:
        raise ValueError(
            f"rl.algorithm.keep_sampling with rollout.engine={rollout.engine!r} and {cut}: vLLM records sets only "
            "where top_k bounds them; set rollout.top_k, to rollout.max_kept at most, or rollout.engine: torch"
        )


def check_lag(rl: RlConfig, rollout: RolloutConfig, train: TrainConfig) -> None:
    """Refuse old responses where nothing corrects for them, or their policy cannot be kept. Raises: ValueError."""
    if rollout.publish_every == 1 and rollout.max_staleness == 0:
        return
    parts = parts_of(rl)
    asked = "publish_every" if rollout.publish_every > 1 else "max_staleness"
    asked = f"rollout.{asked}={getattr(rollout, asked)}"
    bypassed = parts.mismatch.stale == "bypass"
    if bypassed and parts.ratio_entry.is_one and "stale_without_ratio" not in parts.allow:
        raise ValueError(
            f"{asked} trains on old responses and the algorithm has no ratio: {UNUSUAL['stale_without_ratio']}. Set "
            "rl.algorithm.mismatch_stale: decoupled, or ask for it with rl.algorithm.allow: [stale_without_ratio]"
        )
    check_older_weights(rollout, train)


def most_tokens(recipe: Recipe, rl: RoundsConfig, greedy: bool, are_played: bool | None = None) -> int:
    """The tokens of one group whose responses are all as long as they may be, its greedy baseline included.

    are_played: True if prompts have environments; None: if the recipe says so.
    """
    if are_played is None:
        are_played = names_episodes(recipe.data, recipe.episodes)
    return (rl.group_size + greedy) * most_sampled(recipe.rollout, recipe.episodes, are_played)


def check_budget(recipe: Recipe, rl: RlConfig) -> None:
    """Refuse a budget of tokens that one step might pass. Raises: ValueError with the least that will do."""
    least = rl.prompts_per_step * most_tokens(recipe, rl, parts_of(rl).needs_greedy)
    if rl.max_tokens is not None and rl.max_tokens < least:
        raise ValueError(
            f"rl.max_tokens={rl.max_tokens} is less than one step may generate, {least} (prompts_per_step x "
            "group_size x max_response_tokens, or the most of an episode); raise it, or set it to null"
        )
