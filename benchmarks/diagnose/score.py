"""The share of runs whose cause the diagnosis names, over recorded runs or over a folder of new ones.

python -m benchmarks.diagnose.score                     the recorded runs, in seconds
python -m benchmarks.diagnose.score --folder runs/diagnose   after `python -m benchmarks.diagnose.plant --seeds 5`
python -m benchmarks.diagnose.score --healthy runs/presets   after `python benchmarks/presets.py`: runs that learn
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.diagnose.faults import BY_NAME, HEALTHY
from benchmarks.diagnose.places import place_of, shown
from benchmarks.diagnose.recorded import RECORDED, unpack
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.ranking import diagnose
from verizero.pipeline.diagnosis.run_facts import read


def main() -> None:
    """Print a line for each run whose cause is not named first, then the shares."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, help="runs of the command plant; default: the recorded runs")
    options.add_argument("--healthy", type=Path, nargs="+", help="folders whose runs all learn, with no fault planted")
    asked = options.parse_args()
    if asked.healthy is not None:
        print_healthy(asked.healthy)
        return
    first = three = faults = quiet = healthy = 0
    for name, seed, findings in recorded() if asked.folder is None else planted(asked.folder):
        if BY_NAME[name] in HEALTHY:
            healthy, is_quiet = healthy + 1, all(f.level == "note" for f in findings)
            quiet += is_quiet
            if not is_quiet:
                print(f"{name}-{seed}: healthy, and found {shown(findings)}")
            continue
        place = place_of(BY_NAME[name].cause, findings)
        faults, first, three = faults + 1, first + (place == 0), three + (place is not None and place < 3)
        if place != 0:
            print(f"{name}-{seed}: {BY_NAME[name].cause}, and found {shown(findings)}")
    print(f"{faults} faults: the right cause first in {first}, among the first three in {three}")
    print(f"{healthy} healthy runs: nothing above a note in {quiet}")


def print_healthy(bases: list[Path]) -> None:
    """Print the causes that are found in runs without a fault, then their count."""
    runs = sorted({p.parent for base in bases for p in base.rglob("metrics.jsonl") if "stale" not in p.parts})
    quiet = 0
    for run in runs:
        above = [f for f in diagnose(read(run)) if f.level != "note"]
        quiet += not above
        if above:
            print(f"{run}: found {shown(above)}: {above[0].sentence}")
    print(f"{len(runs)} healthy runs: nothing above a note in {quiet}")


def recorded() -> Iterator[tuple[str, str, list[Finding]]]:
    """Yield name, seed and findings of each recorded run."""
    for path in sorted(RECORDED.glob("*.tar.xz")):
        name, _, seed = path.name.removesuffix(".tar.xz").rpartition("-")
        with tempfile.TemporaryDirectory() as folder:
            yield name, seed, diagnose(read(unpack(path, Path(folder))))


def planted(base: Path) -> Iterator[tuple[str, str, list[Finding]]]:
    """Yield name, seed and findings of each run below the folder of the command plant."""
    for path in sorted(base.glob("*/seed*/run/metrics.jsonl")):
        name, seed = path.parts[-4], path.parts[-3].removeprefix("seed")
        if name in BY_NAME:
            yield name, seed, diagnose(read(path.parent))


if __name__ == "__main__":
    main()
