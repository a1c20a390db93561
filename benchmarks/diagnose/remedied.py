"""Planted runs trained again with the change that their diagnosis proposes.

    python -m benchmarks.diagnose.remedied [NAMES] --seeds N --folder runs/diagnose    after the command plant

For each fault that hurts, the run's first finding is taken at its word: its `--set` changes are added to the faulty
recipe, which is trained again. A run is back where the interval of its last pass@1 meets that of the healthy run of the
seed, in every domain. It is in the healthy range where no domain is below that of the worst healthy run of any seed.
Remedies without `--set` need a person, and are listed as such.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from benchmarks.diagnose.fault import Fault
from benchmarks.diagnose.plant import chosen, prepare_process, shown
from benchmarks.diagnose.trained import pass_rates, planted
from verizero.pipeline.diagnosis.ranking import diagnose
from verizero.pipeline.diagnosis.run_facts import read

CHANGE = re.compile(r"--set '?([\w.]+=(?:\{[^}]*\}|[^\s,']+))")


def main() -> None:
    """Print a line for each fault, then the share that is back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults or causes; default: all that hurt")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/diagnose"))
    asked = parser.parse_args()
    prepare_process()
    tried = back = within = by_hand = 0
    for fault in [f for f in chosen(asked.names) if f.hurts and f.cause != "none"]:
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            changes = proposed(fault, seed, asked.folder)
            if not changes:
                by_hand += 1
                print(f"{fault.name:32} seed {seed}  needs a person", flush=True)
                continue
            is_back, is_within, text = tried_out(fault, changes, seed, asked.folder)
            tried, back, within = tried + 1, back + is_back, within + is_within
            how = "back" if is_back else "in the range" if is_within else "NOT back"
            print(f"{fault.name:32} seed {seed}  {how}  {text}", flush=True)
    print(
        f"{tried} remedies tried: {back} runs are back in the healthy interval of their seed, {within} in the range of "
        f"the healthy runs of all seeds; {by_hand} remedies need a person"
    )


def proposed(fault: Fault, seed: int, base: Path) -> tuple[str, ...]:
    """Return the changes of the recipe that the first finding of the planted run proposes."""
    planted(fault, seed, base / fault.name / f"seed{seed}")
    findings = diagnose(read(base / fault.name / f"seed{seed}" / "run"))
    return tuple(CHANGE.findall(findings[0].remedy)) if findings else ()


def tried_out(fault: Fault, changes: tuple[str, ...], seed: int, base: Path) -> tuple[bool, bool, str]:
    """Train with the changes; return whether the run is back, whether it is in the range, and what to print of it."""
    again = replace(fault, name=f"{fault.name}-remedied", overrides=(*fault.overrides, *changes))
    folder = base / again.name / f"seed{seed}"
    note = planted(again, seed, folder)
    ends = [] if note["error"] else pass_rates(folder)
    healthy = pass_rates(base / fault.healthy / f"seed{seed}")
    if note["error"] or not ends or not healthy:
        return False, False, f"{' '.join(changes)}: {note['error'] or 'no healthy run of this seed; run plant first'}"
    last, wanted = ends[-1][2], healthy[-1][2]
    is_back = all(last[d][2] >= wanted[d][1] for d in wanted)
    others = [pass_rates(path)[-1][2] for path in (base / fault.healthy).glob("seed*") if pass_rates(path)]
    is_within = all(last[d][0] >= min(ends[d][0] for ends in others) for d in wanted)
    texts = [f"{d} {shown(last[d])}, healthy {shown(wanted[d])}" for d in sorted(wanted)]
    return is_back, is_within, f"{' '.join(changes)}: {'; '.join(texts)}"


if __name__ == "__main__":
    main()
