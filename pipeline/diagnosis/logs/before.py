"""Check the options of another trainer before any training: numbers that no run learns with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verizero.pipeline.diagnosis.finding import Evidence, Finding, Level
from verizero.pipeline.diagnosis.logs import find
from verizero.pipeline.diagnosis.logs.facts import recipe_of
from verizero.pipeline.diagnosis.logs.logged import Logged
from verizero.pipeline.diagnosis.logs.script import line_of, settings_of_file, words_of
from verizero.pipeline.diagnosis.logs.tool import Tool
from verizero.pipeline.diagnosis.logs.words import ANY_TOOL
from verizero.pipeline.diagnosis.ranking import ranked
from verizero.pipeline.diagnosis.run_facts import RunFacts
from verizero.pipeline.errors import ConfigError

RATES = (1e-8, 1e-4)
"""Learning rates of RL between which published runs lie, with and without adapters."""
USUAL_RATE, USUAL_RATE_OF_ADAPTERS = 1e-6, 1e-5


class Check(NamedTuple):
    """Values of an option with which no run learns, and the sentence that is shown for them."""

    field: str
    """The option's field of a recipe."""
    is_odd: Callable[[float], bool]
    cause: str
    level: Level
    confidence: float
    sentence: str
    """With a place for the value."""
    algorithm: str | None = None
    """The one that it is asked for; None: all."""


RATE, GROUP, CLIP = "rl.optimizer.learning_rate", "rl.group_size", "rl.algorithm.clip_low"
RATE_SENTENCE = (
    f"The learning rate is {{:g}}. Published runs of RL lie between {RATES[0]:g} and {RATES[1]:g}, most at "
    f"{USUAL_RATE:g}, with adapters at {USUAL_RATE_OF_ADAPTERS:g}."
)
GROUP_SENTENCE = "A group has {:g} responses: most have equal rewards."
CLIP_SENTENCE = "The clip range is {:g}; usual is "
CHECKS = (
    Check(RATE, lambda x: x < RATES[0], "learning_rate_low", "warning", 0.8, RATE_SENTENCE),
    Check(RATE, lambda x: x > RATES[1], "learning_rate_high", "warning", 0.8, RATE_SENTENCE),
    Check(
        "rl.algorithm.kl_coef", lambda x: x >= 0.5, "kl_too_strong", "problem", 0.8,
        "The coefficient of the KL term is {:g}; usual are 0 to 0.1.",
    ),
    Check(GROUP, lambda x: x < 2, "advantages_vanish", "problem", 0.7, GROUP_SENTENCE),
    Check(GROUP, lambda x: 2 <= x < 4, "advantages_vanish", "warning", 0.7, GROUP_SENTENCE),
    Check(
        "rollout.temperature", lambda x: x < 0.4, "advantages_vanish", "problem", 0.8,
        "At temperature {:g} responses to a prompt are alike.",
    ),
    Check(
        "rollout.top_p", lambda x: x < 0.98, "sampling_differs", "warning", 0.6,
        "Responses are sampled with top-p {:g}, and the trainer computes probabilities of all tokens.",
    ),
    Check(
        CLIP, lambda x: x < 1e-2, "clip_stops_learning", "problem", 0.7, CLIP_SENTENCE + "0.2 for ratios of tokens.",
        algorithm="grpo",
    ),
    Check(
        CLIP, lambda x: x >= 5e-2, "clip_stops_learning", "problem", 0.7,
        CLIP_SENTENCE + "0.0003 for ratios of sequences.", algorithm="gspo",
    ),
    Check(
        "rl.optimizer.max_grad_norm", lambda x: 0 < x < 1e-3, "gradients_always_clipped", "warning", 0.7,
        "Gradients are cut to the norm {:g}; usual is 1.",
    ),
    Check(
        "rl.algorithm.entropy_coef", lambda x: x < 0, "entropy_collapse", "problem", 0.8,
        "The entropy term has the coefficient {:g}: it rewards low entropy.",
    ),
)  # fmt: skip


def check(words: Sequence[str], name: str | None) -> tuple[list[Finding], str]:
    """Return the findings about a script, a configuration, or options of a command, and a line that says what was read.

    Raises: ConfigError if no option of a trainer is among them.
    """
    settings: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    for word in words:
        path = Path(word)
        own = settings_of_file(path) if path.is_file() else words_of([word])
        settings |= own
        given_by |= dict.fromkeys(own, word)
    tool = find.TOOLS[name] if name in find.TOOLS else _tool_of(settings)
    logged = Logged(settings=settings)
    facts = RunFacts(recipe_of(logged, tool), (), (), ())
    algorithm = facts.setting("rl", "algorithm", "name")
    findings = []
    for asked in CHECKS:
        value = facts.setting(*asked.field.split("."))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and asked.algorithm in (None, algorithm) and asked.is_odd(value):
            findings.append(_finding(tool, settings, given_by, asked, value))
    known = sum(option in tool.options for option in settings)
    return ranked(findings), f"{known} options of {tool.title} were read, without running anything: {', '.join(words)}"


def _finding(tool: Tool, settings: dict[str, Any], given_by: dict[str, str], asked: Check, value: float) -> Finding:
    option = next(name for name, own in tool.options.items() if own.field == asked.field and name in settings)
    shown = tool.written.format(option=option, value=settings[option])
    remedy = tool.remedies.get(asked.cause) or ANY_TOOL[asked.cause]
    sentence = asked.sentence.format(value)
    word = given_by[option]
    evidence = Evidence(word, line_of(Path(word), option) if Path(word).is_file() else 1, shown)
    return Finding(asked.cause, asked.level, asked.confidence, sentence, (evidence,), remedy)


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
