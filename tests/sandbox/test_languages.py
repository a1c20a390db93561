"""Other languages than Python: right, wrong, broken and hostile programs, at both levels."""

# ruff: noqa: E501  (tables of programs)

from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox.conftest import LEVEL_2
from tests.sandbox.doubling import DOUBLE, LIMITS, TESTS, TIGHT
from tests.sandbox.processes import family, worker_pids
from tests.sandbox.scene import Scene
from verizero import sandbox
from verizero.pipeline.errors import IsolationError
from verizero.sandbox import languages, toolchains

pytestmark = pytest.mark.run  # compilers and other interpreters


@pytest.fixture(scope="module")
def highest():
    """A pool at the highest level of this machine, for what compilers say, which no wall changes."""
    with sandbox.Pool(workers=1, tools=languages.TOOLS) as made:
        yield made


def skip_where_closed(tools, language):
    """Skip where the compiler is in a folder of root's that the user of programs cannot read: below level 3."""
    tool = toolchains.find(languages.LANGUAGES[language].tool)
    if tool is not None and tools.isolation.level < 3 and not all(p.stat().st_mode & 1 for p in Path(tool).parents):
        pytest.skip(f"{tool} is closed to other users")


@pytest.mark.parametrize("language", list(DOUBLE))
def test_right_and_wrong_programs(tools, language):
    skip_where_closed(tools, language)
    if not sandbox.available()[language]:
        with pytest.raises(IsolationError, match=language):
            sandbox.run(DOUBLE[language], TESTS, language=language, pool=tools)
        return
    tests = [*TESTS, {"input": "5\n", "output": "5\n"}]
    result = sandbox.run(DOUBLE[language], tests, language=language, limits=LIMITS, pool=tools)
    assert [t.status for t in result.tests] == [*["passed"] * len(TESTS), "wrong_answer"], result


BREAKS = (
    ("c", "int main() { return }", "runtime_error"),
    ("c", "int main() { *(volatile int *)0 = 1; }", "runtime_error"),
    ("c", "int main() { for (;;); }", "cpu_limit"),
    (
        "c",
        "#include <stdlib.h>\n#include <string.h>\nint main() { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }",
        "memory_limit",
    ),
    ("c", "#include <unistd.h>\nint main() { for (;;) pause(); }", "timeout"),
    ("bash", "exit 3", "runtime_error"),
    ("bash", "echo \ud800; exit 3", "runtime_error"),  # half a pair of surrogates, which a model may write
    ("bash", "sleep 600", "timeout"),
    ("bash", "while true; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "output_limit"),
    ("bash", "while true; do :; done", "cpu_limit"),
    ("bash", "for i in {1..8}; do while true; do :; done & done; wait", "cpu_limit"),
    ("bash", "while true; do (for i in {1..3000}; do :; done); done", "cpu_limit"),
    ("javascript", "throw new Error('x')", "runtime_error"),
    ("javascript", "for (;;);", "cpu_limit"),
    ("java", "class Main { public static void main(String[] a) { for (;;); } }", "cpu_limit"),
    ("java", "class Main { public static void main(String[] a) { System.exit(3); } }", "runtime_error"),
    ("rust", 'fn main() { let v: Vec<i32> = vec![]; println!("{}", v[std::env::args().count()]); }', "runtime_error"),
    ("javascript", "const a = []; for (;;) a.push(new Array(1e5).fill(1.5));", "memory_limit"),
)


@pytest.mark.parametrize(
    ("walls", "language", "program", "status"),
    [(sandbox.WALLS, *row) for row in BREAKS]
    + [pytest.param(LEVEL_2, *r, marks=[] if r[0] in ("c", "bash") else pytest.mark.nightly) for r in BREAKS],
    indirect=["walls"],
)
def test_what_breaks_has_its_status(tools, language, program, status):
    """Time is short only where it must stop the program: on a busy machine the others take long to end."""
    if not sandbox.available()[language]:
        pytest.skip(f"{language} is not installed")
    skip_where_closed(tools, language)
    cpu_s = 0.4 if language == "java" else 0.1
    limits = {"cpu_limit": replace(TIGHT, cpu_s=cpu_s), "timeout": replace(TIGHT, wall_s=0.6)}.get(status, TIGHT)
    result = sandbox.run(program, TESTS[:1], language=language, limits=limits, pool=tools)
    assert result.status == status, result


def test_sizes_and_times_are_those_of_python(tools):
    limits, long = replace(LIMITS, output_kib=64, disk_mib=1), "1234567890\n" * 50_000
    tests = [{"input": long, "output": long}] * 2
    assert sandbox.run("cat", tests, language="bash", limits=limits, pool=tools).passed
    hanging, short = "read n; while (( n % 2 )); do :; done; echo $n", replace(LIMITS, cpu_s=0.05)
    numbers = [{"input": f"{i}\n", "output": f"{i}\n"} for i in range(30)]
    result = sandbox.run(hanging, numbers, language="bash", limits=short, pool=tools)
    assert [t.status for t in result.tests] == ["passed", "cpu_limit"] * 10 + ["timeout"] * 10
    stopped = sandbox.run(hanging, numbers, language="bash", limits=short, stop_on_failure=True, pool=tools)
    assert [t.status for t in stopped.tests] == ["passed", "cpu_limit"]
    noted = sandbox.run("echo note >&2; exit 3", numbers[:1], language="bash", limits=LIMITS, pool=tools).tests[0]
    assert noted.error == "note\nexit code 3"


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("class A { static void main2() {} }\npublic final class Sum {\n public static void main(String[] a) {} }", ("Sum.java", "Sum")),
        ("package a.b;\nclass Node { }\nclass Go { static class In {} static void main(String... a) {} }", ("In.java", "a.b.In")),
        ("public interface I { }\nclass Main { public static final void main(String[] a) {} }", ("I.java", "Main")),
        ("int x;", ("Main.java", "Main")),
    ],
)  # fmt: skip
def test_java_is_told_file_and_class(program, names):
    assert languages._java_names(program) == names


def test_hostile_programs_are_stopped(tools):
    scene = Scene()
    try:
        for act in (
            "cat SECRET", "ls OUTSIDE", "echo x > OUTSIDE/left", "rm OUTSIDE/doomed", "kill -0 PID", "kill -9 -1; kill -0 PID",
            "exec 3<>/dev/tcp/127.0.0.1/PORT", "cat /etc/passwd", "cat /proc/PID/environ", "ln -s /etc x", "chmod 777 OUTSIDE/code.py",
            "mount -t tmpfs x .", "unshare -U true", "chown 1 OUTSIDE/code.py",
        ):  # fmt: skip
            program = f"echo begins >&2; if {scene.fill(act)} >/dev/null; then echo PWNED; else echo stopped; fi"
            result = sandbox.run(
                program, [{"input": "", "output": "PWNED"}], language="bash", limits=LIMITS, pool=tools
            )
            assert not result.passed, act
            assert result.status != "sandbox_error", result
            assert result.tests[0].stdout == "stopped\n" or "killed" in result.error, (act, result)
        assert scene.harm() == []
    finally:
        scene.close()


def test_processes_that_stay_are_ended(tools):
    assert tools.isolation.level
    program = "(sleep 55.25; true) & (exec sleep 55.25) & echo 0"
    assert sandbox.run(program, TESTS[:1], language="bash", limits=LIMITS, pool=tools).passed
    assert sandbox.run("jobs; echo 0", TESTS[:1], language="bash", limits=LIMITS, pool=tools).passed
    assert all(len(family(pid)) == 2 for pid in worker_pids(tools)), "the forker and the child that waits, no others"


def test_a_compiler_that_cannot_be_run_is_no_fault_of_the_program(highest, monkeypatch):
    if not sandbox.available()["c"]:
        pytest.skip("c is not installed")
    monkeypatch.setitem(languages.LANGUAGES, "c", replace(languages.LANGUAGES["c"], build="./nowhere {file}"))
    result = sandbox.run(DOUBLE["c"], TESTS[:1], language="c", pool=highest)
    assert (result.status, "cannot be run" in result.error) == ("sandbox_error", True), result


def test_an_unknown_language_is_named(highest):
    with pytest.raises(ValueError, match="cobol"):
        sandbox.run("", TESTS, language="cobol", pool=highest)


KILLED = "g++: fatal error: Killed signal terminated program cc1plus\\ncompilation terminated."
UNCOMPILED = {
    "a name of C++": (
        "cpp",
        "#include <map>\nint main() { std::map<int, int> m; m.push(1); return y; }",
        "main.cpp:2:",
    ),
    "a name of Java": ("java", DOUBLE["java"].replace("2 * n", "m"), "Solution.java:2: error: cannot find symbol"),
    "a name of Rust": ("rust", DOUBLE["rust"].replace("2 * n", "m"), "error[E0425]"),
    "imitates in a statement": ("java", "public class Main { public static void main(String[] a) {\nKilled\n} }", ""),
    "imitates in an assertion": ("cpp", f'static_assert(0, "x\\n{KILLED}");', ""),
    "imitates in rustc's first line": (
        "rust",
        'compile_error!("linking with `cc` failed: signal: 9 (SIGKILL)");',
        "",
    ),
    "imitates rustc": ("rust", 'compile_error!("x\\nerror: linking with `cc` failed: signal: 9 (SIGKILL)");', ""),
}
"""Programs of a language, and how the words of its compiler begin; some imitate those of a compiler that is killed."""


@pytest.mark.parametrize("name", UNCOMPILED)
def test_the_first_error_of_the_compiler_is_named(highest, name):
    language, program, named = UNCOMPILED[name]
    if not sandbox.available()[language]:
        pytest.skip(f"{language} is not installed")
    skip_where_closed(highest, language)
    result = sandbox.run(program, TESTS, language=language, limits=LIMITS, pool=highest)
    assert [t.status for t in result.tests] == ["runtime_error"] * len(TESTS)
    first = result.error.splitlines()[0]
    assert first.startswith(f"does not compile: {named}"), result.error
    assert not named or "error" in first
