"""The recorded runs of the planted faults: small, of known faults, and readable as a run's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.diagnose.faults import ALL, BY_NAME, HEALTHY
from benchmarks.diagnose.faults.healthy import RECIPES
from benchmarks.diagnose.recorded import RECORDED, unpack
from verizero.pipeline.report.files import read_rollouts, read_run

MOST_BYTES = 3 * 2**20


def fault_of(path: Path) -> str:
    """The name of the fault of a recorded run, which its seed follows."""
    return path.name.removesuffix(".tar.xz").rpartition("-")[0]


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.tar.xz")), ids=lambda p: p.name)
def test_a_recorded_run_can_be_read(path: Path, tmp_path: Path) -> None:
    run, name = unpack(path, tmp_path), fault_of(path)
    files = read_run(run)
    assert files.recipe
    assert files.rl_steps
    assert files.evaluations
    assert next(read_rollouts(run)).stage == "evaluation/after sft"
    assert (run / "data" / "train.jsonl").is_file()
    assert (
        BY_NAME[name] in HEALTHY or name not in (run / "recipe.yaml").read_text()
    )  # a reader must not learn it from a name


def test_recorded_runs_are_small_and_of_known_faults() -> None:
    paths = list(RECORDED.iterdir())
    names = {fault_of(p) for p in paths}
    assert {f.name for f in (*ALL, *RECIPES)} <= names <= set(BY_NAME)
    assert sum(p.stat().st_size for p in paths) < MOST_BYTES
