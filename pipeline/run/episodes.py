"""Builds the setup of a run's episodes: its environments, its limits, and how turns are written as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from verizero.pipeline.config.choices import EnvironmentChoice
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.data.template_gate import template_note
from verizero.pipeline.data.turns import PlainTurns, turns_of
from verizero.pipeline.environments.base import BoundEnvironment, ToolSchema, load
from verizero.pipeline.errors import ConfigError, DataError, boundary
from verizero.pipeline.rollout.episode import EpisodeLimits
from verizero.pipeline.rollout.play import EpisodeSetup
from verizero.pipeline.run.data import RunData
from verizero.pipeline.types import Prompt

AGENT = "agent"
"""The environment that starts a program, whose first request would be needed to know its tools."""


def build_episodes(config: RunConfig, data: RunData, base_dir: Path, context: int | None) -> EpisodeSetup | None:
    """Return the setup of the run's episodes; None if no prompt names an environment.

    `context`: the longest sequence of the policy in tokens; None: no limit.
    Raises: ConfigError for a stage or an engine that plays no episodes; DataError naming the row whose environment
    does not exist or refuses its parameters.
    """
    prompts = [*data.train, *data.evaluation]
    if all(p.environment is None for p in prompts):
        return None
    check_stages(config)
    how = config.episodes
    if config.rollout.engine != "torch" and (longest := config.rollout.vllm.max_model_tokens) is not None:
        context = longest if context is None else min(context, longest)
    limits = EpisodeLimits(
        max_turns=how.max_turns,
        max_tokens=how.max_tokens,
        context=context,
        max_unread=how.max_unread,
        ends_when_cut=how.cut_turn == "end",
        wall_s=how.wall_s,
        retries=how.retries,
        shorten=shortener(data.renderer.tokenizer, how.max_observation_tokens),
    )
    environments = bind_environments(prompts, config.data.environments, base_dir)
    threads = ThreadPoolExecutor(how.workers, "environment")
    conversing = turns_of(data.renderer)
    if isinstance(conversing, PlainTurns):
        conversing.require_observations()
    return EpisodeSetup(environments, conversing, limits, threads, how.max_open, how.next_turn == "together")


def shortener(tokenizer: Any, most: int | None) -> Callable[[str], str] | None:
    """Return a function that leaves out the middle of texts of more than `most` tokens; None if there is no limit."""
    if most is None:
        return None

    def shorten(text: str) -> str:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) <= most:
            return text
        head, tail = tokenizer.decode(ids[: most - most // 2]), tokenizer.decode(ids[len(ids) - most // 2 :])
        return f"{head} ... {len(ids) - most} tokens left out ... {tail}"

    return shorten


def tools_of(config: RunConfig, base_dir: Path) -> Callable[[Prompt], Sequence[ToolSchema]]:
    """Return a function that returns the tools of a prompt's environment; each environment is started once.

    An agent brings its own tools with each request, so none are known before. The function raises DataError for an
    environment that does not start.
    """
    known: dict[str, Sequence[ToolSchema]] = {}

    def tools(prompt: Prompt) -> Sequence[ToolSchema]:
        key = prompt.environment
        choice = None if key is None else config.data.environments.get(key)
        if key is None or (key if choice is None else choice.name) == AGENT:
            return ()
        if key not in known:
            bound = bind_environments([prompt], config.data.environments, base_dir)[key]
            with boundary(DataError, f"row {prompt.id!r}: its environment {key!r} does not start"):
                environment = bound.make(prompt, 0, 0)
                try:
                    known[key] = environment.start().tools
                finally:
                    environment.close()
        return known[key]

    return tools


def check_template(config: RunConfig, data: RunData, base_dir: Path) -> str:
    """Return where the chat template rewrites episodes, in words or "". Raises: ConfigError if it shows no tools."""
    played = [p for p in (*data.train, *data.evaluation) if p.environment is not None]
    if not played or data.renderer.template.name != "chat":
        return ""
    tools_for = tools_of(config, base_dir)
    tools = {tool.name: tool for prompt in played for tool in tools_for(prompt)}
    has_system = any(p.system is not None for p in played) or data.renderer.template.system is not None
    return template_note(turns_of(data.renderer), tuple(tools.values()), config.seed, has_system=has_system)


def check_stages(config: RunConfig) -> None:
    """Raise ConfigError for a stage, or an option of the engine, that cannot play prompts with an environment."""
    odd = next((s for s in config.stages if not config.section_of(s).plays_episodes), None)
    if odd is not None:
        played = sorted(kind for kind, section in config.kinds().items() if section.plays_episodes)
        raise ConfigError(
            f"stage {odd.name!r} of kind {odd.kind} samples single responses, and rows of the data have an "
            f"environment; use stages of kind {', '.join(played)}, or leave the rows out"
        )
    how = config.rollout
    if how.engine == "vllm" and how.vllm.tensor_parallel > 1:
        raise ConfigError(
            f"rollout.engine=vllm with rollout.vllm.tensor_parallel={how.vllm.tensor_parallel} asks all ranks in "
            "lockstep, and episodes end at different turns; set rollout.engine: vllm_server"
        )


def languages_of(prompts: Iterable[Prompt], chosen: Mapping[str, EnvironmentChoice], base: Path) -> frozenset[str]:
    """Return the languages of the programs that the environments of `prompts` run in the sandbox.

    An environment that does not exist, or that refuses its parameters, is refused by `bind_environments`, which names
    the row.
    """
    languages: set[str] = set()
    for key in {p.environment for p in prompts} - {None}:
        choice = chosen.get(str(key)) or EnvironmentChoice.of_key(str(key), base)
        with suppress(ConfigError):
            languages |= load(choice.name, choice.path, base).bind(choice.params, base).params.languages()
    return frozenset(languages)


def bind_environments(
    prompts: Iterable[Prompt], chosen: Mapping[str, EnvironmentChoice], base: Path
) -> dict[str, BoundEnvironment]:
    """Return the environments that `prompts` name, by key. A key that is not in `chosen` is a plain name.

    Raises: DataError naming the first row whose environment does not exist or refuses its parameters.
    """
    bound: dict[str, BoundEnvironment] = {}
    for prompt in prompts:
        key = prompt.environment
        if key is None or key in bound:
            continue
        choice = chosen.get(key) or EnvironmentChoice.of_key(key, base)
        try:
            bound[key] = load(choice.name, choice.path, base).bind(choice.params, base)
        except ConfigError as exc:
            raise DataError(f"row {prompt.id!r}: {exc}") from exc
    return bound
