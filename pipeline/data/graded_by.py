"""The verifier that a row names, and whether it can grade by the row's reference: asked before any training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from verizero.pipeline import registry
from verizero.pipeline.config.choices import ENVIRONMENT, VerifierChoice, is_path
from verizero.pipeline.errors import ConfigError, DataError, UnknownName
from verizero.verifiers.base import load


def verifier_key(value: Any) -> str | None:
    """Return a row's verifier as one text: a name, or {"name", "params"?} as `verizero verify` takes it too.

    Raises: DataError naming the field at fault.
    """
    if not isinstance(value, Mapping):
        return None if value is None else str(value)
    try:
        return VerifierChoice.model_validate(dict(value)).key
    except (ValidationError, ConfigError) as exc:
        text = str(exc) if isinstance(exc, ConfigError) else exc.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"the row's verifier {dict(value)!r:.120}: {text}") from exc


def gradable(verifier: str, reference: Any) -> Any:
    """Return the reference. Raises: DataError if its verifier, a name with or without parameters, cannot read it."""
    reads = _reader(verifier.partition("{")[0])
    if reads is not None:
        try:
            reads(reference)
        except (ValueError, RecursionError) as exc:  # an integer that is too long for a message, for example
            raise DataError(f"{verifier.partition('{')[0]} cannot read the reference: {exc}") from exc
    return reference


@lru_cache(maxsize=256)  # the registry searches folders and entry points
def unknown_verifier(key: str) -> str:
    """Return "" for a known name or a function of a file, with parameters or without; else what is wrong with it."""
    name = key.partition("{")[0]
    if name == ENVIRONMENT or is_path(name) or name in registry.names("verifiers"):
        return ""
    try:
        registry.find("verifiers", name)
    except UnknownName as exc:
        return str(exc)
    return f"{name!r} is no verifier"


@lru_cache(maxsize=64)
def _reader(name: str) -> Callable[[Any], object] | None:
    if is_path(name) or name not in registry.names("verifiers"):
        return None
    return load(name).reads
