"""The settings of a campaign: rounds of a recipe, firing by firing, until a limit is reached."""

from __future__ import annotations

from pydantic import Field, ValidationError

from verizero.pipeline.config.sections import Section
from verizero.pipeline.errors import ConfigError


class CampaignConfig(Section):
    """One firing's rounds, and when the campaign is over."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the campaign's folder, in `folder`")
    folder: str = "campaigns"
    rounds: int = Field(1, ge=1, description="RL rounds of one firing")
    max_rounds: int | None = Field(None, ge=1, description="RL rounds of all firings; null: no limit")
    max_tokens: int | None = Field(None, ge=1, description="tokens generated in RL by all firings; null: no limit")
    max_hours: float | None = Field(
        None, gt=0, description="hours of training in all, checked between firings; null: no limit"
    )
    target: float | None = Field(
        None, gt=0, le=1, description="end at this held-out pass@1 (mean of domains); null: no target"
    )
    patience: int | None = Field(
        None, ge=1, description="end after so many firings without a better pass@1; null: never"
    )


def campaign_config(**fields: object) -> CampaignConfig:
    """The checked fields; those that are None keep their defaults. Raises: ConfigError naming field and value."""
    try:
        return CampaignConfig.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])).replace("name", "campaign")
        raise ConfigError(f"{where}: {first['msg']}, got {first['input']!r:.100}; change it or leave it empty") from exc
