"""Shares of a bound that programs reach, read from `shares.yaml`, whose header says what each column is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("shares.yaml")
Phase = Literal["copy", "decode", "forward", "update", "link", "publish"]
Source = Literal["estimated", "published", "measured"]
ALIKE = 1.25
"""Sizes of models within this factor count as one."""
TRUST: tuple[Source, ...] = ("estimated", "published", "measured")


class Row(BaseModel):
    """A share that was measured, published or estimated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    phase: Phase
    runs: Literal["torch", "vllm", "vllm_server", "deepspeed", "fsdp2", "peers"] | None = None
    kind: Literal["dense", "mixture"] | None = None
    billions: float | None = Field(None, gt=0)
    gpu: str | None = None
    share: float = Field(gt=0, le=1)
    source: Source
    note: str = ""


class Table(BaseModel):
    """All rows of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A share, and the least trusted source among the rows that it comes from."""

    value: float
    source: Source


@cache
def table() -> tuple[Row, ...]:
    """Return the rows of the file."""
    return Table.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8"))).rows


def share_of(
    phase: Phase, runs: str, kind: str, billions: float, gpu: str, rows: tuple[Row, ...] | None = None
) -> Share:
    """Return the share that the program `runs` reaches in a phase, on a model of so many billions of parameters.

    Rows that name the program replace those for any. A row replaces others of about its size that are of any GPU or
    less trusted. A share between two sizes is interpolated over the logarithm of the size. Raises: LookupError if no
    row applies.
    """
    fitting = [r for r in rows or table() if r.phase == phase and r.kind in (None, kind) and r.gpu in (None, gpu)]
    named = [r for r in fitting if r.runs == runs]
    fitting = named or [r for r in fitting if r.runs is None]
    fitting = [r for r in fitting if r.billions is not None] or fitting
    if not fitting:
        raise LookupError(f"{FILE.name} has no row for {phase} by {runs} of a {kind} model on {gpu}; add one")
    best: dict[float, Row] = {}
    for row in sorted(fitting, key=lambda r: (r.gpu is None, -TRUST.index(r.source))):
        size = row.billions or 1.0
        if all(max(size, other) > ALIKE * min(size, other) for other in best):
            best[size] = row
    low = max((s for s in best if s <= billions), default=min(best))
    high = min((s for s in best if s >= billions), default=max(best))
    weight = 0.0 if low == high else math.log(billions / low) / math.log(high / low)
    source = min(best[low].source, best[high].source, key=TRUST.index)
    return Share(best[low].share * (1 - weight) + best[high].share * weight, source)
