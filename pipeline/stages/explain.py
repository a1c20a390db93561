"""A recipe's objective in words: the algorithm's page with what the rest of the recipe decides. Loads no tensors."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.algorithms.base import explain_algorithm
from pipeline.config.data import VerifierChoice
from pipeline.config.run import RunConfig
from pipeline.rl.explain import Setting

DENSE = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})
"""Architectures of new models that are known to have no experts."""


def explain_recipe(config: RunConfig) -> str:
    """The page of `verizero explain`, one after the other for several stages of RL; one line for a recipe without."""
    stages = config.stages_of("rl")
    if not stages:
        return "this recipe has no RL stage"
    pages = [_explain_stage(config.of_stage(s.name)) for s in stages]
    if len(pages) == 1:
        return pages[0]
    return "\n\n".join(f"stage {s.name}\n{page}" for s, page in zip(stages, pages, strict=True))


def _explain_stage(config: RunConfig) -> str:
    assert config.rl is not None
    given = dict(config.rl.algorithm)
    return explain_algorithm(
        given.pop("name"),
        given,
        max_response_tokens=config.rollout.max_response_tokens,
        setting=setting_of(config),
        weights=config.scoring.weights,
    )


def setting_of(config: RunConfig) -> Setting:
    """What the recipe decides beside its algorithm."""
    rl, how, create = config.rl, config.rollout, config.model.create
    moves = {} if rl is None or rl.reference is None else rl.reference.model_dump(exclude_none=True)
    when = ", ".join([moves.pop("schedule"), *(f"{k} {v}" for k, v in moves.items())]) if moves else None
    return Setting(
        reference=when,
        reward_models=list(_reward_models(config)),
        top_p=how.top_p,
        top_k=how.top_k,
        experts=create is None or create.model_type not in DENSE,
    )


def _reward_models(config: RunConfig) -> Iterator[str]:
    chosen = [*config.data.verifiers.values(), *(c.verifier for c in config.scoring.components)]
    for choice in {c.key: c for c in chosen if _asks_a_model(c)}.values():
        where = "at its own endpoint" if choice.name == "judge" else "here"
        yield f"reward model {choice.params.get('model', '')} (verifier {choice.name}, frozen, {where})"


def _asks_a_model(choice: VerifierChoice) -> bool:
    return choice.name in ("reward_model", "reference_model", "judge")
