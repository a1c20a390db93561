"""Settings of a campaign, which trains some rounds of a recipe at each run, until a limit is reached."""

from __future__ import annotations

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from verizero.pipeline.config.sections import Section
from verizero.pipeline.errors import ConfigError


class CampaignConfig(Section):
    """The rounds of a run, and the limits that end the campaign. Command and form have the same fields."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the campaign's folder, in `folder`")
    folder: str = "campaigns"
    rounds: int = Field(1, ge=1, description="RL rounds of one run")
    max_rounds: int | None = Field(None, ge=1, description="end it after so many RL rounds of all runs")
    max_tokens: int | None = Field(None, ge=1, description="end it after so many tokens generated in RL by all runs")
    max_hours: float | None = Field(
        None, gt=0, description="end it after so many hours of training in all, checked after each run"
    )
    target: float | None = Field(None, gt=0, le=1, description="end it at this held-out pass@1 (mean of domains)")
    patience: int | None = Field(None, ge=1, description="end it after so many runs without a better pass@1")


def settings() -> dict[str, FieldInfo]:
    """Return the fields that each run may set: all but where the campaign is."""
    return {name: field for name, field in CampaignConfig.model_fields.items() if name not in ("name", "folder")}


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
