"""All checks of a recipe before training, in the order in which they are printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from verizero.pipeline.checks.before import references, template
from verizero.pipeline.checks.before.parts import LocalParts, evidence_at, read_local_parts
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.finding import RECIPE, Checked, Evidence, Finding, ranked
from verizero.pipeline.checks.run_facts import RunFacts
from verizero.pipeline.config.auto import FAR, far_rates
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.data.prompts import spread
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.run.callbacks import load_callbacks
from verizero.pipeline.run.demonstrations import rows_of
from verizero.pipeline.scoring.sandbox_setup import close_sandbox
from verizero.pipeline.types import Prompt

PLACE = re.compile(r"^(?:row )?(?P<place>\S.*? (?:line|row) \d+)(?=[:, ])")
MOST_PROMPTS, MOST_DEMONSTRATIONS = 2000, 500
MANY, SOME = 0.5, 0.02
"""Shares of demonstrations that are longer than a response may be: a problem, and a warning."""


def check(
    config: RunConfig, base_dir: Path, sample: Callable[[LocalParts], Checked] | None = None
) -> tuple[list[Checked], list[Finding]]:
    """Return the checks of a recipe, tried and not tried, and all findings, the most likely cause first.

    `sample` is the last check, which samples from the model: only where those before it have found nothing against it.
    Raises: ConfigError, or DataError for a verifier or a callback, that a run would refuse too.
    """
    load_callbacks(config.callbacks, base_dir)
    recipe = read_local_parts(config, base_dir)
    try:
        looks = (data, template.look, template.stop_token, references.look, room, rates)
        checks = [look(recipe) for look in looks]
        has_problem = any(f.level == "problem" for c in checks if c.name == "template" for f in c.findings)
        unfit = "data" if recipe.refused else "template" if has_problem else None
        if sample is not None and unfit is not None and not recipe.is_made_here:
            checks.append(Checked("pass rates", False, f"first correct what the check {unfit} found"))
        elif sample is not None:
            checks.append(sample(recipe))
    finally:
        close_sandbox()
    return checks, ranked([finding for c in checks for finding in c.findings])


def data(recipe: LocalParts) -> Checked:
    """Tell what a run refuses of the data, what it leaves out, and whether held-out prompts are trained on."""
    if recipe.refused:
        return Checked("data", True, "a run does not start with it", (refused(recipe.refused),))
    of_parts = (
        ("data.train", len(recipe.train)),
        ("data.evaluation", len(recipe.evaluation)),
        ("demonstrations", len(recipe.demonstrations)),
    )
    read = [f"{num} rows of {name}" for name, num in of_parts if num]
    read += [f"{num} pairs of {stage}.pairs" for stage, num in recipe.pairs.items()]
    if not read:
        return Checked("data", False, recipe.why_none)
    # The rule that reads the same note in a run's folder.
    facts = RunFacts(recipe.config.model_dump(mode="json"), (), (), (), info={"data_notes": recipe.notes})
    leak = CAUSES["evaluation_leak"].look(facts)
    shown = (Evidence(RECIPE, 1, f"data.on_overlap: {recipe.config.data.on_overlap}"),)
    findings = () if leak is None else (replace(leak, evidence=shown),)
    return Checked("data", True, "; ".join([*read, *recipe.notes]), findings)


def refused(text: str) -> Finding:
    """Return the finding for an error of data, whose text ends with its remedy behind the last semicolon."""
    what, _, remedy = text.rpartition("; ")
    what, remedy = (what, remedy) if what else (text, "correct the data, or the recipe's section data")
    match = PLACE.match(what)
    shown = Evidence(RECIPE, 1, "data")
    if match is not None:
        shown = evidence_at(match["place"], f"{what[match.end() + 1 :]:.90}")
    sentence = f"A run refuses its data: {what.rstrip('.')}."
    return Finding(1.0, sentence, (shown,), remedy, cause="data_refused")


def room(recipe: LocalParts) -> Checked:
    """Compare the lengths of demonstrations in tokens with that of a response."""
    config, tokenizer = recipe.config, recipe.model.tokenizer
    if tokenizer is None:
        return Checked("room", False, recipe.model.no_tokenizer)
    some = spread(recipe.demonstrations, MOST_DEMONSTRATIONS)
    if not some:
        reason = recipe.why_none if config.needs_demonstrations else "no stage learns from demonstrations of the data"
        return Checked("room", False, reason)
    limit = config.rollout.max_response_tokens
    long: list[tuple[Prompt, int]] = []
    try:
        renderer = Renderer(tokenizer, config.data.template)
        for prompt in some:
            rows, _ = rows_of(renderer, None, [prompt])
            longest = max((end - start for row in rows for start, end in row.spans), default=0)
            if longest > limit:
                long.append((prompt, longest))
        longest_prompt = max((len(renderer.prompt_ids(p)) for p in recipe.train[:MOST_PROMPTS]), default=1)
    except DataError as exc:
        return Checked("room", False, str(exc))
    result, share = f"{len(some)} demonstrations; {limit} tokens for a response", len(long) / len(some)
    if share < SOME:
        return Checked("room", True, result)
    longest = max(n for _, n in long)
    remedy = f"--set rollout.max_response_tokens={longest}"
    if recipe.model.context is not None and longest_prompt + longest > recipe.model.context:
        remedy = f"shorten them, or use a model whose context has {longest_prompt + longest} tokens"
    finding = Finding(
        min(1.0, 0.7 + share),
        f"{len(long)} of {len(some)} demonstrations are longer than the {limit} tokens that a response may have: "
        "a policy that learns from them is cut off.",
        tuple(recipe.evidence(p, f"{n} tokens") for p, n in long[:3]),
        remedy,
        cause="length_cap",
        level="problem" if share >= MANY else "warning",
    )
    return Checked("room", True, result, (finding,))


def rates(recipe: LocalParts) -> Checked:
    """Compare the learning rate of each stage with those that models of this size are trained with."""
    from verizero.pipeline.run.build import num_parameters_of

    try:
        num = num_parameters_of(recipe.config)
    except ConfigError as exc:
        return Checked("rates", False, str(exc))
    findings = [
        Finding(
            0.5,
            f"Stage {stage} has a learning rate of {rate:g}, and models of {num / 1e6:.3g} million parameters are "
            f"trained with about {near:g}: more than {FAR:g} times {'less' if rate > near else 'more'}.",
            (),
            f"--set {field}={near:g}, or null, which takes that rate",
            cause="learning_rate_high" if rate > near else "learning_rate_low",
            level="warning",
        )
        for stage, field, rate, near in far_rates(recipe.config, num)
    ]
    return Checked("rates", True, f"{len(findings)} learning rates are far from the table's", tuple(findings))
