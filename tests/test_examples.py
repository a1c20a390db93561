"""The notebooks of examples/: stored without outputs, and executed as a user's kernel executes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.source import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
INTERRUPTED = """
import signal, sys
from pathlib import Path

sys.path.insert(0, {root!r})
import verizero as vz
from tests.library.tiny import ROWS, SMALL, save_tiny

if not Path("tiny").exists():
    save_tiny(Path("tiny"))


def length(completion):
    return float(len(completion) % 3)


def interrupt(event):
    if event.kind == "step" and event.step == 3 and not Path("interrupted").exists():
        Path("interrupted").touch()
        signal.raise_signal(signal.SIGINT)


settings = {{**SMALL, "checkpoint.every_steps": 1, "train.threads": 1}}
run = vz.train("tiny", ROWS, reward=length, name="run", steps=4, callbacks=[interrupt], **settings)
run.report
"""


def executed(notebook: Any, folder: Path, **settings: Any) -> Any:
    """The notebook with the outputs of a kernel of its own that works in `folder`."""
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}, **settings)
    return client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder)})


def shown(cell: Any, kind: str = "text/html") -> str:
    """What a cell shows of that kind, together."""
    return "\n".join(output["data"].get(kind, "") for output in cell.outputs if "data" in output)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    notebook = executed(nbformat.read(path, as_version=4), tmp_path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (trained,) = (shown(cell) for cell in code if "settings = {" in cell.source)
    assert "<td" in trained
    assert "after round 4" in trained
    assert "…" not in trained, "nothing is under way at the end"
    if path.stem != "compare_algorithms":
        result = next(shown(c, "text/plain") for c in code if c.source.endswith(", 2)"))
        first, last = eval(result.splitlines()[-1])
        assert last > first + 0.2
        assert any("<iframe srcdoc=" in shown(c) for c in code)


@pytest.mark.integration
@pytest.mark.slow
def test_an_interrupted_cell_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    cell = INTERRUPTED.format(root=str(ROOT))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for _ in range(2)])
    first, second = executed(notebook, tmp_path, allow_errors=True).cells
    assert [o["ename"] for o in first.outputs if o["output_type"] == "error"] == ["KeyboardInterrupt"]
    assert "3/4" in shown(first)
    assert [o for o in second.outputs if o["output_type"] == "error"] == []
    assert "4/4" in shown(second)
    assert "<iframe srcdoc=" in shown(second)
