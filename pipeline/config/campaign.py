"""Settings of a campaign, which trains some rounds of a recipe at each firing, until a limit is reached."""

from __future__ import annotations

from pydantic import Field, ValidationError

from verizero.pipeline.config.sections import Section
from verizero.pipeline.errors import ConfigError


class CampaignConfig(Section):
    """The rounds of a firing, and the limits that end the campaign."""

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
    """Return the checked settings; None means the default. Raises: ConfigError naming field and value."""
    try:
        return CampaignConfig.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError as exc:
        first = exc.errors()[0]
        location = ".".join(map(str, first["loc"])).replace("name", "campaign")
        raise ConfigError(
            f"{location}: {first['msg']}, got {first['input']!r:.100}; change it or leave it empty"
        ) from exc
