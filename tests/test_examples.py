"""The examples: notebooks, stored without outputs and executed as a user's kernel executes them, and a program."""

import json
import os
import runpy

import nbformat
import pytest
from nbclient import NotebookClient

from tests.api.tiny import SMALL, save_tiny
from tests.source import ROOT

JOB = ROOT / "examples" / "smollm2.py"
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The cells of all notebooks with their outputs, by name.

    One kernel executes all, since it takes five seconds to begin: each notebook in a folder of its own, and without the
    variables of those before it.
    """
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    folder = tmp_path_factory.mktemp("notebooks")
    parts = {path.stem: nbformat.read(path, as_version=4).cells for path in NOTEBOOKS}
    for changed in parts["compare_algorithms"]:  # what the other two learn is looked at
        changed.source = changed.source.replace("steps=40", "steps=8")
    cells = []
    for name, of_part in parts.items():
        (folder / name).mkdir()
        cells += [nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {folder / name}"), *of_part]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder)})
    return parts


def shown(cell, kind="text/html"):
    return "\n".join(o["data"].get(kind, "") if "data" in o else o.get("text", "") for o in cell.outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.run
@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_from_top_to_bottom(path, executed):
    code = [cell for cell in executed[path.stem] if cell.cell_type == "code"]
    (trained,) = (shown(cell) for cell in code if "settings = {" in cell.source)
    assert f"after round {1 if path.stem == 'compare_algorithms' else 4}" in trained
    if path.stem != "compare_algorithms":
        result = next(shown(c, "text/plain") for c in code if c.source.endswith(", 2)"))
        first, last = eval(result.splitlines()[-1])
        assert last > first + 0.2
        assert any("<iframe srcdoc=" in shown(c) for c in code)


class TestTheJobOfARealModel:
    ROW = '{"equals": {"name": "Ann", "home": {"city": "Rome"}}}'
    DEMANDS = '[{"type": "keywords", "include": ["rain"], "exclude": ["of"]}, {"type": "words", "min": 3, "max": 4}]'
    EDGES = '[{"type": "sentences", "min": 1, "max": 1}, {"type": "edges", "end": "?"}]'

    @pytest.mark.parametrize(
        ("completion", "answer", "wanted"),
        [
            ('{"home": {"city": "Rome"}, "name": "Ann"}', ROW, 1.0),
            ('{"home": {"city": "Oslo"}, "name": "Ann"}', ROW, 1 / 3),
            ("Ann", ROW, 0.0),
            ("Rain falls today.", DEMANDS, 1.0),
            ("Rain of today falls down here.", DEMANDS, 1 / 3),
            ("Does it rain?", EDGES, 1.0),
            ("It rains. Does it?", EDGES, 0.5),
        ],
    )
    def test_its_reward_is_the_share_of_what_is_wanted(self, completion, answer, wanted):
        assert runpy.run_path(str(JOB))["reward"](completion, answer) == pytest.approx(wanted)

    @pytest.mark.run
    def test_a_reference_of_each_row_is_worth_1(self):
        example = runpy.run_path(str(JOB))
        answers = [row["answer"] for row in example["rows"]("train")]
        of_json = [a for a in answers if a.startswith("{")]
        assert len(of_json) == 400
        assert {example["reward"](json.dumps(json.loads(a)["equals"]), a) for a in of_json} == {1.0}

    @pytest.mark.run
    def test_its_short_form_runs(self, tmp_path):
        save_tiny(tmp_path / "tiny", positions=512, chat=CHAT)
        short = {**SMALL, "evaluation.limit": 8, "evaluation.k": 2, "evaluation.every_rounds": 1}
        run = runpy.run_path(str(JOB))["job"](str(tmp_path / "tiny"), steps=2, output=str(tmp_path), **short)
        assert run.summary["steps"] == 2
        assert run.summary["domains"].keys() == {"extraction", "instructions"}
