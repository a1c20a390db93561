"""Verifiers of a recipe, bound for a check before training; those that run programs get the recipe's sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commands.before.at_hand import AtHand
from pipeline.config.choices import ENVIRONMENT
from pipeline.scoring.purity import may_leave
from pipeline.scoring.sandbox_setup import open_sandbox
from pipeline.scoring.score import Grader, bind_verifiers
from pipeline.types import Prompt


def name_of(recipe: AtHand, key: str) -> str:
    """Return the verifier's name; for a function of a file its key."""
    choice = recipe.config.verifiers.get(key)
    return key if choice is None else choice.name or key


def grader_of(recipe: AtHand, key: str, prompts: Sequence[Prompt]) -> Grader:
    """Return the verifier that prompts name by `key`.

    Raises: DataError for a verifier that does not exist or refuses its parameters; IsolationError or ConfigError where
    its programs cannot run here.
    """
    grader = bind_verifiers(prompts[:1], recipe.config.verifiers, recipe.base_dir)[key]
    open_sandbox(recipe.config.sandbox, [grader], lambda text: None)
    return grader


def is_cheap(recipe: AtHand, key: str, prompts: Sequence[Prompt]) -> bool:
    """True if the verifier needs neither a model nor a service, and grades what the policy says."""
    if key == ENVIRONMENT:
        return False
    return may_leave(bind_verifiers(prompts[:1], recipe.config.verifiers, recipe.base_dir)[key])
