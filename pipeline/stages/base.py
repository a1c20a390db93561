"""A kind of stage: its section of the recipe, which has its facts, and the function that does its items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verizero.pipeline.config.stages import StageSection
    from verizero.pipeline.loop.phases import PhaseWrapper
    from verizero.pipeline.run.session import Session
    from verizero.pipeline.run.state import Item


@dataclass(frozen=True, slots=True)
class StageKind:
    """`KIND` of a module of this package, or of one that an entry point of the group `verizero.stages` names.

    The name of the file, or of the entry point, is that of the kind and of its section.
    """

    section: type[StageSection]
    run: Callable[[Session, Item, PhaseWrapper], None]
    """Does one item of the run's schedule, from the step that the state names."""
