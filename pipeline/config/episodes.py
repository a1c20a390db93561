"""The `episodes` section of a recipe: the limits of an episode, and how its turns are played."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from verizero.pipeline.config.data import DataConfig
from verizero.pipeline.config.rollout import RolloutConfig
from verizero.pipeline.config.sections import LaunchConfig, Section


class EpisodesConfig(Section):
    """Episodes of prompts that name an environment. A turn has `rollout.max_response_tokens` at most."""

    max_turns: int = Field(8, ge=1, description="most turns that the policy takes")
    max_tokens: int | None = Field(
        None, ge=1, description="most tokens that the policy samples in an episode; null: no limit besides max_turns"
    )
    max_observation_tokens: int | None = Field(
        None, ge=8, description="a longer message of the environment is cut in the middle, and counted; null: no limit"
    )
    max_unread: int = Field(
        2, ge=0, description="turns in a row with an unreadable call that are answered with the reason"
    )
    cut_turn: Literal["end", "answer"] = Field(
        "end", description="a turn cut at its length limit; end: ends the episode; answer: the environment answers it"
    )
    wall_s: float | None = Field(
        None, gt=0, description="most seconds of the environment's work in an episode; null: no limit, equal bytes"
    )
    next_turn: Literal["together", "as_ready"] = Field(
        "together",
        description="together: all open episodes sample their next turn in one call, and equal seeds give equal bytes; "
        "as_ready: an episode samples as soon as its environment has answered, which is faster with slow tools, and "
        "bytes may differ between runs",
    )
    max_open: int = Field(256, ge=1, description="most episodes that are open at a time")
    workers: int = Field(8, ge=1, description="threads that run environments")
    retries: int = Field(1, ge=0, description="new beginnings after an environment broke, before the group loses it")


def longest_response(rollout: RolloutConfig, episodes: EpisodesConfig) -> int:
    """Return the tokens that algorithms take for the maximum of a response, or of an episode."""
    return rollout.max_response_tokens if episodes.max_tokens is None else episodes.max_tokens


def max_sampled_tokens(rollout: RolloutConfig, episodes: EpisodesConfig, are_played: bool) -> int:
    """Return the maximum of sampled tokens in a response, or in an episode if `are_played`."""
    if not are_played:
        return rollout.max_response_tokens
    limit = episodes.max_turns * rollout.max_response_tokens
    return limit if episodes.max_tokens is None else min(limit, episodes.max_tokens)


def has_episodes(data: DataConfig, episodes: EpisodesConfig) -> bool:
    """True if the recipe plays episodes: a source has an environment, or the limits of episodes are set."""
    return bool(data.environments) or episodes != EpisodesConfig()


def time_dependent_settings(episodes: EpisodesConfig) -> list[str]:
    """Return settings that make a run depend on time, so that equal seeds may give different bytes."""
    settings = [f"episodes.wall_s={episodes.wall_s:g}"] if episodes.wall_s is not None else []
    return settings + ([f"episodes.next_turn={episodes.next_turn}"] if episodes.next_turn == "as_ready" else [])


def check_episodes(launch: LaunchConfig, episodes: EpisodesConfig) -> None:
    """Raise ValueError for a limit above the timeout of ranks, which wait for an episode's environment."""
    if launch.kind != "none" and episodes.wall_s is not None and episodes.wall_s >= launch.phase_timeout_s:
        raise ValueError(
            f"episodes.wall_s={episodes.wall_s:g} and launch.phase_timeout_s={launch.phase_timeout_s:g}: a rank that "
            "waits for an environment would be ended before the episode; set the first below the second"
        )
