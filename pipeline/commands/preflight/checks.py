"""All checks of a recipe before training, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from verizero.pipeline.commands.preflight import (
    data,
    demonstrations,
    pass_rates,
    programs,
    rates,
    references,
    room,
    rows,
    stop_token,
    template,
)
from verizero.pipeline.commands.preflight.checked import Checked, not_tried
from verizero.pipeline.commands.preflight.local_parts import LocalParts, read_local_parts
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.ranking import ranked
from verizero.pipeline.run.callbacks import load_callbacks
from verizero.pipeline.scoring.sandbox_setup import close_sandbox

Check = Callable[[LocalParts], Checked]
WITHOUT_MODEL: tuple[Check, ...] = (
    data.look,
    template.look,
    stop_token.look,
    references.look,
    programs.look,
    demonstrations.look,
    rows.look,
    rates.look,
    room.look,
)
"""Checks that load no weights."""


def check(config: RunConfig, base_dir: Path, without_model: bool = False) -> tuple[list[Checked], list[Finding]]:
    """Return the checks of a recipe, tried and not tried, and all findings, the most likely cause first.

    `without_model`: nothing is sampled.
    Raises: ConfigError, or DataError for a verifier or a callback, that a run would refuse too.
    """
    load_callbacks(config.callbacks, base_dir)
    recipe = read_local_parts(config, base_dir)
    try:
        checks = [look(recipe) for look in WITHOUT_MODEL]
        if not without_model:
            checks.append(_sampled(recipe, checks))
    finally:
        close_sandbox()
    return checks, ranked([finding for c in checks for finding in c.findings])


def _sampled(recipe: LocalParts, checks: Sequence[Checked]) -> Checked:
    """Return the check that samples, which needs a template that can be written and prompts that fit."""
    unfit = [
        c.name for c in checks for f in c.findings if c.name in (room.NAME, template.NAME) and f.level == "problem"
    ]
    if unfit and not recipe.is_made_here:
        return not_tried(pass_rates.NAME, f"first mend what the check {unfit[0]} found")
    return pass_rates.look(recipe)
