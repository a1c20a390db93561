"""What `pip install verizero` brings: the packages, their pages, and the recipes that commands find by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKED = ("pipeline", "verifiers", "sandbox", "flows", "configs")


@pytest.mark.integration
def test_a_wheel_has_every_part_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in (*PACKED, "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, timeout=600)
    (wheel,) = tmp_path.glob("verizero-*.whl")
    files = {f.relative_to(source).as_posix() for name in PACKED for f in (source / name).rglob("*") if f.is_file()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == files
