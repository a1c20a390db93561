"""Load suites and their rows: of the hub, where there is a network, else of files that a person has downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from verizero.pipeline.commands.suites.asking import Loaded
from verizero.pipeline.config.suites import Suite, load_suite
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.models.named import is_hub_reached, is_offline
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt


def load_suites(names: Sequence[str], data_dir: Path | None, changes: Mapping[str, int | None]) -> list[Loaded]:
    """Return the suites with their prompts. `changes`: limit, samples, max_tokens; None: the suite's own.

    Raises: ConfigError, DataError, which says what to download where the hub is not reached.
    """
    loaded: list[Loaded] = []
    for name in names:
        suite = load_suite(name.strip(), Path.cwd(), data_dir)
        prompts = _prompts(suite)
        odd = next((p.id for p in prompts if p.environment is not None), None)
        if odd is not None:
            raise DataError(f"suite {suite.name}: row {odd!r} has an environment; a suite grades one answer a row")
        for what, value in changes.items():
            if value is not None and value < 1:
                raise ConfigError(f"--{what.replace('_', '-')} must be >= 1, got {value}")
        limit = changes.get("limit")
        if limit is not None and limit < len(prompts):
            prompts = stream(0, "suite", suite.name).sample(prompts, limit)
            suite = suite.model_copy(update={"rows": suite.rows.model_copy(update={"limit": limit})})
        own = {key: value for key, value in changes.items() if key != "limit" and value is not None}
        loaded.append(Loaded(Suite.model_validate({**suite.model_dump(), **own}), prompts))
    names = [own.suite.name for own in loaded]
    if len(set(names)) < len(names):
        raise ConfigError(f"--suite names a suite twice: {', '.join(names)}; name each once")
    _require_distinct(loaded)
    return loaded


def _prompts(suite: Suite) -> list[Prompt]:
    hub = suite.rows.hub
    try:
        if hub is not None and not Path(hub.id).is_dir() and (is_offline() or not is_hub_reached()):
            raise DataError("the hub is not reached")
        return read_prompts([suite.rows], 0)[0]
    except DataError as exc:
        if hub is None:
            raise
        revision = f" --revision {hub.revision}" if hub.revision else ""
        raise DataError(
            f"suite {suite.name}: the rows of {hub.id} are not here ({exc}). Where there is a network: hf download "
            f"--repo-type dataset {hub.id}{revision} --local-dir {suite.name}; of what it writes, put the file of "
            f"{hub.config + ', ' if hub.config else ''}split {hub.split}, into a folder as {suite.name}.parquet, "
            ".jsonl or .csv, and name the folder with --data-dir"
        ) from exc


def _require_distinct(loaded: Sequence[Loaded]) -> None:
    """Raise DataError if two suites have a row of the same id."""
    names: dict[str, str] = {}
    for own in loaded:
        for prompt in own.prompts:
            if (other := names.setdefault(prompt.id, own.suite.name)) != own.suite.name:
                raise DataError(
                    f"suites {other} and {own.suite.name} both have a row {prompt.id!r}; set mapping.id: null in one"
                )
