"""`verizero explain`: the objective of a recipe as a formula with its numbers. Loads no tensors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from verizero.pipeline.algorithms.base import chosen, explain_algorithm
from verizero.pipeline.commands.arguments import add_recipe, recipe_of
from verizero.pipeline.config.episodes import longest_response
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.rl.divergences import explain as explain_distillation
from verizero.pipeline.rl.explain import Setting
from verizero.pipeline.shown import show

DENSE = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})
"""Architectures of new models that are known to have no experts."""
MODELS = {"reward_model": "here", "reference_model": "here", "judge": "at its own endpoint"}
"""Verifiers that ask a model -> where that model runs."""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("explain", help="the objective of a recipe as a formula with its numbers")
    add_recipe(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the page."""
    show(explain_recipe(recipe_of(arguments)))


def explain_recipe(config: RunConfig) -> str:
    """Return a page for each stage of RL and of distillation, or a line that says that the recipe has none."""
    stages = [s for s in config.stages if s.kind in ("rl", "distill")]
    if not stages:
        return "this recipe has no stage of RL or distillation"
    pages = [_explain_stage(config.of_stage(s.name)) for s in stages]
    if len(pages) == 1:
        return pages[0]
    return "\n\n".join(f"stage {s.name}\n{page}" for s, page in zip(stages, pages, strict=True))


def _explain_stage(config: RunConfig) -> str:
    if config.stages[0].kind == "distill" and config.distill is not None:
        return explain_distillation(config.distill.objective(config.rollout.temperature))
    assert config.rl is not None
    return explain_algorithm(
        *chosen(config.rl.algorithm),
        max_response_tokens=longest_response(config.rollout, config.episodes),
        setting=setting_of(config),
        weights=config.scoring.weights,
    )


def setting_of(config: RunConfig) -> Setting:
    """Return the recipe's choices outside the algorithm that the objective depends on."""
    rl, create = config.rl, config.model.create
    moves = {} if rl is None or rl.reference is None else rl.reference.model_dump(exclude_none=True)
    when = ", ".join([moves.pop("schedule"), *(f"{k} {v}" for k, v in moves.items())]) if moves else None
    return Setting(
        reference=when,
        reward_models=list(_reward_models(config)),
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
        experts=create is None or create.model_type not in DENSE,
        observation_coef=config.episodes.observation_coef,
    )


def _reward_models(config: RunConfig) -> Iterator[str]:
    verifiers = [*config.data.verifiers.values(), *(c.verifier for c in config.scoring.components)]
    for choice in {c.key: c for c in verifiers}.values():
        if choice.name is not None and choice.name in MODELS:
            model = choice.params.get("model", "")
            yield f"reward model {model} (verifier {choice.name}, frozen, {MODELS[choice.name]})"
