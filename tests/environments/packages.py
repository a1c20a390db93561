"""Virtual environments with packages that would not fit into ours, made in seconds: they borrow what ours has."""

import site
import subprocess
import venv
from pathlib import Path


def venv_with(folder: Path, *packages: str) -> Path:
    """Return a new virtual environment with these packages.

    Packages of this interpreter are visible in it and are not installed twice; those that do not fit are installed
    there, in front of ours. Nothing of ours is changed.
    """
    venv.create(folder)  # without pip: ours is visible in it, and need not be unpacked
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    command = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    ended = subprocess.run([*command, *packages], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return folder
