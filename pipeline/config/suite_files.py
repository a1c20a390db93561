"""Find the files of evaluation suites, and read their trees, which the section of `suites.py` checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.config.yaml_reader import merge, read_mapping
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean, near_path

SUITES = Path(__file__).resolve().parents[2] / "configs" / "suites"
"""Folder of the suites that come with the project, one YAML file each."""


def suite_file(name: str, base: Path) -> Path:
    """Return the file of a suite: a shipped name, or a path that ends in .yaml, from `base`. Raises: ConfigError."""
    if name.endswith(".yaml"):
        path = base / Path(name).expanduser()
        if not path.is_file():
            raise ConfigError(f"suite {name!r}: there is no such file; {near_path(path, 'give a YAML file', '*.yaml')}")
        return path
    known = sorted(p.stem for p in SUITES.glob("*.yaml"))
    if name not in known:
        hint = did_you_mean(name, known, f"shipped: {', '.join(known)}.")
        raise ConfigError(f"no suite is called {name!r}; {hint} Or give the file of one of your own, x.yaml")
    return SUITES / f"{name}.yaml"


def suite_tree(name: str, base: Path) -> dict[str, Any]:
    """Return the tree of a suite, with its name in its rows and absolute paths. Raises: ConfigError naming the file."""
    path = suite_file(name, base)
    tree = read_mapping(path)
    rows = tree.get("rows")
    if not isinstance(rows, dict):
        raise ConfigError(f"{path} must hold `rows`, a source such as {{file: rows.jsonl, verifier: math}}")
    folder = path.resolve().parent
    rows = {"name": path.stem, "domain": path.stem, **rows}
    if isinstance(rows.get("file"), str):
        rows["file"] = str(folder / rows["file"])
    verifier = rows.get("verifier")
    if isinstance(verifier, dict) and isinstance(verifier.get("path"), str):
        rows["verifier"] = {**verifier, "path": str(folder / verifier["path"])}
    return {**tree, "rows": rows}


def with_suites(sources: Any, base: Path) -> Any:
    """Return sources with the rows of suites in place of their names: "gsm8k", or {suite: gsm8k, limit: 100}.

    What is next to a suite's name wins over its rows; a file takes the place of its data set. Raises: ConfigError.
    """
    return [_rows(s, base) for s in sources] if isinstance(sources, list | tuple) else sources


def _rows(source: Any, base: Path) -> Any:
    if isinstance(source, str):
        return suite_tree(source, base)["rows"]
    if not isinstance(source, Mapping) or "suite" not in source:
        return source
    rows = suite_tree(str(source["suite"]), base)["rows"]
    changes = {key: value for key, value in source.items() if key != "suite"}
    if "file" in changes or "hub" in changes:
        rows = {key: value for key, value in rows.items() if key not in ("file", "hub")}
    return merge(rows, changes)
