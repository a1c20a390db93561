"""The checkpoint that a run continues from: the newest whole one, before any change of the recipe or the data.

A change is seen by the stages' fingerprints: `stages.json` has those of the stages that were started. The last stage
that has begun keeps its length: more steps are a stage of their own. Changes of verifiers and environments in the
middle of a stage are listed in run.json, under `changes`.

Results that a run continues without are moved to `stale/N` in its folder. Half-written checkpoints are deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from verizero.pipeline.config.choices import REWARDS, VerifierChoice
from verizero.pipeline.config.recipes import Resume
from verizero.pipeline.config.run import RunConfig, section_class_of
from verizero.pipeline.errors import CheckpointError, ResumeRefused, RunError
from verizero.pipeline.host.disk import disk_errors, json_text, restore_folders, sha256_of, write_atomic
from verizero.pipeline.models.gguf_file import digest, is_gguf, located
from verizero.pipeline.registry import PICKLED
from verizero.pipeline.report.card import CARD
from verizero.pipeline.report.ended import INFO, end_reason
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.store import FILES
from verizero.pipeline.run.data import RunData
from verizero.pipeline.run.state import read_state
from verizero.pipeline.train import checkpoint

STAGES_FILE = "stages.json"
"""Name of the file that has the stages which were started, with their fingerprints."""
TRAIN_MAY_CHANGE = frozenset({"gradient_checkpointing", "micro_batch_tokens", "replicas"})
"""Fields of `train` that may change on resume: how an update is cut, not what it computes."""
SANDBOX_MAY_CHANGE = frozenset({"min_level", "workers", "url", "token_env"})
"""Fields of `sandbox` that may change on resume: where programs run, not their limits."""
STAGES_MAY_CHANGE = frozenset({"evaluate_every"})
"""Fields of stages' sections that may change on resume: nothing that is trained depends on them."""
ENDPOINTS_MAY_CHANGE = frozenset({"url", "api_key_variable", "timeout_s", "retries", "parallel"})
"""Fields of `endpoint` and of teachers that may change on resume: where and how often one is asked, not which one."""
CODE = ("verifier ", "environment ", "agent ")
"""Beginnings of the names of fields that are hashes of code."""
STALE_FOLDER = "stale"
"""Name of the folder with what was put aside: a numbered folder for each time."""
LENGTHS = frozenset({"rounds", "steps_per_round", "steps", "epochs"})
"""Names of the fields of a stage's section that say how long it is."""
MAX_SHOWN_CHANGES = 3
"""Changes that a message lists."""


def newest_folder(folder: Path, resume: Resume) -> Path | None:
    """Return the newest checkpoint of the run in `folder`, whole or not, where one may be resumed from."""
    folders = [] if resume == "never" else checkpoint.checkpoint_folders(folder / "checkpoints")
    return folders[0] if folders else None


def choose_checkpoint(
    folder: Path,
    resume: Resume,
    progress: Progress,
    prints: Sequence[Fingerprint],
    digests: checkpoint.Digests = checkpoint.NO_DIGESTS,
) -> Path | None:
    """Return the checkpoint to resume from, or None to start from the beginning. digests: those that are known.

    What a run writes again is moved to `folder`/stale/N: results of changed stages, whose fingerprints are not those of
    `prints`, and what came after the chosen checkpoint if newer ones are damaged.
    Raise ResumeRefused if `resume` is never and there is a checkpoint, or must and there is none; RunError if the
    recipe changed in what the first stage depends on; CheckpointError if there are checkpoints and none can be used.
    """
    root = folder / "checkpoints"
    if resume == "never" and checkpoint.checkpoint_folders(root):
        raise ResumeRefused(
            f"{folder} already holds a run, and resume is 'never'; use resume 'auto' to continue it, another name, or "
            "delete the folder"
        )
    path, damaged = newest_whole(root, digests)
    if path is None and resume == "must":
        raise ResumeRefused(
            f"{folder} has no checkpoint to resume from, and resume is 'must'; start it with resume 'auto'"
        )
    if path is None or damaged:
        # Moved, not deleted: nobody can tell here whether it was a try of a minute or the only trace of a week.
        stale_folder = put_aside(folder, path, ())
        if path is None:
            if stale_folder is not None:
                progress.say(
                    f"no checkpoint in {root}: starts from the beginning; what an earlier try wrote is kept in "
                    f"{stale_folder}"
                )
            return None
        for bad in damaged:
            progress.say(f"refused checkpoint {bad}; using the one before it")
        progress.say(f"continues from the older checkpoint {path.name}; what came after it is kept in {stale_folder}")
    return checkpoint_before_changes(folder, prints, path, progress, resume == "changed")


def newest_whole(
    root: Path, digests: checkpoint.Digests = checkpoint.NO_DIGESTS
) -> tuple[Path | None, list[checkpoint.Unusable]]:
    """Return the newest whole checkpoint and the damaged ones that are newer; None if there are no checkpoints at all.

    Only what was half written is deleted. Raise CheckpointError listing each checkpoint with the reason if none is
    whole, or if a newer one than that may be whole but cannot be read.
    """
    refused: list[checkpoint.Unusable] = []
    with disk_errors(f"reading {root}"):
        restore_folders(root)
    for path in checkpoint.checkpoint_folders(root):
        bad = checkpoint.damage_of(path, digests)
        if bad is None:
            if all(b.is_damaged for b in refused):
                return path, refused
            raise CheckpointError(_unusable(root, refused, path))
        refused.append(bad)
    if refused:
        raise CheckpointError(_unusable(root, refused))
    return None, []


def _unusable(root: Path, refused: Sequence[checkpoint.Unusable], older: Path | None = None) -> str:
    """Return the message on checkpoints of which the run cannot continue, with the ways out."""
    ways = ["start again under another name"]
    if older is None:
        ways.append(f"move {root} elsewhere, to start this run from the beginning")
    else:
        ways.append(f"move the folders named here out of {root}, to continue from the older {older.name}")
    if any(b.is_damaged for b in refused):
        ways.insert(0, "restore their files from a copy")
    if not all(b.is_damaged for b in refused):
        ways.insert(0, "make them readable (mount the disk, give back the permission, use the version that wrote them)")
    which = "no checkpoint" if older is None else "the newest checkpoint"
    return (
        f"{which} in {root} can{'' if older is None else 'not'} be used: {'; '.join(map(str, refused))}. Nothing was "
        f"changed or deleted. Either {', or '.join(ways)}"
    )


def checkpoint_before_changes(
    folder: Path, now: Sequence[Fingerprint], newest: Path, progress: Progress, accepts_code: bool = False
) -> Path | None:
    """Return `newest` if no stage up to it changed, else the checkpoint at the end of the last stage before the change.

    `now`: the stages' fingerprints as the recipe and the data are now. Results of the other stages are moved to
    `folder`/stale/N, and the reason is reported. One exception: a stage of which only files of verifiers and
    environments changed continues where it was, if `accepts_code` is set, or if the run ended there because graders
    failed. None: the run trained nothing yet, and begins again.
    Raise RunError if the first stage changed, so that there is nothing to resume from, or the length of the last one.
    """
    started = read_stages_file(folder)
    index = next((i for i, f in enumerate(started) if i >= len(now) or f.fingerprint != now[i].fingerprint), None)
    if index is None:
        return newest
    before, after = started[index], now[index] if index < len(now) else None
    why, state = _brief(_changes(before, after)), read_state(newest)
    ends = {name: newest.parent / f"{number:08d}" for name, number in state.stage_ends.items()}
    if state.stage.name == before.name:
        ends[before.name] = newest
    model = next((m for m in (folder / "model", newest / "model") if m.is_dir()), None)
    from_model = f", or start a new run from the model of this one (name=…, model.path={model})"
    new_run = from_model if model else ""
    is_same = after is not None and (before.name, before.kind) == (after.name, after.kind) and before.name in ends
    changed: set[str] = set()
    if after is not None and is_same:
        names = before.fields.keys() | after.fields.keys()
        changed = {name for name in names if before.fields.get(name) != after.fields.get(name)}
    code = set(filter(is_code, changed))
    has_trained = bool(state.num_done or state.step)  # else start again: the first evaluation used the old code
    if has_trained and index == len(started) - 1 and changed & {f"{before.kind}.{name}" for name in LENGTHS}:
        by_call = ", which run.train(steps=…) does" if section_class_of(before.kind).more_steps(1) else ""
        raise RunError(
            f"{folder}: {why}; a stage that has begun keeps its length. Undo the change, add a stage of kind "
            f"{before.kind} after it{by_call}{new_run}"
        )
    failed_here = state.stage.name == before.name and end_reason(folder) == "graders_failed"
    only_code = bool(code) and code == changed
    continues = only_code and has_trained and (accepts_code or failed_here)
    # The stages whose end has a checkpoint, up to the first change.
    good = _whole([f.name for f in started[: index + continues] if f.name in ends], ends, progress)
    if after is not None and continues and good and good[-1] == before.name:
        end = ends[after.name]
        note_change(folder, before.name, end, sorted(code), "resume" if accepts_code else "graders_failed")
        later = [f.name for f in started[index + 1 :]]
        kept_in = _keep(folder, [*started[:index], after], later, end)
        aside = f"; {_listed(later)} stale, and the earlier results are kept in {kept_in}" if kept_in else ""
        progress.say(f"{after.name} continues: {why}{aside}")
        return end
    if good:
        end, stale = ends[good[-1]], [f.name for f in started[len(good) :]]
        kept_in = _keep(folder, started[: len(good)], stale, end)
        if kept_in is not None:
            again, their = ("runs again", "its") if len(stale) == 1 else ("they run again", "their")
            progress.say(
                f"{_listed(stale)} stale: {why}; {again} from the end of {good[-1]}; {their} earlier results are kept "
                f"in {kept_in}"
            )
        return end
    if not has_trained:
        if (stale_folder := put_aside(folder, None, ())) is not None:
            kept = stale_folder.relative_to(folder)
            progress.say(f"begins again: {why}, and nothing was trained; what was written is kept in {kept}")
        return None
    remedy = "Undo the change"
    if only_code:
        remedy += ", continue with it from where the run is (resume='changed', --resume changed)"
    raise RunError(
        f"{folder} was started with another recipe or other data: {why}; there is no stage before {before.name} to "
        f"resume from. {remedy}{new_run}, or start from the beginning under another name"
    )


def _whole(names: list[str], ends: dict[str, Path], progress: Progress) -> list[str]:
    """Return the names without the last ones, as far as their checkpoints in `ends` are damaged."""
    while names and (bad := checkpoint.damage_of(ends[names[-1]])) is not None:
        if not bad.is_damaged:
            raise RunError(f"the checkpoint at the end of {names[-1]} cannot be used: {bad}; make it readable")
        progress.say(f"the checkpoint at the end of {names[-1]} is damaged ({bad}); using an earlier one")
        names = names[:-1]
    return names


def _keep(folder: Path, kept: Sequence[Fingerprint], stale: list[str], end: Path) -> Path | None:
    """Put aside the `stale` stages, which come after the ones that are kept; return the folder where they are then."""
    stale_folder = put_aside(folder, end, stale) if stale else None
    # After the move: if killed before, the next start finds the same difference and moves the rest.
    write_stages_file(folder, kept)
    return None if stale_folder is None else stale_folder.relative_to(folder)


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"


def _changes(before: Fingerprint, now: Fingerprint | None) -> list[str]:
    if now is None:
        return [f"the recipe has no stage {before.name} any more"]
    if (before.name, before.kind) != (now.name, now.kind):
        return [f"this stage was {before.name} (kind {before.kind}), is {now.name} (kind {now.kind})"]
    return differences(before.fields, now.fields) or ["it was made by another version of verizero"]


def _brief(changes: Sequence[str]) -> str:
    rest = len(changes) - MAX_SHOWN_CHANGES
    return "; ".join(changes[:MAX_SHOWN_CHANGES]) + (f"; and {rest} more" if rest > 0 else "")


def put_aside(folder: Path, end: Path | None, stages: Sequence[str]) -> Path | None:
    """Move to stale/N what was written after checkpoint `end` (None: everything), and the folders of `stages`.

    Return stale/N, or None if there was nothing to move. If this is killed at any point and called again, it moves the
    rest.
    """
    offsets = {} if end is None else json.loads((end / "state.json").read_text())["store"]["lengths"]
    # Log lines behind the checkpoint's offset; the store cuts them off when the session opens.
    tails = {name: _tail(folder / name, offsets.get(name, 0)) for name in FILES}
    later = [
        p for p in checkpoint.checkpoint_folders(folder / "checkpoints") if end is None or int(p.name) > int(end.name)
    ]
    stage_folders = [folder / "stages"] if end is None else [folder / "stages" / name for name in stages]
    if not later and not any(tails.values()):
        return None
    number = 1 + max((int(p.name) for p in (folder / STALE_FOLDER).glob("*") if p.name.isdigit()), default=0)
    target = folder / STALE_FOLDER / str(number)
    with disk_errors(f"putting earlier results into {target}"):
        (target / "checkpoints").mkdir(parents=True)
        for name, tail in tails.items():
            (target / name).write_bytes(tail)
        if (folder / STAGES_FILE).exists():
            shutil.copy2(folder / STAGES_FILE, target / STAGES_FILE)
        # Renamed, not copied: within one file system it is instant and each is whole or not moved.
        for path in (*stage_folders, *(folder / n for n in ("recipe.yaml", "summary.json", "report.html", "model"))):
            if path.exists():
                (target / path.relative_to(folder)).parent.mkdir(exist_ok=True)
                os.rename(path, target / path.relative_to(folder))
        # Checkpoints move last: while one is left, a repeated call still sees something to move.
        for path in reversed(later):
            os.rename(path, target / "checkpoints" / path.name)
    return target


def _tail(path: Path, start: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read()


def changes_of(folder: Path) -> list[dict[str, Any]]:
    """Return the changes that the run in `folder` has had so far: stage, checkpoint, files and why it was allowed."""
    with suppress(OSError, ValueError):
        changes: list[dict[str, Any]] = json.loads((folder / INFO).read_text(encoding="utf-8")).get("changes", [])
        return changes
    return []


def note_change(
    folder: Path, stage: str, end: Path, files: Sequence[str], allowed_by: Literal["resume", "graders_failed"]
) -> None:
    """Write into run.json that the stage continues from checkpoint `end` with changed files."""
    change = {"stage": stage, "checkpoint": end.name, "files": list(files), "allowed_by": allowed_by}
    changes = changes_of(folder)
    if change in changes:  # noted by a start that was killed
        return
    with disk_errors(f"writing into {folder}"):
        info = json.loads((folder / INFO).read_text(encoding="utf-8")) if (folder / INFO).is_file() else {}
        write_atomic(folder / INFO, json.dumps(info | {"changes": [*changes, change]}, indent=1).encode())


def changed_at(folder: Path, start: Path) -> bool:
    """True if files changed at the checkpoint `start`, so that what was graded before it has other rewards."""
    return any(change["checkpoint"] == start.name for change in changes_of(folder))


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
    tree["train"] = _without(tree["train"], TRAIN_MAY_CHANGE)
    tree["data"] = {"template": recipe["data"]["template"]}
    # Each section names what it reads, so a change elsewhere leaves the stage valid.
    tree |= {name: recipe[name] for name in sorted(section.reads & recipe.keys())}
    if stage.start is not None:
        tree["from"] = stage.start
    tree[stage.kind] = _without(recipe[stage.kind], STAGES_MAY_CHANGE)
    if isinstance(algorithm := tree[stage.kind].get("algorithm"), dict) and "path" in algorithm:
        # By its code, not by where it lies.
        tree[stage.kind]["algorithm"] = algorithm | {"path": _hash(Path(algorithm["path"]).read_bytes())}
    for own in (tree[stage.kind], tree[stage.kind].get("distill") or {}):
        for name in ("endpoint", "teacher"):
            if isinstance(server := own.get(name), dict):
                own[name] = _without(server, ENDPOINTS_MAY_CHANGE)
        if teachers := own.get("teachers"):
            own["teachers"] = {domain: _without(t, ENDPOINTS_MAY_CHANGE) for domain, t in teachers.items()}
    if "sandbox" in tree:
        tree["sandbox"] = _without(tree["sandbox"], SANDBOX_MAY_CHANGE)
    if "rollout" in tree:
        how, tree["rollout"] = view.rollout, _without(tree["rollout"], {"server"})
        tree["rollout"]["vllm"] = _without(how.vllm.model_dump(mode="json"), how.vllm.may_change)
        if (servers := how.servers) is not None and servers is not how.vllm:  # an installed package's
            tree["rollout"]["server"] = _without(servers.model_dump(mode="json"), servers.may_change)
    if "prompts" in section.reads:
        tree["data"]["sampling"] = recipe["data"]["sampling"]
        tree["data"]["verifiers"] = {c.key: c.model_dump(mode="json") for c in _choices_of_rows(view)}
    return dict(_leaves(tree))


def _without(fields: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in names}


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
        whole.update(f"{path.relative_to(folder)} {sha256_of(path)}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def hash_rows(rows: Sequence[Any]) -> str:
    """Return a hash of the texts, prompts or pairs."""
    whole = hashlib.sha256()
    encode = json.JSONEncoder(sort_keys=True, default=_fields).encode
    for row in rows:
        try:
            text = encode(row)
        except ValueError:  # an integer with more digits than Python writes
            text = json_text(_fields(row), default=_fields)
        whole.update(text.encode())
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
