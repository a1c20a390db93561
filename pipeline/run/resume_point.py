"""The checkpoint that a run continues from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verizero.pipeline.config.recipes import Resume
from verizero.pipeline.errors import ResumeRefused
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.aside import put_aside
from verizero.pipeline.run.fingerprints import Fingerprint, put_aside_stale
from verizero.pipeline.train import checkpoint


def find_checkpoint(folder: Path, resume: Resume, progress: Progress, prints: Sequence[Fingerprint]) -> Path | None:
    """Return the checkpoint to resume from, or None to start from the beginning.

    Results of stages whose fingerprints are not those of `prints` are put aside, and so is what came after a whole
    checkpoint if newer ones are damaged.
    Raise ResumeRefused if `resume` is never and there is a checkpoint, or must and there is none; RunError if the
    recipe changed in what the first stage depends on; CheckpointError if there are checkpoints and none can be used.
    """
    root = folder / "checkpoints"
    if resume == "never" and checkpoint.numbered(root):
        raise ResumeRefused(
            f"{folder} already holds a run, and resume is 'never'; use resume 'auto' to continue it, another name, or "
            "delete the folder"
        )
    path, damaged = checkpoint.newest(root)
    if path is None and resume == "must":
        raise ResumeRefused(
            f"{folder} has no checkpoint to resume from, and resume is 'must'; start it with resume 'auto'"
        )
    if path is not None and not damaged:
        return put_aside_stale(folder, prints, path, progress)
    # Kept, not cut: nobody can tell here whether it was a try of a minute or the only trace of a week.
    where = put_aside(folder, path, ())
    if path is None:
        if where is not None:
            progress.say(
                f"no checkpoint in {root}: starts from the beginning; what an earlier try wrote is kept in {where}"
            )
        return None
    for bad in damaged:
        progress.say(f"refused checkpoint {bad}; using the one before it")
    progress.say(f"continues from the older checkpoint {path.name}; what came after it is kept in {where}")
    return put_aside_stale(folder, prints, path, progress)
