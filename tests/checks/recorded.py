"""Recorded runs with planted faults: the text files that a reader of a run's folder needs, packed, without weights."""

import io
import json
import lzma
import tarfile
from pathlib import Path

from verizero.pipeline.checks.finding import Finding

HERE = Path(__file__).parent
OWN, OF_TRL = HERE / "recorded", HERE / "recorded_trl"
FAULTS: dict[str, list[str]] = json.loads(OWN.with_suffix(".json").read_text())
"""Cause -> names of the faults that were planted in runs of ours; none: names of changes that are no faults."""
SCRIPTS = json.loads(OF_TRL.with_suffix(".json").read_text())
"""Names of scripts of TRL -> the planted cause and the arguments of GRPOConfig, over those of the key base."""


def unpack(path: Path, folder: Path) -> Path:
    """Write the files of a recorded run into `folder`, and return it."""
    with lzma.open(path) as file, tarfile.open(fileobj=io.BytesIO(file.read())) as tar:
        tar.extractall(folder)  # of our own; Debian 12's Python knows no filter
    return folder


def cause_of(path: Path) -> str:
    """Return the planted cause of a recorded run, by its name; none for a healthy one."""
    name = path.name.rpartition("-")[0]
    if path.parent == OF_TRL:
        return SCRIPTS["scripts"][name]["cause"]
    return next(cause for cause, names in FAULTS.items() if name in names)


def of_trl(name: str, folder: Path) -> list[Path]:
    """Unpack a recorded run of TRL, and return its folder and the part of its script that has the options."""
    arguments = SCRIPTS["base"] | SCRIPTS["scripts"][name.rpartition("-")[0]]["arguments"]
    run, script = unpack(OF_TRL / f"{name}.tar.xz", folder / "run"), folder / "train.py"
    script.write_text(f"arguments = GRPOConfig({', '.join(f'{k}={v!r}' for k, v in arguments.items())})\n")
    return [run, script]


def place_of(cause: str, findings: list[Finding]) -> int | None:
    """Return the place of a cause among the findings, from 0; None if it is not there."""
    return next((i for i, f in enumerate(findings) if f.cause == cause), None)
