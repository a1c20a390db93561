"""Parts by name, in combinations that no paper has: `{name: custom, advantage: group_mean, surrogate: cispo, …}`.

A part is a name, which takes the catalog's numbers, or a mapping of a name and numbers:
`surrogate: {name: clip, clip_high: 0.28}`. A sequence-level ratio has no default clip: give a clip of its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.catalog import ADVANTAGES, SURROGATES, Entry
from verizero.pipeline.rl.parts import Aggregate, Critic, Part, Parts, PolicyParams

SOURCE = "the recipe"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """The parts and their numbers."""

    advantage: str | dict[str, Any] = Field(description="how rewards become advantages")
    ratio: str = Field(description="level of the importance ratio")
    surrogate: str | dict[str, Any] = Field(description="what is maximised per token or response")
    aggregate: Aggregate = Field(description="how the surrogate's values become one number")
    norm_length: int | None = Field(None, ge=1, description="constant length; null: the longest response")
    critic: Critic | None = Field(
        None, description="{shared, loss_coef, clip, warmup_steps}; only for an advantage that needs values"
    )


def parts(params: Params) -> Parts:
    """Return the parts that the recipe names."""
    return params.of_parts(
        _part("advantage", params.advantage, ADVANTAGES),
        params.ratio,
        _part("surrogate", params.surrogate, SURROGATES),
        params.aggregate,
        norm_length=params.norm_length,
        critic=params.critic,
    )


def _part(field: str, choice: str | dict[str, Any], known: Mapping[str, Entry]) -> Part:
    options = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{field} needs a name, e.g. {{name: clip, clip_high: 0.28}}, got {choice!r}")
    defaults = {key: option.default for key, option in known[name].options.items()} if name in known else {}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return Part(name, {**defaults, **values})
