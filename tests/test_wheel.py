"""What `pip install verizero` brings: the packages, their pages, and the recipes that commands find by name."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.integration
def test_a_wheel_has_every_tracked_part(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, timeout=600)
    (wheel,) = tmp_path.glob("verizero-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files"], cwd=source, capture_output=True, text=True, check=True).stdout.split()
    folders = ("pipeline/", "verifiers/", "sandbox/", "flows/", "configs/")
    missing = {name for name in listed if name.startswith(folders)} - packed
    assert missing == set()
    assert not [name for name in packed if name.startswith(("tests/", "docs/", "benchmarks/"))]
