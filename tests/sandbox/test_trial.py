"""Verdicts: statuses, fresh processes for failures, malformed tests, forged records."""

import dataclasses
import signal

import pytest

from verizero import sandbox
from verizero.sandbox import process
from verizero.sandbox.client import Client
from verizero.sandbox.results import MOST
from verizero.sandbox.serve import SandboxService
from verizero.sandbox.worker import frames

pytestmark = pytest.mark.run  # workers of the sandbox


def test_every_test_has_its_own_result(pool):
    program = "n = int(input())\nif n == 1: 1 / 0\nif n == 2: print('no'); raise SystemExit\nprint(n)"
    tests = [{"input": str(i), "output": str(i)} for i in range(4)]
    result = sandbox.run(program, tests, pool=pool)
    assert [t.status for t in result.tests] == ["passed", "runtime_error", "wrong_answer", "passed"]
    assert (result.status, result.share_passed, result.num_tests) == ("runtime_error", 0.5, 4)
    assert "ZeroDivisionError" in result.tests[1].error
    assert result.tests[2].stdout == "no\n"
    assert all(t.peak_mib > 5 for t in result.tests)
    lacks_some = dataclasses.replace(result, tests=result.tests[:1])
    assert (lacks_some.passed, lacks_some.status) == (False, "sandbox_error")


def test_a_failure_in_company_is_tried_alone(pool):
    program = "import math\nassert not hasattr(math, 'seen'); math.seen = 1\nprint(input())"
    assert sandbox.run(program, [{"input": str(i), "output": str(i)} for i in range(5)], pool=pool).passed
    crash = "import os, math\nif hasattr(math, 'seen'): os.abort()\nmath.seen = 1\nprint(input())"
    assert sandbox.run(crash, [{"input": str(i), "output": str(i)} for i in range(5)], pool=pool).passed


def test_each_test_has_the_whole_limit(pool):
    program = "import time\ne = time.process_time() + 0.2\nwhile time.process_time() < e: pass\nprint(input())"
    tests = [{"input": str(i), "output": str(i)} for i in range(4)]
    assert sandbox.run(program, tests, limits=sandbox.Limits(cpu_s=0.35), pool=pool).passed
    late = "n = input()\nif n == '2':\n  while True: pass\nprint(n)"
    result = sandbox.run(late, tests, limits=sandbox.Limits(cpu_s=0.3), pool=pool)
    assert [t.status for t in result.tests] == ["passed", "passed", "cpu_limit", "passed"]


def test_an_error_shows_the_programs_lines_and_none_of_ours(pool):
    test = {"input": "", "output": ""}
    program = "def f():\n    raise KeyError('gone')\nf()"
    for code in (program, "\n\nx = ("):
        error = sandbox.run(code, [test], pool=pool).error
        assert 'File "main.py", line 3' in error
        assert "harness" not in error
        assert "worker" not in error
    call = {"fn": "g", "args": [], "expected": 1}
    assert "defines no 'g'" in sandbox.run(program[:-4], [call], mode="function", pool=pool).error
    error = sandbox.run(program[:-4], [call | {"fn": "f"}], mode="function", pool=pool).error
    assert "KeyError" in error
    assert "harness" not in error


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import sys\nprint(4)\nsys.stdout.flush()\nsys.stdout.close()", "passed"),
        ("import sys\nprint(4)\nsys.stderr.close()\nsys.stdin.close()", "passed"),
        ("import sys, io\nold = sys.stdout\nprint(4)\nsys.stdout = io.StringIO()\nprint(5)", "passed"),
        ("import sys\nprint(4)\nsys.stdout = None", "passed"),
        ("import sys\nprint(4)\nsys.stdout = object()", "passed"),
        ("import sys\nclass S:\n    write = sys.stdout.write\nsys.stdout = S()\nprint(4)", "passed"),
        ("import sys\nprint(4)\nsys.stdout.detach()", "passed"),
        ("import os\nprint(4)\nos.close(1)", "runtime_error"),
        ("import os\nprint(4, flush=True)\nos.close(1)", "passed"),
        ("print(4, end='')\nopen(1, 'w', closefd=False).write('')", "passed"),
        ("held = open(1, 'w', closefd=False)\nheld.write('4')", "passed"),
    ],
)
def test_what_a_program_does_to_its_streams(pool, program, status):
    test = {"input": "", "output": "4"}
    assert [t.status for t in sandbox.run(program, [test], pool=pool).tests] == [status]
    assert [t.status for t in sandbox.run(program, [test, test], pool=pool).tests] == [status, status]


def test_bytes_that_are_no_text_and_long_streams_are_kept(pool):
    assert sandbox.run("print(len('\udcff'))", [{"input": "", "output": "1"}], pool=pool).status == "runtime_error"
    for size in (0, 1, 4095, 4096, 4097, 70_000, 3):  # shorter than before: nothing may be left of it
        program = f"import sys\nprint('o' * {size}, end='')\nprint('e' * {size}, end='', file=sys.stderr)\nx = input()"
        program += "\nassert x == 'i' * len(x)\nprint(len(x))"
        tests = [
            {"input": "i" * size + "\n", "output": "o" * size + str(size)},
            {"input": "i\n", "output": "o" * size + "1"},
        ]
        assert sandbox.run(program, tests, pool=pool).passed, size
        failed = sandbox.run(program + "\n1 / 0", tests, pool=pool).tests[0]
        assert failed.stdout == "o" * size + str(size) + "\n"
        assert failed.error.count("e") >= min(size, 1500)
        assert failed.error.lstrip("e").startswith("Traceback")
        assert failed.error.endswith("division by zero")


def test_it_stops_on_the_first_failure_when_told(pool):
    tests = [{"input": str(i), "output": str(i % 2)} for i in range(6)]
    result = sandbox.run("print(input())", tests, stop_on_failure=True, pool=pool)
    assert [t.status for t in result.tests] == ["passed", "passed", "wrong_answer"]
    assert not result.passed


def test_a_function_is_called_on_a_new_object_each_time(pool):
    program = "class Solution:\n  def __init__(self): self.n = 0\n  def f(self, a, b=1): self.n += a; return self.n * b"
    tests = [{"fn": "f", "args": [i], "kwargs": {"b": 2}, "expected": 2 * i} for i in range(3)]
    assert sandbox.run(program, tests, mode="function", pool=pool).passed
    main = "def f(a): return a\nif __name__ == '__main__': print(f(input()))"
    assert sandbox.run(main, [{"fn": "f", "args": [1], "expected": 1}], mode="function", pool=pool).passed
    mutating = "def f(a): a.append(1); return len(a)"
    tests = [{"fn": "f", "args": [[]], "expected": 1}] * 3
    assert sandbox.run(mutating, tests, mode="function", pool=pool).passed


def test_output_may_be_as_long_as_expected(pool):
    limits, long = sandbox.Limits(output_kib=64), "".join(f"{i}\n" for i in range(100_000))
    tests = [{"input": "100000", "output": long}, {"input": "2", "output": "0\n1"}]
    program = "print(*range(int(input())), sep='\\n')"
    assert sandbox.run(program, tests, limits=limits, pool=pool).passed
    assert (
        sandbox.run(program, [{"input": "9000000", "output": long}], limits=limits, pool=pool).status == "output_limit"
    )
    call = {"fn": "f", "args": [50_000], "expected": list(range(50_000))}
    assert sandbox.run("def f(n): return list(range(n))", [call], mode="function", limits=limits, pool=pool).passed


def test_input_may_be_larger_than_the_disk_or_is_refused_by_name(pool):
    limits = sandbox.Limits(disk_mib=1, memory_mib=64)
    tests = [{"input": "x" * (3 << 20), "output": str(3 << 20)}] * 30
    assert sandbox.run("import sys\nprint(len(sys.stdin.read()))", tests, limits=limits, pool=pool).passed
    with pytest.raises(ValueError, match=r"test 1: the input has 17 MiB.*memory_mib=64"):
        sandbox.run("pass", [tests[0], {"input": "x" * (17 << 20), "output": ""}], limits=limits, pool=pool)


def test_tests_that_hang_are_bounded_together(pool):
    tests = [{"input": str(i), "output": str(i)} for i in range(60)]
    program = "n = int(input())\nwhile n % 2: pass\nprint(n)"
    result = sandbox.run(program, tests, limits=sandbox.Limits(cpu_s=0.05), pool=pool)
    assert [t.status for t in result.tests[:20]] == ["passed", "cpu_limit"] * 10
    assert {(t.status, t.error[:7]) for t in result.tests[20:]} == {("timeout", "not run")}
    assert result.share_passed == 10 / 60


def test_malformed_tests_are_refused_and_cost_no_other_trial(pool):
    """Each by `run`, and as one of several trials, here and at a service."""
    deep = 1
    for _ in range(300):
        deep = [deep]
    call = {"fn": "f", "args": [1], "expected": 1}
    malformed = [
        ([], "stdin", "empty"),
        ("abc", "stdin", "list"),
        (7, "function", "list"),
        ([None], "function", "test 0"),
        ([{"input": "x"}], "stdin", "test 0"),
        ([call], "stdin", "input"),
        ([call | {"args": "ab"}], "function", "args"),
        ([call | {"args": 5}], "function", "args"),
        ([call | {"args": [deep]}], "function", "nest"),
        ([call | {"kwargs": [2]}], "function", "test 0: TypeError"),
        ([call | {"expected": 1 << 1_100_000}], "function", "bits"),
        ([{"input": "", "output": ""}], "other", "mode"),
        ([{"input": "", "output": ""}] * 1001, "stdin", "max_tests"),
        ([{"input": "\ud800", "output": "1"}], "stdin", "surrogates"),
        ([{"source": "assert 1"}], "suite", "test 0"),
        ([{"source": 1, "names": []}], "suite", "test 0"),
        ([{"source": "", "names": [1]}], "suite", "test 0"),
    ]
    for tests, mode, named in malformed:
        with pytest.raises(ValueError, match=named):
            sandbox.run("def f(x): return x", tests, mode=mode, pool=pool)
    good = sandbox.Trial("def f(x): return x", [call], "function")
    unfit = [sandbox.Trial("def f(x): return x", tests, mode) for tests, mode, _ in malformed if mode != "other"]
    with SandboxService(pool, token="t") as service:
        for run_many in (lambda trials: sandbox.run_many(trials, pool=pool), Client(service.address, "t").run_many):
            results = run_many([good, *unfit, good])
            assert [r.status for r in results] == ["passed", *["sandbox_error"] * len(unfit), "passed"]
            assert all(r.error for r in results[1:-1])


def test_limits_must_be_positive_and_have_a_most():
    assert set(MOST) == {field.name for field in dataclasses.fields(sandbox.Limits)}
    for name, most in MOST.items():
        for value in (0, -1, float("nan"), float("inf"), True, most + 0.5, 1e300):
            with pytest.raises(ValueError, match=rf"Limits\.{name} must be a positive number of at most {most}, got"):
                sandbox.Limits(**{name: value})
    largest = process.order(frames.STDIN, sandbox.Limits(**MOST), MOST["max_tests"])
    assert frames.Order.unpack(largest.pack()) == largest


def test_forged_records_end_the_list():
    good = frames.Record(0, 0, 5, 0, b"v")
    backwards = frames.Record(0, 0, 3, 0, b"")
    assert frames.read_records(good.pack() + backwards.pack(), 5) == [good]
    assert frames.read_records(good.pack() * 3, 2) == [good, good]
    assert frames.read_records(good.pack()[:-1], 5) == []
    assert frames.read_records(b"\xff" * 200, 5) == []
    order = frames.Order(1, 2.5, 1.5, 3, 4, 5, 6, 7)
    assert frames.Order.unpack(order.pack()) == order
    assert frames.unpack_payload(frames.pack_payload(b"ab", [b"", b"c"])) == (b"ab", [b"", b"c"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGRTMIN, 40, signal.SIGRTMAX])
def test_a_signal_without_a_name_is_an_end_as_any_other(number):
    name = {15: "SIGTERM", 34: "SIGRTMIN", 64: "SIGRTMAX"}.get(number, f"signal {number}")
    dies = f"import os\nprint('out', flush=True)\nos.kill(os.getpid(), {number})"
    with sandbox.Pool(workers=1, walls=["landlock", "seccomp", "uid"], tools=sandbox.TOOLS) as pool:
        result = sandbox.execute(dies, pool=pool)
        assert (result.status, result.stdout, result.error) == ("runtime_error", "out\n", f"killed by {name}")
        called = {"fn": "f", "args": [], "expected": None}
        program = f"import os\ndef f(): os.kill(os.getpid(), {number})"
        assert sandbox.run(program, [called] * 2, mode="function", pool=pool).error == f"killed by {name}"
        bash = sandbox.run(f"kill -{number} $$", [{"input": "", "output": None}], language="bash", pool=pool)
        assert (bash.status, bash.error) == ("runtime_error", f"killed by {name}")
        with sandbox.Session(pool) as session:
            for ended in (session.python(dies), session.shell(f"kill -{number} $$")):
                assert (ended.status, ended.error) == ("runtime_error", f"killed by {name}")


FORGER = """import os, struct, sys, time
end = time.process_time() + 0.1
while time.process_time() < end: pass
time.sleep(0.1)
os.write(1, b"4")
for form in ("<IBQQI", "<IBddQQI"):
    numbers = [0.0, 1e300] if "d" in form else []
    record = struct.pack(form, 0, 0, *numbers, 1, 0, 0)
    if len(record) == LENGTH:
        os.write(6, record)
os._exit(0)
"""


def test_no_program_says_how_long_it_took(pool):
    program = FORGER.replace("LENGTH", str(frames.RECORD_BYTES))
    (ran,) = sandbox.run(program, [{"input": "", "output": "4"}], pool=pool).tests
    assert ran.passed
    assert 0.1 <= ran.cpu_s < 600
    assert 0.2 <= ran.wall_s < 600
    spins = (
        "import time\nn = input()\nend = time.process_time() + 0.05\nwhile time.process_time() < end: pass\nprint(n)"
    )
    together = sandbox.run(spins, [{"input": str(i), "output": str(i)} for i in range(3)], pool=pool)
    assert together.passed
    assert len({(t.cpu_s, t.wall_s) for t in together.tests}) == 1, "the tests of one process have its times"
    assert together.tests[0].cpu_s >= 0.15
