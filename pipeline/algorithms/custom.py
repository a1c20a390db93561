"""Parts by name, in combinations that no paper has: `{name: custom, advantage: group_mean, surrogate: cispo, …}`.

A part is a name, which takes the numbers of DEFAULTS, or a mapping of a name and numbers:
`surrogate: {name: clip, clip_high: 0.28}`. `kl` is `none` or `{in: loss, form: k3, coef: 0.001}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from pipeline.algorithms.base import PolicyParams
from pipeline.errors import ConfigError
from pipeline.rl.catalog import Option
from pipeline.rl.parts import Aggregate, Critic, Part, Parts, RatioLevel

SOURCE = "the recipe"
DEPARTURES: tuple[str, ...] = ()

_SPREAD: dict[str, Option] = {"ddof": 1, "eps": 1e-6}
_CLIP: dict[str, Option] = {"clip_low": 0.2, "clip_high": 0.2}
DEFAULTS: dict[str, dict[str, Option]] = {
    "gae": {
        "gamma": 1.0,
        "lam": 0.95,
        "lam_critic": None,
        "length_alpha": None,
        "bootstrap_truncated": False,
        "whiten": True,
        **_SPREAD,
    },
    "group_norm": {"baseline": "mean", "std": "group", **_SPREAD},
    "reward_to_go_norm": {"gamma": 1.0, **_SPREAD},
    "group_mean_batch_norm": _SPREAD,
    "normalize_then_sum": {"weights": None, **_SPREAD},
    "clip": _CLIP,
    "dual_clip": {**_CLIP, "dual": 3.0},
    "two_sided": {**_CLIP, "delta": 4.0},
    "cispo": {"clip_low": None, "clip_high": 4.0},
    "geometric_mean": {"clip": 0.4},
    "soft_gate": {"tau_positive": 1.0, "tau_negative": 1.05},
    "squared": {"tau": 0.5},
    "gamma_weight": {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
    "clip_cov": {**_CLIP, "share": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
    "kl_cov": {"share": 2e-3, "coef": 1.0},
}
"""The numbers of a part that is only named. A sequence-level ratio has no default clip: give one of its size."""


class Params(PolicyParams):
    """The parts and their numbers."""

    advantage: str | dict[str, Any] = Field(description="how rewards become advantages")
    ratio: RatioLevel = Field(description="level of the importance ratio")
    surrogate: str | dict[str, Any] = Field(description="what is maximised per token or response")
    aggregate: Aggregate = Field(description="how it becomes one number")
    norm_length: int | None = Field(None, ge=1, description="constant length; null: the longest response")
    critic: Critic | None = Field(None, description="{shared, loss_coef, clip, warmup_steps}; with gae only")

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
    """The parts that the recipe names."""
    return Parts(
        advantage=_part("advantage", params.advantage),
        ratio=params.ratio,
        surrogate=_part("surrogate", params.surrogate),
        aggregate=params.aggregate,
        norm_length=params.norm_length,
        critic=params.critic,
        **params.rest(),
    )


def _part(field: str, given: str | dict[str, Any]) -> Part:
    options = {"name": given} if isinstance(given, str) else dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{field} needs a name, e.g. {{name: clip, clip_high: 0.28}}, got {given!r}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return Part(name, {**DEFAULTS.get(name, {}), **values})
