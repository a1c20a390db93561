"""Fingerprints of stages: a hash of everything that a stage's result depends on, earlier stages included.

`stages.json` has those of the stages that were started. When the run is started again, `choose_checkpoint.py` compares
them with those of the recipe as it is now.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from verizero.pipeline.config.choices import REWARDS, VerifierChoice
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.servers import ServerParams
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.models.gguf_file import digest, is_gguf, located
from verizero.pipeline.registry import PICKLED
from verizero.pipeline.report.card import CARD
from verizero.pipeline.run.data import RunData

STAGES_FILE = "stages.json"
"""Name of the file that has the stages which were started, with their fingerprints."""
SANDBOX_MAY_CHANGE = frozenset({"min_level", "workers", "url", "token_env"})
"""Fields of `sandbox` that may change on resume: where programs run, not their limits."""
STAGES_MAY_CHANGE = frozenset({"evaluate_every"})
"""Fields of stages' sections that may change on resume: nothing that is trained depends on them."""
ENDPOINTS_MAY_CHANGE = frozenset({"url", "api_key_variable", "timeout_s", "retries", "parallel"})
"""Fields of `endpoint` and of teachers that may change on resume: where and how often one is asked, not which one."""


CODE = ("verifier ", "environment ", "agent ")
"""Beginnings of the names of fields that are hashes of code."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The inputs of a stage, and a hash of them and of all stages before it."""

    name: str
    kind: str
    fingerprint: str
    fields: dict[str, Any]
    """Values of the recipe by dotted name; hashes of rows and files."""


def fingerprints(config: RunConfig, data: RunData, base_dir: Path) -> list[Fingerprint]:
    """Return the fingerprints of all stages of the recipe, in order."""
    prints: list[Fingerprint] = []
    model = _model_files(config)
    for stage in config.stages:
        view = config.of_stage(stage.name)
        fields = {**recipe_fields(view), **model, **_data_fields(view, data), **_code_fields(view, base_dir)}
        # Chained: a change of one stage makes all later ones stale.
        before = prints[-1].fingerprint if prints else ""
        text = json.dumps([stage.name, stage.kind, fields, before], sort_keys=True, default=str)
        # Through JSON, so that tuples compare equal to the lists that the record gives back.
        prints.append(Fingerprint(stage.name, stage.kind, _hash(text.encode()), json.loads(json.dumps(fields))))
    return prints


def recipe_fields(view: RunConfig) -> dict[str, Any]:
    """Return the values of a recipe of one stage that its result depends on, by dotted name."""
    (stage,) = view.stages
    section = getattr(view, stage.kind)
    recipe = view.model_dump(mode="json")
    tree: dict[str, Any] = {name: recipe[name] for name in ("seed", "model", "train")}
    tree["data"] = {"template": recipe["data"]["template"]}
    # Each section names what it reads, so a change elsewhere leaves the stage valid.
    tree |= {name: recipe[name] for name in sorted(section.reads & recipe.keys())}
    if stage.start is not None:
        tree["from"] = stage.start
    tree[stage.kind] = {k: v for k, v in recipe[stage.kind].items() if k not in STAGES_MAY_CHANGE}
    if isinstance(algorithm := tree[stage.kind].get("algorithm"), dict) and "path" in algorithm:
        # By its code, not by where it lies.
        tree[stage.kind]["algorithm"] = algorithm | {"path": _hash(Path(algorithm["path"]).read_bytes())}
    for own in (tree[stage.kind], tree[stage.kind].get("distill") or {}):
        for name in ("endpoint", "teacher"):
            if isinstance(server := own.get(name), dict):
                own[name] = _without_address(server)
        if teachers := own.get("teachers"):
            own["teachers"] = {domain: _without_address(t) for domain, t in teachers.items()}
    if "sandbox" in tree:
        tree["sandbox"] = {k: v for k, v in tree["sandbox"].items() if k not in SANDBOX_MAY_CHANGE}
    if "rollout" in tree:
        how, tree["rollout"] = view.rollout, {k: v for k, v in tree["rollout"].items() if k != "server"}
        tree["rollout"]["vllm"] = _changing(how.vllm)
        if (servers := how.servers) is not None and servers is not how.vllm:  # an installed package's
            tree["rollout"]["server"] = _changing(servers)
    if "prompts" in section.reads:
        tree["data"]["sampling"] = recipe["data"]["sampling"]
        tree["data"]["verifiers"] = {c.key: c.model_dump(mode="json") for c in _choices_of_rows(view)}
    return dict(_leaves(tree))


def _changing(servers: ServerParams) -> dict[str, Any]:
    return {k: v for k, v in servers.model_dump(mode="json").items() if k not in servers.may_change}


def _without_address(server: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in server.items() if k not in ENDPOINTS_MAY_CHANGE}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the changes between the fields of two fingerprints, in words."""
    names = [*before, *(n for n in now if n not in before)]
    return [_change(n, before.get(n), now.get(n)) for n in names if before.get(n) != now.get(n)]


def is_code(field: str) -> bool:
    """True if a field of a fingerprint is the hash of a file with code of the user's: of a verifier or environment."""
    return field.startswith(CODE)


def read_stages_file(folder: Path) -> list[Fingerprint]:
    """Return the stages that the run in `folder` has started. Raise RunError if the file was changed by hand."""
    path = folder / STAGES_FILE
    if not path.exists():
        return []
    try:
        return [Fingerprint(**row) for row in json.loads(path.read_text())["stages"]]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise RunError(f"{path} cannot be read ({exc}); restore it, or start under another name") from exc


def write_stages_file(folder: Path, begun: Sequence[Fingerprint]) -> None:
    """Write the stages that were started, unless the file already says so."""
    text = json.dumps({"stages": [asdict(f) for f in begun]}, indent=1, ensure_ascii=False).encode()
    if not (folder / STAGES_FILE).is_file() or (folder / STAGES_FILE).read_bytes() != text:
        write_atomic(folder / STAGES_FILE, text)


def _change(name: str, before: Any, now: Any) -> str:
    if any(str(v).startswith("sha256:") for v in (before, now)):
        return f"{name} changed"
    return f"{name} was {before!r}, is {now!r}"


def _data_fields(view: RunConfig, data: RunData) -> dict[str, str]:
    """Return hashes of the rows that the stage reads."""
    (stage,) = view.stages
    kinds = set(getattr(view, stage.kind).reads) - {"demonstrations"}
    kinds |= {"demonstrations"} if view.needs_demonstrations else set()
    rows: dict[str, Sequence[Any]] = {
        "prompts": data.train,
        "demonstrations": data.demonstrations,
        "text": data.text.get(stage.name, []),
        "pairs": data.pairs[stage.name].pairs if stage.name in data.pairs else [],
    }
    names = {"prompts": "rows of data.train", "demonstrations": "the demonstrations", "text": "the texts"}
    names["pairs"] = "the pairs"
    # The limits of episodes matter only where there are some.
    is_played = "prompts" in kinds and any(p.environment is not None for p in data.train)
    episodes = view.episodes.model_dump(mode="json", exclude={"workers"}) if is_played else {}
    limits = {f"episodes.{name}": value for name, value in episodes.items()}
    return limits | {names[what]: hash_rows(rows[what]) for what in sorted(kinds & rows.keys())}


def _code_fields(view: RunConfig, base_dir: Path) -> dict[str, str]:
    """Return hashes of the verifiers that are files of the user's."""
    if "scoring" not in getattr(view, view.stages[0].kind).reads:
        return {}
    chosen = [*_choices_of_rows(view), *(c.verifier for c in view.scoring.components)]
    environments = [s.environment for s in view.data.train if s.environment is not None]
    files: list[tuple[str, str]] = []
    for what, choices in (("verifier", chosen), ("environment", environments)):
        files += [(what, c.path.rpartition(":")[0]) for c in choices if c.path is not None]
        summed = [where for c in choices if c.name == REWARDS for where in c.params["functions"].values()]
        files += [(what, where.rpartition(":")[0]) for where in summed if ":" in where]
    for choice in environments:  # the program of an agent
        files += [("agent", str(word)) for word in choice.params.get("command", ())]
    # The loader reports missing files. A word of a command may be too long for a name, where `Path` would raise.
    there = [(what, name) for what, name in sorted(set(files)) if os.path.isfile(base_dir / name)]
    # A function of a notebook by its source: its file names the process that it was passed in, too.
    there = [(what, str(Path(name).with_suffix(".py")) if name.endswith(PICKLED) else name) for what, name in there]
    return {f"{what} {name}": _hash((base_dir / name).read_bytes()) for what, name in there}


def _choices_of_rows(view: RunConfig) -> list[VerifierChoice]:
    return list({s.verifier.key: s.verifier for s in view.data.train if s.verifier is not None}.values())


def _model_files(config: RunConfig) -> dict[str, str]:
    """Return hashes of the first stage's model and of teachers, if they are on this machine."""
    paths = {"model.path": config.model.path} | {f"teacher {path}": path for path in config.teachers}
    hashes = {name: _hash_files(Path(path)) for name, path in paths.items() if path and Path(path).is_dir()}
    fields = {f"files of {name}": value for name, value in hashes.items()}
    if config.model.path is not None and is_gguf(config.model.path):
        fields["file of model.path"] = f"sha256:{digest(located(config.model.path))}"
    return fields


def _hash_files(folder: Path) -> str:
    whole = hashlib.sha256()
    # The card may be written later, and says nothing to the model.
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != CARD):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder)} {digest}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def hash_rows(rows: Sequence[Any]) -> str:
    """Return a hash of the texts, prompts or pairs."""
    whole = hashlib.sha256()
    encode = json.JSONEncoder(sort_keys=True, default=_fields).encode
    for row in rows:
        whole.update(encode(row).encode())
        whole.update(b"\n")
    return f"sha256:{whole.hexdigest()}"


def _fields(value: Any) -> Any:
    # `asdict` copies all that the row holds, and takes thrice as long.
    return {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else str(value)


def _hash(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
