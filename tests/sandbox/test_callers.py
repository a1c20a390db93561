"""Who calls the sandbox: ranks of a process group, Prefect's flows and tasks, root without root's rights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.test_pool import wait_gone

ROOT = Path(__file__).parents[2]
ROOTS_TRIAL = """
import json, sandbox
from pipeline.errors import IsolationError
tests = [{"input": "4", "output": "8"}]
with sandbox.Pool(workers=1) as pool:
    good = sandbox.run("print(int(input()) * 2)", tests, pool=pool)
    bad = sandbox.run("print(open('/etc/passwd').read())", tests, pool=pool)
    notes = dict(pool.isolation.notes)
try:
    with sandbox.Pool(workers=1, min_level=3) as pool:
        said = str(pool.isolation.level)
except IsolationError as exc:
    said = str(exc)
print(json.dumps([good.status, good.level, bad.status, bad.error, notes, said]))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.integration
def test_each_rank_of_a_process_group_has_workers_of_its_own(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    python(*torchrun, "-m", "tests.sandbox.in_group", str(tmp_path))
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for one in told:
        assert one["statuses"] == ["wrong_answer", "wrong_answer", "passed", "wrong_answer", "passed"]
        assert one["passed"] == [0, 0, 2, 0, 2], "summed over both ranks"
    first, second = told[0]["workers"]
    assert first
    assert second
    assert not set(first) & set(second)
    assert wait_gone([*first, *second]) == []


@pytest.mark.integration
def test_flows_and_tasks_that_run_at_one_time_share_the_workers(tmp_path: Path) -> None:
    done = python(sys.executable, "-m", "tests.sandbox.in_flow", str(tmp_path))
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["tasks"] == ["passed" if i == 2 else "wrong_answer" for i in range(8)]
    assert told["flow"] == ["passed"]
    assert 1 <= len(told["workers"]) <= 2
    assert wait_gone(told["workers"]) == []


@pytest.mark.parametrize("rights", ["-sys_admin", "-sys_admin,-setuid,-setgid", "-all"])
def test_root_without_its_rights_has_walls_or_hears_the_remedy(rights: str) -> None:
    become = shutil.which("setpriv")
    if os.geteuid() != 0 or become is None:
        pytest.skip("needs root and setpriv")
    done = python(become, f"--bounding-set={rights}", sys.executable, "-c", ROOTS_TRIAL)
    good, level, bad, error, notes, said = json.loads(done.stdout)
    assert (good, bad) == ("passed", "runtime_error")
    assert level in (2, 3)
    if level == 3:
        assert "FileNotFoundError" in error
        assert notes["uid"] == "host uid 0, the only one that we may map"
        assert said == "3"
    else:
        assert "PermissionError" in error
        assert "Operation not permitted" in notes["namespaces"]
        assert "allow unprivileged user namespaces" in said
        assert "set sandbox.min_level to 2" in said
    if rights == "-all":
        assert level == 2, "root's uid cannot be mapped without any right"
