"""Simulate how often the intervals of 95% hold the truth: rates, paired gains, and gains over several seeds.

    python benchmarks/coverage.py                  every case at every number of prompts; a few minutes of one core
    python benchmarks/coverage.py --draws 200      roughly, in seconds

Each case draws prompts, then samples. A rate is drawn within a quarter of the nearer of 0 and 1 around its name. With
10 prompts of one 0 or 1 each there are eleven possible intervals, and how often one of them holds a fixed rate
jumps between .83 and .99 (Brown, Cai and DasGupta, 2001). Same seed, same table.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from verizero.pipeline.report.intervals import Estimate, paired_difference, paired_over_seeds, rate_interval
from verizero.pipeline.seeds import derive

PROMPTS = (10, 30, 100, 320)
RATES = (0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 0.95, 0.98)
SPREADS = {"each alike": None, "spread": 2.0, "nearly all or nothing": 0.5}
"""Difference between the prompts of a rate -> the sum of the parameters of their Beta distribution."""
SEED_SPREADS = (0.0, 0.01, 0.02, 0.03)
Draw = Callable[[np.random.Generator, int], tuple[Estimate, float]]
"""(random numbers, number of prompts) -> an interval, and the truth that it should hold."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way in which values come about."""

    group: str
    name: str
    draw: Draw


def main() -> None:
    """Parse the command line and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--draws", type=int, default=2000, help="of each case; default: 2000, a standard error of .005"
    )
    print(table(options.parse_args().draws))


def table(draws: int) -> str:
    """Return the coverage of every case, and the lowest and the mean of each group."""
    lines = [f"| case | {' | '.join(f'n = {n}' for n in PROMPTS)} |", f"|{' --- |' * (1 + len(PROMPTS))}"]
    groups: dict[str, list[list[float]]] = {}
    for case in cases():
        shares = [coverage(case, n, draws) for n in PROMPTS]
        groups.setdefault(case.group, []).append(shares)
        lines.append(f"| {case.group}: {case.name} | {' | '.join(f'{s:.3f}' for s in shares)} |")
    for group, rows in groups.items():
        columns = list(zip(*rows, strict=True))
        lines.append(
            f"| **{group}, mean (lowest)** | {' | '.join(f'{fmean(c):.3f} ({min(c):.3f})' for c in columns)} |"
        )
    return "\n".join(lines)


def coverage(case: Case, n: int, draws: int) -> float:
    """Return the share of draws whose interval holds the truth."""
    numbers = np.random.Generator(np.random.PCG64(derive(0, "coverage", case.group, case.name, str(n))))
    drawn = (case.draw(numbers, n) for _ in range(draws))
    return fmean(e.low - 1e-12 <= truth <= e.high + 1e-12 for e, truth in drawn)


def cases() -> Iterator[Case]:
    """Yield every case."""
    for rate in RATES:
        yield Case("rates, 1 sample", f"{rate}", rates(rate, 1, None))
    for named, spread in SPREADS.items():
        for rate in RATES:
            yield Case(f"rates, 8 samples, {named}", f"{rate}", rates(rate, 8, spread))
    for loss, gain in (
        (0.02, 0.02),
        (0.1, 0.1),
        (0.0, 0.05),
        (0.0, 0.3),
        (0.02, 0.1),
        (0.1, 0.3),
        (0.3, 0.05),
        (0.0, 0.95),
    ):
        yield Case("gains, greedy", f"{gain} gained, {loss} lost", greedy_gain(loss, gain))
    for named, spread in SPREADS.items():
        for rate, gain in ((0.02, 0.0), (0.02, 0.03), (0.1, 0.05), (0.5, 0.0), (0.5, 0.1), (0.5, 0.4), (0.9, 0.05)):
            yield Case(f"gains, 8 samples, {named}", f"{rate} to {rate + gain:.2g}", sampled_gain(rate, gain, spread))
    for num_seeds in (3, 5):
        for seed_spread in SEED_SPREADS:
            for named, gain in (("equal recipes", 0.0), ("a gain of 0.1", 0.1)):
                draw = seeds_gain(num_seeds, seed_spread, gain)
                yield Case(f"gains over {num_seeds} seeds", f"{named}, seeds differ by {seed_spread}", draw)


def near(numbers: np.random.Generator, rate: float) -> float:
    """Return a rate within a quarter of the nearer of 0 and 1."""
    return rate + min(rate, 1 - rate) * float(numbers.uniform(-0.25, 0.25))


def prompt_rates(numbers: np.random.Generator, rate: float, spread: float | None, n: int) -> np.ndarray:
    """Return the chance of a right answer of each prompt."""
    return np.full(n, rate) if spread is None else numbers.beta(rate * spread, (1 - rate) * spread, n)


def rates(rate: float, samples: int, spread: float | None) -> Draw:
    """Return the draw of a rate over prompts."""

    def draw(numbers: np.random.Generator, n: int) -> tuple[Estimate, float]:
        truth = near(numbers, rate)
        right = numbers.binomial(samples, prompt_rates(numbers, truth, spread, n))
        return rate_interval(list(right / samples)), truth

    return draw


def greedy_gain(loss: float, gain: float) -> Draw:
    """Return the draw of pairs of greedy answers, of which those shares are lost and gained."""

    def draw(numbers: np.random.Generator, n: int) -> tuple[Estimate, float]:
        lost, gained = near(numbers, loss), near(numbers, gain)
        place = numbers.random(n)
        before, after = place > 1 - lost, place < gained
        return paired_difference(named(before.astype(float)), named(after.astype(float))), gained - lost

    return draw


def sampled_gain(rate: float, gain: float, spread: float | None) -> Draw:
    """Return the draw of pairs of 8 samples each: every prompt gains the same share of what it lacks."""

    def draw(numbers: np.random.Generator, n: int) -> tuple[Estimate, float]:
        chances = prompt_rates(numbers, rate, spread, n)
        better = chances + (1 - chances) * gain / (1 - rate)
        before, after = numbers.binomial(8, chances) / 8, numbers.binomial(8, better) / 8
        return paired_difference(named(before), named(after)), gain

    return draw


def seeds_gain(num_seeds: int, seed_spread: float, gain: float) -> Draw:
    """Return the draw of several seeds on the same prompts; a gain differs between prompts too."""

    def draw(numbers: np.random.Generator, n: int) -> tuple[Estimate, float]:
        chances = numbers.uniform(0.2, 0.6, n)
        gains = gain + (numbers.uniform(-0.1, 0.1, n) if gain else 0.0)
        pairs = []
        for _ in range(num_seeds):
            # Each recipe has its own luck with a seed; both together differ by seed_spread.
            moved = numbers.normal(0, seed_spread)
            before, after = (numbers.binomial(8, chances + add) / 8 for add in (0.0, gains + moved))
            pairs.append((named(before), named(after)))
        return paired_over_seeds(pairs), gain

    return draw


def named(values: np.ndarray) -> dict[str, float]:
    """Return the values by the name of their prompt."""
    return {f"{i:04d}": float(v) for i, v in enumerate(values)}


if __name__ == "__main__":
    main()
