"""The checkpoint that a run continues from: the newest whole one, before any change of the recipe or the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.config.recipes import Resume
from verizero.pipeline.errors import CheckpointError, ResumeRefused, RunError
from verizero.pipeline.files import disk_errors, restore_folders
from verizero.pipeline.report.ended import end_reason
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.aside import put_aside
from verizero.pipeline.run.changes import note_change
from verizero.pipeline.run.fingerprints import Fingerprint, differences, is_code, read_stages_file, write_stages_file
from verizero.pipeline.run.lengths import differs_only_in_length, why_not_longer
from verizero.pipeline.run.state import read_state
from verizero.pipeline.train import checkpoint

MAX_SHOWN_CHANGES = 3
"""Changes that a message lists."""


def choose_checkpoint(folder: Path, resume: Resume, progress: Progress, prints: Sequence[Fingerprint]) -> Path | None:
    """Return the checkpoint to resume from, or None to start from the beginning.

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
    path, damaged = newest_whole(root)
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


def newest_whole(root: Path) -> tuple[Path | None, list[checkpoint.Unusable]]:
    """Return the newest whole checkpoint and the damaged ones that are newer; None if there are no checkpoints at all.

    Nothing is deleted. Raise CheckpointError listing each checkpoint with the reason if none is whole, or if a newer
    one than that may be whole but cannot be read.
    """
    refused: list[checkpoint.Unusable] = []
    with disk_errors(f"reading {root}"):
        restore_folders(root)
    for path in checkpoint.checkpoint_folders(root):
        bad = checkpoint.damage_of(path)
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
    ways = ["start again under another name (--set name=…)"]
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
    """Return `newest` if no stage changed that it depends on, else the checkpoint at the end of the last unchanged one.

    `now`: the stages' fingerprints as the recipe and the data are now. Results of the other stages are moved to
    `folder`/stale/N, and the reason is reported. A stage that only became longer continues from its own last checkpoint
    if nothing in it depended on its length. A stage continues too if only files of verifiers and environments changed,
    and the run ended in it because graders failed, or `accepts_code` is set. None: the run trained nothing yet, and
    begins again.
    Raise RunError if the first stage changed, so that there is nothing to resume from.
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
    is_same = after is not None and (before.name, before.kind) == (after.name, after.kind) and before.name in ends
    code, others = _changed_fields(before, after) if after is not None and is_same else (set[str](), set[str]())
    could_continue = is_same and differs_only_in_length(before.kind, _part(before, others), _part(after, others))
    failed_here = state.stage.name == before.name and end_reason(folder) == "graders_failed"
    has_trained = bool(state.num_done or state.step)  # else start again: the first evaluation used the old code
    continues = could_continue and (not code or (has_trained and (accepts_code or failed_here)))
    # The stages whose end has a checkpoint, up to the first change.
    good = _whole([f.name for f in started[: index + continues] if f.name in ends], ends, progress)
    if after is not None and continues and good and good[-1] == before.name:
        end = ends[after.name]
        is_longer = bool(others) or not code
        reason = why_not_longer(before.kind, before.fields, after.fields, read_state(end)) if is_longer else None
        if reason is None:
            if code:
                note_change(folder, before.name, end, sorted(code), "resume" if accepts_code else "graders_failed")
            return _continue_stage(folder, started, after, end, why, progress)
        good.pop()
        why += f"; {before.name} cannot continue with that, as {reason}"
    if good:
        return _begin_again(folder, started, good, ends[good[-1]], why, progress)
    if not has_trained:
        if (stale_folder := put_aside(folder, None, ())) is not None:
            kept = stale_folder.relative_to(folder)
            progress.say(f"begins again: {why}, and nothing was trained; what was written is kept in {kept}")
        return None
    remedy = "Undo the change"
    if continues:
        old_values = ", ".join(f"{n}: {v}" for n, v in before.fields.items() if after and v != after.fields.get(n))
        remedy = f"Keep {old_values}"
    elif could_continue:
        remedy += ", continue with it from where the run is (resume='changed', --resume changed)"
    model = next((m for m in (folder / "model", newest / "model") if m.is_dir()), None)
    from_model = f", or start a new run from the model of this one (--set name=… --set model.path={model})"
    raise RunError(
        f"{folder} was started with another recipe or other data: {why}; there is no stage before {before.name} to "
        f"resume from. {remedy}{from_model if model else ''}, or start from the beginning (--set name=…)"
    )


def _changed_fields(before: Fingerprint, after: Fingerprint) -> tuple[set[str], set[str]]:
    """Return the names of the fields that differ: those of code, and the others."""
    names = {n for n in before.fields.keys() | after.fields.keys() if before.fields.get(n) != after.fields.get(n)}
    code = set(filter(is_code, names))
    return code, names - code


def _part(fingerprint: Fingerprint | None, names: set[str]) -> dict[str, Any]:
    return {} if fingerprint is None else {n: v for n, v in fingerprint.fields.items() if n in names}


def _begin_again(
    folder: Path, started: Sequence[Fingerprint], good: Sequence[str], end: Path, why: str, progress: Progress
) -> Path:
    """Put aside the stages after the `good` ones, which run again, and return the checkpoint `end` of the last one."""
    stale = [f.name for f in started[len(good) :]]
    stale_folder = put_aside(folder, end, stale)
    # After the move: if killed before, the next start finds the same difference and moves the rest.
    write_stages_file(folder, started[: len(good)])
    if stale_folder is not None:
        is_single = len(stale) == 1
        progress.say(
            f"{_listed(stale)} stale: {why}; {'runs' if is_single else 'they run'} "
            f"again from the end of {good[-1]}; {'its' if is_single else 'their'} earlier results are kept in "
            f"{stale_folder.relative_to(folder)}"
        )
    return end


def _whole(names: list[str], ends: dict[str, Path], progress: Progress) -> list[str]:
    """Return the names without the last ones, as far as their checkpoints in `ends` are damaged."""
    while names and (bad := checkpoint.damage_of(ends[names[-1]])) is not None:
        if not bad.is_damaged:
            raise RunError(f"the checkpoint at the end of {names[-1]} cannot be used: {bad}; make it readable")
        progress.say(f"the checkpoint at the end of {names[-1]} is damaged ({bad}); using an earlier one")
        names = names[:-1]
    return names


def _continue_stage(
    folder: Path, started: Sequence[Fingerprint], stage: Fingerprint, end: Path, why: str, progress: Progress
) -> Path:
    """Put aside the stages after the one that continues, note its fingerprint, and return its checkpoint `end`."""
    names = [f.name for f in started]
    index = names.index(stage.name)
    later = names[index + 1 :]
    stale_folder = put_aside(folder, end, later) if later else None
    write_stages_file(folder, [*started[:index], stage])
    aside = (
        f"; {_listed(later)} stale, and the earlier results are kept in {stale_folder.relative_to(folder)}"
        if stale_folder
        else ""
    )
    progress.say(f"{stage.name} continues: {why}{aside}")
    return end


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
