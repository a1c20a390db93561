"""The section of stages that collect data: sample answers, keep verified ones, leave them as demonstrations."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.sections import Section
from pipeline.config.stages import DEMONSTRATIONS, StageSection


class EndpointConfig(Section):
    """A model behind an OpenAI-compatible endpoint, asked in place of the policy: the source of distillation data."""

    url: str = Field(description="base URL, e.g. http://localhost:8000/v1")
    model: str = Field(min_length=1, description="name of the model there")
    api_key_variable: str | None = Field(None, description="environment variable that holds the key")
    timeout_s: float = Field(300, gt=0)
    retries: int = Field(3, ge=0, le=20)
    backoff_s: float = Field(1.0, ge=0, description="wait before the first retry; doubles")
    parallel: int = Field(8, ge=1, le=256, description="requests at a time")
    max_tokens: int | None = Field(None, ge=1, description="of an answer there; null: rollout.max_response_tokens")

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"must begin with http:// or https://, got {url!r}")
        return url


class KeepConfig(Section):
    """Which of a prompt's answers are kept. What is left out is counted by the first reason that applies."""

    min_score: float = Field(1.0, ge=0, le=1, description="of the verdict, at least")
    min_tokens: int = Field(1, ge=1, description="of the answer, at least")
    max_tokens: int | None = Field(None, ge=1, description="of the answer, at most; null: any")
    truncated: bool = Field(False, description="answers cut at their length may be kept")
    distinct: Literal["none", "exact", "normalised"] = Field(
        "exact", description="normalised: answers that differ in case, spaces and punctuation only are one"
    )
    max_similarity: float | None = Field(
        None, gt=0, lt=1, description="of a kept answer's pairs of words to another's, as Jaccard index; null: any"
    )
    max_per_prompt: int = Field(4, ge=1)
    prefer: Literal["first", "shortest", "likeliest", "highest"] = Field(
        "first", description="which ones where more would do; likeliest: mean log-prob; highest: score"
    )

    @model_validator(mode="after")
    def _ordered(self) -> KeepConfig:
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(f"keep.max_tokens must be >= keep.min_tokens, got {self.max_tokens} < {self.min_tokens}")
        return self


class SampleConfig(StageSection):
    """Rejection sampling: answers of the policy or an endpoint, kept where verified, left as demonstrations."""

    trains_policy: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset({"prompts", "rollout", "scoring", "sandbox"})
    leaves: ClassVar[frozenset[str]] = frozenset({DEMONSTRATIONS})

    prompts: int | None = Field(None, ge=1, description="training prompts, drawn anew by each stage; null: all of them")
    samples: int = Field(8, ge=1, description="answers a prompt")
    keep: KeepConfig = KeepConfig()
    hint: str | None = Field(
        None,
        description="text with {question} and {answer}: prompts without a kept answer are asked again with it, and "
        "what is then kept stands under the plain question (rationalisation, 2203.14465); those whose reference is no "
        "text or number, e.g. a program's tests, are not, and counted",
    )
    endpoint: EndpointConfig | None = Field(None, description="null: the policy answers")

    @model_validator(mode="after")
    def _fits(self) -> SampleConfig:
        if self.hint is not None:
            missing = [m for m in ("{question}", "{answer}") if m not in self.hint]
            if missing:
                raise ValueError(f"sample.hint must hold {missing[0]}, got {self.hint!r:.80}")
        if self.endpoint is not None and self.keep.prefer == "likeliest":
            raise ValueError("sample.keep.prefer=likeliest needs log-probs, which endpoints do not give; use first")
        return self
