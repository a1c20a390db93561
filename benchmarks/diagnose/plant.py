"""Runs the healthy recipes and the faults, and shows whether each fault hurts.

    python -m benchmarks.diagnose.plant [NAMES] --seeds N --folder runs/diagnose [--record]

A finished run is not repeated; `--again` repeats what is named. `--record` packs the text files of one run of each, and
of four healthy ones, for the tests of diagnoses.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from benchmarks.diagnose.fault import Fault
from benchmarks.diagnose.faults import ALL, BY_NAME, HEALTHY
from benchmarks.diagnose.recorded import RECORDED, record
from benchmarks.diagnose.trained import NOTE, pass_rates, planted


def main() -> None:
    """Run what the command line names, one run at a time, and print a row for each fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults, causes, or healthy recipes; default: all")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each fault; default: 1")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/diagnose"))
    parser.add_argument("--again", action="store_true", help="repeat finished runs too")
    parser.add_argument("--record", action="store_true", help=f"write runs into {RECORDED}")
    arguments = parser.parse_args()
    prepare_process()
    for fault in chosen(arguments.names):
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            folder = arguments.folder / fault.name / f"seed{seed}"
            if arguments.again:
                shutil.rmtree(folder, ignore_errors=True)
            note = planted(fault, seed, folder)
            print(line(fault, seed, arguments.folder, note["error"]), flush=True)
            if arguments.record and seed < kept(fault):
                record(folder, RECORDED / f"{fault.name}-{seed}.tar.xz")


def prepare_process() -> None:
    """Load what every run needs, so that the forks of this process begin at once; one thread, which forks survive."""
    import torch

    import verizero.pipeline.whole_run  # noqa: F401
    from verizero.pipeline.models.load import quiet

    torch.set_num_threads(1)
    quiet()


def kept(fault: Fault) -> int:
    """Return the number of runs that are recorded: one of each fault, some of the healthy recipe."""
    return 4 if fault.name == "healthy" else 1


def chosen(names: list[str]) -> list[Fault]:
    """Return the healthy recipes and faults of these names or causes, in order; all if there are no names."""
    every = [*HEALTHY, *ALL]
    unknown = [n for n in names if n not in BY_NAME and n not in {f.cause for f in every}]
    if unknown:
        raise SystemExit(f"no fault or cause is called {unknown[0]!r}; known: {', '.join(BY_NAME)}")
    return [f for f in every if not names or f.name in names or f.cause in names]


def line(fault: Fault, seed: int, base: Path, error: str | None) -> str:
    """Return the row of one run: pass@1 before and after of each domain, next to that of the healthy run."""
    cells = []
    rates, healthy = pass_rates(base / fault.name / f"seed{seed}"), healthy_ends(fault.healthy, seed, base)
    for domain in sorted({d for _, _, domains in rates for d in domains}):
        own = [domains[domain] for _, _, domains in rates if domain in domains]
        cells.append(f"{domain} {shown(own[0])} -> {shown(own[-1])} (healthy {healthy.get(domain, 'not run')})")
    end = f"  ended: {error[:90]}" if error else ""
    hurts = "hurts" if fault.hurts else ""
    return f"{fault.name:32} {fault.cause:26} {hurts:5} seed {seed}  {'; '.join(cells)}{end}"


def shown(rate: tuple[float, float, float]) -> str:
    """Return a rate with its interval."""
    return f"{rate[0]:.2f} [{rate[1]:.2f}, {rate[2]:.2f}]"


def healthy_ends(name: str, seed: int, base: Path) -> dict[str, str]:
    """Return for each domain the last pass@1 of the healthy run of that seed, and the range over its other seeds."""
    ends: dict[str, dict[str, tuple[float, float, float]]] = {}
    for folder in sorted((base / name).glob("seed*")):
        if (folder / NOTE).is_file() and (rates := pass_rates(folder)):
            for domain, rate in rates[-1][2].items():
                ends.setdefault(domain, {})[folder.name] = rate
    texts = {}
    for domain, by_seed in ends.items():
        own, values = by_seed.get(f"seed{seed}"), [rate[0] for rate in by_seed.values()]
        of_all = f"{len(values)} seeds {min(values):.2f} to {max(values):.2f}"
        texts[domain] = of_all if own is None else f"{shown(own)}, {of_all}"
    return texts


if __name__ == "__main__":
    main()
