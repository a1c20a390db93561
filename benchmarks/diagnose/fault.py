"""A fault: what is changed in a healthy recipe, in its data, or in the code that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Patch = Callable[[], AbstractContextManager[None]]
"""Opens a block in which functions of the pipeline are replaced."""
Data = Callable[[Path, int], None]
"""(folder, seed) -> writes the files that the overrides name into the folder."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One mistake in a run that learns without it."""

    name: str
    cause: str
    """The cause that a diagnosis must name."""
    complaint: str
    """The fault in the words of a person who sees only the run."""
    overrides: tuple[str, ...] = ()
    """Changes of the recipe, as after `--set`."""
    healthy: str = "healthy"
    """Name of the recipe without the fault."""
    data: Data | None = None
    patch: Patch = nullcontext
    hurts: bool = True
    """True if the held-out pass@1 ends below that of the healthy run of the same seed, outside of both intervals."""
    shares_sft: bool = True
    """True if the fault begins after SFT, so that the healthy run's SFT is used."""

    @property
    def recipe(self) -> Path:
        """The recipe that the fault changes."""
        return HERE / f"{self.healthy}.yaml"


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Put `value` in the place of an attribute for the length of the block.

    Raises: AttributeError if there is no such attribute, so that a renamed function is not missed.
    """
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)
