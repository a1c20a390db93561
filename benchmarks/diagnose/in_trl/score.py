"""The share of runs of TRL whose cause the diagnosis names, over recorded runs or over a folder of new ones.

python -m benchmarks.diagnose.in_trl.score                                the recorded runs, in seconds
python -m benchmarks.diagnose.in_trl.score --folder runs/diagnose_trl     after benchmarks.diagnose.in_trl.plant
python -m benchmarks.diagnose.in_trl.score --folder runs/diagnose_trl --record healthy-3 beta_of_five-3    pack runs
"""

from __future__ import annotations

import argparse
import io
import lzma
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.diagnose.in_trl.faults import BY_NAME
from benchmarks.diagnose.places import place_of, shown
from benchmarks.diagnose.recorded import unpack
from verizero.pipeline.diagnosis.any_run import diagnosed
from verizero.pipeline.diagnosis.finding import Finding

RECORDED = Path(__file__).parents[3] / "tests" / "diagnosis" / "recorded_trl"


def main() -> None:
    """Print a line for each run whose cause is not named first, then the shares."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, help="runs of the command plant; default: the recorded runs")
    options.add_argument("--record", nargs="+", default=[], metavar="SCRIPT-SEED", help=f"write runs into {RECORDED}")
    asked = options.parse_args()
    first = three = faults = quiet = healthy = 0
    for name, seed, findings in recorded() if asked.folder is None else planted(asked.folder):
        cause = BY_NAME[name].cause
        if cause == "none":
            healthy, is_quiet = healthy + 1, all(f.level == "note" for f in findings)
            quiet += is_quiet
        else:
            place = place_of(cause, findings)
            faults, first, three = faults + 1, first + (place == 0), three + (place is not None and place < 3)
            is_quiet = place == 0
        if not is_quiet:
            print(f"{name}-{seed}: {cause}, and found {shown(findings)}")
        if f"{name}-{seed}" in asked.record and asked.folder is not None:
            record(asked.folder / name / f"seed{seed}" / "output", RECORDED / f"{name}-{seed}.tar.xz")
    print(f"{faults} faults: the right cause first in {first}, among the first three in {three}")
    print(f"{healthy} healthy runs: nothing above a note in {quiet}")


def planted(base: Path) -> Iterator[tuple[str, str, list[Finding]]]:
    """Yield script, seed and findings of each finished run below the folder of the command plant."""
    for note in sorted(base.glob("*/seed*/planted.json")):
        name, seed = note.parts[-3], note.parts[-2].removeprefix("seed")
        if name not in BY_NAME or not (note.parent / "scores.json").is_file():
            print(f"{name}-{seed}: the run did not end")
            continue
        yield name, seed, list(diagnosed([note.parent / "output"]).findings)


def recorded() -> Iterator[tuple[str, str, list[Finding]]]:
    """Yield script, seed and findings of each recorded run."""
    for path in sorted(RECORDED.glob("*.tar.xz")):
        name, seed = script_of(path)
        with tempfile.TemporaryDirectory() as folder:
            yield name, seed, list(diagnosed([unpack(path, Path(folder))]).findings)


def script_of(path: Path) -> tuple[str, str]:
    """Return script and seed of a recorded run, by its name."""
    name, _, seed = path.name.removesuffix(".tar.xz").rpartition("-")
    return name, seed


def record(folder: Path, path: Path) -> None:
    """Pack a trainer's output folder, as TRL wrote it, without weights and the model card."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in sorted(f for f in folder.rglob("*") if f.is_file() and f.name != "README.md"):
            entry = tarfile.TarInfo(str(file.relative_to(folder)))
            entry.size = file.stat().st_size
            tar.addfile(entry, io.BytesIO(file.read_bytes()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
