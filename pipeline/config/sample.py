"""Stages of rejection sampling: they sample answers, and save verified ones as demonstrations."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from verizero.pipeline.config.sections import Section
from verizero.pipeline.config.stages import DEMONSTRATIONS, StageSection


class RequestConfig(Section):
    """Settings for requests to an endpoint."""

    api_key_variable: str | None = Field(None, description="environment variable that holds the key")
    timeout_s: float = Field(300, gt=0)
    retries: int = Field(3, ge=0, le=20)
    parallel: int = Field(8, ge=1, le=256, description="most requests at a time")

    @field_validator("url", check_fields=False)
    @classmethod
    def _http(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"must begin with http:// or https://, got {url!r}")
        return url


class EndpointConfig(RequestConfig):
    """A model at an OpenAI-compatible endpoint, which answers in place of the policy."""

    url: str = Field(description="base URL, e.g. http://localhost:8000/v1")
    model: str = Field(min_length=1, description="name of the model at the endpoint")


class KeepConfig(Section):
    """Rules by which answers are saved. A dropped answer is counted under the first rule that it breaks."""

    min_score: float = Field(1.0, ge=0, le=1, description="least score of the verdict")
    truncated: bool = Field(False, description="keep answers that were cut at the length limit too")
    distinct: Literal["exact", "normalised"] = Field(
        "exact", description="keep one of equal answers; normalised: equal but for case, spaces and punctuation"
    )
    max_per_prompt: int = Field(4, ge=1, description="of more, those with the highest scores are kept")


class SampleConfig(StageSection):
    """Rejection sampling: verified answers of the policy or an endpoint are kept as demonstrations."""

    trains_policy: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset({"prompts", "rollout", "scoring", "sandbox"})
    leaves: ClassVar[frozenset[str]] = frozenset({DEMONSTRATIONS})

    prompts: int | None = Field(
        None, ge=1, description="number of training prompts, drawn by each stage for itself; null: all"
    )
    samples: int = Field(8, ge=1, description="answers a prompt")
    keep: KeepConfig = KeepConfig()
    hint: str | None = Field(
        None,
        description="text with {question} and {answer}: prompts without a kept answer are asked again with it, and the "
        "answers then kept are stored with the plain question (rationalisation, 2203.14465). Prompts whose reference "
        "is not a text or number, e.g. a program's tests, are not asked again, and are counted",
    )
    endpoint: EndpointConfig | None = Field(None, description="null: the policy answers")

    @model_validator(mode="after")
    def _fits(self) -> SampleConfig:
        if self.hint is not None:
            missing = [m for m in ("{question}", "{answer}") if m not in self.hint]
            if missing:
                raise ValueError(f"sample.hint must hold {missing[0]}, got {self.hint!r:.80}")
        return self
