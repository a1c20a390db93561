"""Parts by name, in combinations that no paper has: `{name: custom, advantage: group_mean, surrogate: cispo, …}`.

A part is a name, which takes the catalog's numbers, or a mapping of a name and numbers:
`surrogate: {name: clip, clip_high: 0.28}`. A sequence-level ratio has no default clip: give a clip of its size. `kl` is
`none` or `{in: loss, form: k3, coef: 0.001}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from verizero.pipeline.algorithms.base import PolicyParams
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.catalog import ADVANTAGES, SURROGATES, Entry
from verizero.pipeline.rl.parts import Aggregate, Critic, Part, Parts

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

    @model_validator(mode="before")
    @classmethod
    def _spread_kl(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "kl" not in data:
            return data
        kl, rest = data["kl"], {k: v for k, v in data.items() if k != "kl"}
        if kl in (None, "none"):
            return {**rest, "kl_in": "none"}
        if not isinstance(kl, Mapping):
            raise ValueError(f"kl must be none or a mapping like {{in: loss, form: k3, coef: 0.001}}, got {kl!r}")
        return {**rest, **{f"kl_{key}": value for key, value in kl.items()}}


def parts(params: Params) -> Parts:
    """Return the parts that the recipe names."""
    return Parts(
        advantage=_part("advantage", params.advantage, ADVANTAGES),
        ratio=params.ratio,
        surrogate=_part("surrogate", params.surrogate, SURROGATES),
        aggregate=params.aggregate,
        norm_length=params.norm_length,
        critic=params.critic,
        **params.rest(),
    )


def _part(field: str, choice: str | dict[str, Any], known: Mapping[str, Entry]) -> Part:
    options = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{field} needs a name, e.g. {{name: clip, clip_high: 0.28}}, got {choice!r}")
    defaults = {key: option.default for key, option in known[name].options.items()} if name in known else {}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return Part(name, {**defaults, **values})
