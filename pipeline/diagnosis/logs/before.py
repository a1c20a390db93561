"""Check the options of another trainer before any training: numbers that no run learns with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.diagnosis.finding import Evidence, Finding, Level
from verizero.pipeline.diagnosis.logs import find
from verizero.pipeline.diagnosis.logs.facts import recipe_of
from verizero.pipeline.diagnosis.logs.logged import Logged
from verizero.pipeline.diagnosis.logs.script import settings_of_file, words_of
from verizero.pipeline.diagnosis.logs.tool import Tool
from verizero.pipeline.diagnosis.logs.words import ANY_TOOL
from verizero.pipeline.diagnosis.ranking import ranked
from verizero.pipeline.errors import ConfigError

RATES = (1e-8, 1e-4)
"""Learning rates of RL between which published runs lie, with and without adapters."""
USUAL_RATE, USUAL_RATE_OF_ADAPTERS = 1e-6, 1e-5
Result = tuple[str, Level, str, float, str]
"""Cause, level, the field of the recipe, confidence, sentence."""


def check(words: Sequence[str], name: str | None) -> tuple[list[Finding], str]:
    """Return the findings about a script, a configuration, or options of a command, and a line that says what was read.

    Raises: ConfigError if no option of a trainer is among them.
    """
    settings: dict[str, Any] = {}
    for word in words:
        path = Path(word)
        settings |= settings_of_file(path) if path.is_file() else words_of([word])
    tool = find.TOOLS[name] if name in find.TOOLS else _tool_of(settings)
    logged = Logged(settings=settings)
    recipe = recipe_of(logged, tool)
    results = [rule(_Options(recipe)) for rule in CHECKS]
    findings = [_finding(tool, settings, words[0], result) for result in results if result is not None]
    known = sum(option in tool.options for option in settings)
    return ranked(findings), f"{known} options of {tool.title} were read, without running anything: {', '.join(words)}"


class _Options:
    """The options as fields of a recipe."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        self.recipe = recipe

    def number(self, field: str) -> float | None:
        """Return an option that is a number; None if it is not given."""
        value: Any = self.recipe
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rate(options: _Options) -> Result | None:
    field = "rl.optimizer.learning_rate"
    rate = options.number(field)
    if rate is None or RATES[0] <= rate <= RATES[1]:
        return None
    is_high = rate > RATES[1]
    return (
        "learning_rate_high" if is_high else "learning_rate_low",
        "warning",
        field,
        0.8,
        f"The learning rate is {rate:g}. Published runs of RL lie between {RATES[0]:g} and {RATES[1]:g}, most at "
        f"{USUAL_RATE:g}, with adapters at {USUAL_RATE_OF_ADAPTERS:g}.",
    )


def _kl(options: _Options) -> Result | None:
    field = "rl.algorithm.kl_coef"
    coef = options.number(field)
    if coef is None or coef < 0.5:
        return None
    return "kl_too_strong", "problem", field, 0.8, f"The coefficient of the KL term is {coef:g}; usual are 0 to 0.1."


def _group(options: _Options) -> Result | None:
    field = "rl.group_size"
    size = options.number(field)
    if size is None or size >= 4:
        return None
    level: Level = "problem" if size < 2 else "warning"
    return "advantages_vanish", level, field, 0.7, f"A group has {size:g} responses: most have equal rewards."


def _temperature(options: _Options) -> Result | None:
    field = "rollout.temperature"
    temperature = options.number(field)
    if temperature is None or temperature >= 0.4:
        return None
    return (
        "advantages_vanish",
        "problem",
        field,
        0.8,
        f"At temperature {temperature:g} responses to a prompt are alike.",
    )


def _top_p(options: _Options) -> Result | None:
    field = "rollout.top_p"
    top_p = options.number(field)
    if top_p is None or top_p >= 0.98:
        return None
    return (
        "sampling_differs",
        "warning",
        field,
        0.6,
        f"Responses are sampled with top-p {top_p:g}, and the trainer computes probabilities of all tokens.",
    )


def _clip(options: _Options) -> Result | None:
    field = "rl.algorithm.clip_low"
    clip = options.number(field)
    algorithm = options.recipe.get("rl", {}).get("algorithm", {}).get("name")
    if clip is None or (clip >= 1e-2 if algorithm == "grpo" else clip < 5e-2):
        return None
    usual = "0.2 for ratios of tokens" if algorithm == "grpo" else "0.0003 for ratios of sequences"
    return "clip_stops_learning", "problem", field, 0.7, f"The clip range is {clip:g}; usual is {usual}."


def _gradient(options: _Options) -> Result | None:
    field = "rl.optimizer.max_grad_norm"
    norm = options.number(field)
    if norm is None or not 0 < norm < 1e-3:
        return None
    return "gradients_always_clipped", "warning", field, 0.7, f"Gradients are cut to the norm {norm:g}; usual is 1."


def _entropy(options: _Options) -> Result | None:
    field = "rl.algorithm.entropy_coef"
    coef = options.number(field)
    if coef is None or coef >= 0:
        return None
    return (
        "entropy_collapse",
        "problem",
        field,
        0.8,
        f"The entropy term has the coefficient {coef:g}: being sure is paid.",
    )


CHECKS: tuple[Callable[[_Options], Result | None], ...] = (
    _rate,
    _kl,
    _group,
    _temperature,
    _top_p,
    _clip,
    _gradient,
    _entropy,
)


def _finding(tool: Tool, settings: dict[str, Any], file: str, result: Result) -> Finding:
    cause, level, field, confidence, sentence = result
    option = next(name for name, own in tool.options.items() if own.field == field and name in settings)
    shown = tool.written.format(option=option, value=settings[option])
    remedy = tool.remedies.get(cause) or ANY_TOOL[cause]
    return Finding(cause, level, confidence, sentence, (Evidence(file, 1, shown),), remedy)


def _tool_of(settings: dict[str, Any]) -> Tool:
    counts = {name: sum(o in settings for o in tool.options) for name, tool in find.TOOLS.items()}
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        known = ", ".join(list(find.TOOLS["trl"].options)[:3])
        raise ConfigError(
            f"no option of a trainer was found; give a script with GRPOConfig({known}, ...), Hydra's a.b=value, or a "
            "configuration, and say whose it is: --from trl"
        )
    return find.TOOLS[best]
