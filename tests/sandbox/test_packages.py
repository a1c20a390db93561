"""Packages that programs may import: those that are named, with what they require, read-only and no others."""

import json
from pathlib import Path

import pytest

from verizero import sandbox
from verizero.pipeline.checks.before.parts import read_local_parts
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import RECIPES
from verizero.pipeline.config.sandbox import SandboxConfig
from verizero.pipeline.data.rows_of_source import gradable
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.scoring.sandbox_setup import close_sandbox, open_sandbox
from verizero.pipeline.types import Attempt
from verizero.sandbox.client import Client
from verizero.sandbox.serve import SandboxService
from verizero.sandbox.toolchains import resolve
from verizero.verifiers.base import load

PROGRAM = """
import numpy, os
try: import pydantic
except ImportError as e: print(e)
try: open(numpy.__file__, 'a')
except OSError: print('read-only')
try: print('yaml' in os.listdir(os.path.dirname(os.path.dirname(os.path.realpath(numpy.__file__)))))
except OSError: print(False)
print(numpy.linalg.inv(numpy.eye(3)).trace(), os.environ['OMP_NUM_THREADS'])
"""
EXPECTED = "No module named 'pydantic'\nread-only\nFalse\n3.0 1\n"


def test_a_package_comes_with_what_it_requires():
    found = resolve(["pydantic"])
    names = {Path(path).name for path in found.paths}
    assert {"pydantic", "pydantic_core", "annotated_types", "typing_extensions.py"} <= names
    assert "numpy" not in names
    yaml = resolve(["yaml"])
    assert "yaml" in {Path(path).name for path in yaml.paths}, "by the name of its import too"


def test_what_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"'no-such-thing' is not installed; .*pip install no-such-thing"):
        resolve(["pydantic", "no-such-thing"])


@pytest.mark.run
@pytest.mark.parametrize("walls", [list(sandbox.WALLS), ["landlock", "seccomp", "uid"]], ids=["level3", "level2"])
def test_programs_import_what_is_named_and_nothing_else(walls):
    with sandbox.Pool(workers=1, walls=walls, packages=["numpy"]) as pool:
        result = sandbox.run(PROGRAM, [{"input": "", "output": EXPECTED}] * 2, pool=pool)
        assert result.passed, result
    with sandbox.Pool(workers=1, walls=walls, packages=["yaml"]) as pool:
        assert "No module named 'numpy'" in sandbox.execute("import numpy", pool=pool).error


ARRAYS = [
    ("import numpy as np\ndef f(x): return np.array(x) * 2",
     "import numpy as np\na = f([1, 2])\nassert type(a) is np.ndarray and (a == np.array([2, 4])).all()", True),
    ("import numpy as np\ndef f(x): return np.array(x) * 2.0",
     "import numpy as np\ndef test_a():\n    np.testing.assert_array_equal(f([1, 2]), [2, 5])", False),
    ("import numpy as np\ndef f(x): x.sort(); return np.median(x)",
     "import numpy as np\ndef test_a():\n    a = np.array([3, 1, 2])\n"
     "    assert f(a) == 2.0 and a.tolist() == [1, 2, 3]", True),
    ("import numpy as np\ndef f(x): return np.sum(x), np.array(['a', 'bc'])[::2]",
     "import numpy\ns, t = f([1, 2])\nassert s == 3 and t.tolist() == ['a'] and t.shape == (1,)", True),
]  # fmt: skip
"""Programs, tests and whether the tests pass: arrays and numbers of numpy travel whole."""


@pytest.mark.run
def test_a_recipe_names_packages_here_and_at_a_service(monkeypatch):
    monkeypatch.setenv("MINE", "secret")
    code = load("code").bind({})
    asserts = {"tests": ["import numpy\nassert f(numpy.arange(4)) == 6"]}
    with pytest.raises(
        DataError, match=r"tests: needs numpy, which programs have not; .* name it in sandbox\.packages"
    ):
        gradable("unit_tests", asserts)
    program, test = "import numpy\nprint(numpy.arange(4).sum())", {"input": "", "output": "6"}
    try:
        open_sandbox(SandboxConfig(packages=("numpy",), workers=1), [code], print)
        assert sandbox.run(program, [test]).passed
        (verdict,) = load("unit_tests").bind({}).score([Attempt("def f(x): return x.sum()", asserts)])
        assert verdict.is_correct, verdict
        said = load("unit_tests").bind({}).score([Attempt(p, {"tests": t}) for p, t, _ in ARRAYS])
        assert [v.is_correct for v in said] == [right for _, _, right in ARRAYS], said
        with sandbox.Pool(workers=1, packages=["numpy"]) as pool, SandboxService(pool, token="secret") as service:
            at_service = {"url": service.address, "token_env": "MINE"}
            assert open_sandbox(SandboxConfig(packages=("numpy",), **at_service), [code], print)
            assert Client(service.address, "secret").run_many([sandbox.Trial(program, [test])])[0].passed
            assert gradable("unit_tests", asserts) == asserts
            with pytest.raises(ConfigError, match="has no sortedcontainers; start it with --packages"):
                open_sandbox(SandboxConfig(packages=("numpy", "sortedcontainers"), **at_service), [code], print)
        with pytest.raises(ConfigError, match="'no-such-thing' is not installed"):
            open_sandbox(SandboxConfig(packages=("no-such-thing",)), [code], print)
    finally:
        close_sandbox()


def test_rows_are_read_with_the_packages_of_the_recipe(tmp_path):
    row = {"question": "Write f.", "answer": {"tests": ["import numpy\nassert f(numpy.arange(4)) == 6"]}}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "verifier": "unit_tests", "demonstration": "pass"}) + "\n")
    changes = ["data.train=[{file: rows.jsonl}]", "data.evaluation=[]", "sandbox={packages: [numpy], workers: 1}"]
    try:
        assert len(read_local_parts(load_recipe(RECIPES / "demo.yaml", changes), tmp_path).train) == 1
        without = load_recipe(RECIPES / "demo.yaml", changes[:2])
        assert not read_local_parts(without, tmp_path).train
    finally:
        close_sandbox()
