"""Suites: two processes of one worker, at every level of walls, with one of them killed, and with nothing left over."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.verifiers.suites import rows_of
from verizero import sandbox
from verizero.sandbox.isolation import WALLS
from verizero.sandbox.worker import frames
from verizero.verifiers._test_suites import suite_of

pytestmark = pytest.mark.run
DOUBLE = [{"source": "assert f(2) == 4", "names": ["f"]}, {"source": "assert f(3) == 6", "names": ["f"]}]


def run(program, tests, pool, **limits):
    return sandbox.run(program, tests, mode="suite", limits=sandbox.Limits(**limits), pool=pool)


@pytest.mark.parametrize("left_out", [("namespaces",), ("namespaces", "landlock", "seccomp")])
@pytest.mark.nightly
def test_every_level_grades_alike(left_out):
    """The levels below the highest, at which tests/verifiers grades the same programs."""
    with sandbox.Pool(workers=2, min_level=0, walls=[w for w in WALLS if w not in left_out]) as pool:
        for name, is_right, limits in (
            ("right", True, sandbox.Limits(cpu_s=3)),
            ("attacks", False, sandbox.Limits(cpu_s=0.5, wall_s=3)),
        ):
            rows = rows_of(name)
            suites = [suite_of(row.reference["tests"], "", None).jobs() for row in rows.values()]
            trials = [sandbox.Trial(r.program, s, "suite", limits) for r, s in zip(rows.values(), suites, strict=True)]
            results = sandbox.run_many(trials, pool=pool)
            assert not {k: r.error for k, r in zip(rows, results, strict=True) if r.passed != is_right}


@pytest.mark.parametrize(
    ("program", "tests", "statuses"),
    [
        ("def f(x): return 2 * x", DOUBLE, ["passed", "passed"]),
        ("def f(x): return 4", DOUBLE, ["passed", "wrong_answer"]),
        ("def f(x): return 4 // (x - 3)", DOUBLE, ["wrong_answer", "runtime_error"]),
        ("def f(x):\n    while x == 2: pass\n    return 6", DOUBLE, ["cpu_limit", "passed"]),
        ("import time\ndef f(x):\n    time.sleep(9 if x == 2 else 0)\n    return 6", DOUBLE, ["timeout", "passed"]),
        ("import os\ndef f(x): return 6 if x == 3 else os._exit(3)", DOUBLE, ["runtime_error", "passed"]),
        ("def f(x): return 6 if x == 3 else bytearray(10**9)", DOUBLE, ["runtime_error", "passed"]),
        ("def f(x): return 6 if x == 3 else [10**9] * 900_000", DOUBLE, ["bad_output", "passed"]),
        ("f = 1 +", DOUBLE, ["runtime_error"] * 2),
        ("x = [0] * 10**9", DOUBLE, ["memory_limit"] * 2),
        ("def f(x): return x", [{"source": "while True: pass", "names": ["f"]}], ["bad_test"]),
        ("def f(x): return x", [{"source": "import time\ntime.sleep(9)\nf(1)", "names": ["f"]}], ["bad_test"]),
        ("def f(x): return x", [{"source": "f(1)\nwhile True: pass", "names": ["f"]}], ["cpu_limit"]),
        ("def f(x): return x", [{"source": "def (", "names": ["f"]}], ["bad_test"]),
    ],
)
def test_each_test_has_a_status_of_its_own(program, tests, statuses, pool):
    # Time is short only for programs and tests that sleep.
    wall_s = 1.5 if "sleep" in f"{program}{tests}" else 60
    result = run(program, tests, pool, cpu_s=0.5, wall_s=wall_s, memory_mib=128)
    assert [t.status for t in result.tests] == statuses, [t.error for t in result.tests]


def test_a_test_that_calls_nothing_says_so(pool):
    tests = [{"source": "assert True", "names": ["f"]}, DOUBLE[0], {"source": "assert N == 3", "names": ["N"]}]
    result = run("N = 3\ndef f(x): return 4", tests, pool)
    assert result.passed
    assert [t.value for t in result.tests] == [False, True, True]


@pytest.mark.parametrize("which", [-1, -2])
def test_a_process_that_is_killed_from_outside_costs_no_verdict(which, pool):
    """The newest process has the program, and the one before the tests."""
    run("def f(x): return 2 * x", DOUBLE, pool)
    (worker,) = pool._idle
    children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children")
    if not children.exists():
        pytest.skip("this kernel lists no children")
    idle = len(children.read_text().split())

    def kill():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            pids = sorted(map(int, children.read_text().split()))
            if len(pids) > idle:
                time.sleep(0.2)
                os.kill(pids[which], signal.SIGKILL)
                return
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    result = run("import time\ndef f(x):\n    time.sleep(2)\n    return 2 * x", DOUBLE[:1], pool)
    killer.join()
    assert result.passed, result.error


def test_a_payload_is_read_in_parts(tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(frames.pack_suite(b"program", [b"one", b"two"]))
    with path.open("rb") as file:
        assert frames.read_suite(file.fileno(), of_tests=False) == b"program"
        assert frames.read_suite(file.fileno(), of_tests=True) == [b"one", b"two"]
