"""C, C++, Java, Go, Rust, JavaScript, Bash and SQL behind the same walls. For Python, `sandbox.run` is faster."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from verizero.pipeline.errors import IsolationError
from verizero.sandbox import compare, toolchains
from verizero.sandbox.pool import Pool, confirm
from verizero.sandbox.process import ERROR_CHARACTERS, ProcessResult, Worker, WorkerDied, order, signal_name, tail
from verizero.sandbox.results import (
    NOT_RUN,
    WITH_NAMESPACES,
    Case,
    Limits,
    RunResult,
    Status,
    TestResult,
    Trial,
    is_too_slow,
    limits_for,
)
from verizero.sandbox.trial import cases
from verizero.sandbox.worker import frames

TOOLS = toolchains.folders()
"""Folders of compilers and interpreters, for a pool that runs other languages than Python, or a shell."""
_BUILD_LIMITS = Limits(wall_s=60, cpu_s=30, memory_mib=2048, output_kib=16384, disk_mib=256, processes=64)
_SIGNALS_ABI = 6
_MAX_KILLS = 2
"""Kills of a program that may have killed itself, after which it is tried again."""
_PARTS = ("part", "gcc", "ld", "ld.bfd")
_PART = """#!/bin/sh
[ "${0##*/}" = part ] || set -- "${0##*/}" "$@"
printf x >> "$TMPDIR/.begun"
"$@"
s=$?
[ $s = 137 ] || printf x >> "$TMPDIR/.ended"
exit $s
"""
"""Runs a part of a compiler: its arguments, or the program of its own name. Compilers hide how their parts ended, so
it notes each part that begins, and each that ends and was not killed."""
_BUILD = """{line} && cat prog
s=$?
[ $s = 0 ] || {{ read -r begun < .begun; read -r ended < .ended; }} 2> /dev/null
[ $s = 0 ] || [ "$begun" = "$ended" ] || s=137
exit $s"""
"""Ends as if by SIGKILL if a part was killed."""
_OF_GCC = "-B. -wrapper /bin/sh,./part"
_C = f"{{tool}} {_OF_GCC} -w -O2 -DONLINE_JUDGE -o prog {{file}}"
_ERROR = re.compile(r"\berror\b", re.IGNORECASE)
_NO_SUCH_TOOL = (126, 127)
"""Exit codes of a shell that may not run a program, or does not find it."""
NO_COMPILE = "does not compile: "
"""Beginning of the error of a test whose program did not compile."""


@dataclass(frozen=True, slots=True)
class Language:
    """The commands that build and start a program of one language.

    `tool` is the compiler or interpreter. `start` is the command of the program, which is `prog` if it was built; its
    first word is a path if it has "/", and {heap} is a heap that fits into the program's memory.
    """

    tool: str
    source: str
    """Name of the program's file."""
    start: tuple[str, ...]
    build: str = ""
    """Shell line that makes `prog`, with {tool}, its {folder}, {file} and {main}. Without one, it is interpreted."""
    has_libraries: bool = False
    """True if the tool has shared libraries of its own."""
    threads: int = 0
    """Threads of the runtime itself. It reserves more address space than it uses: its resident memory is limited."""


_JAVA = ("-XX:+UseSerialGC", "-XX:ActiveProcessorCount=2", "-XX:-UsePerfData", "-Xss64m")
_JAVAC = "-J-XX:+UseSerialGC -J-XX:-UsePerfData -J-XX:TieredStopAtLevel=1 -J-Xmx768m -nowarn -encoding UTF-8"
_GO = "GO111MODULE=off CGO_ENABLED=0 GOMAXPROCS=2 GOCACHE=$TMPDIR/.cache {tool} build -toolexec '/bin/sh '$PWD/part"
LANGUAGES = {
    "c": Language("gcc", "main.c", ("./prog",), f"{_C} -std=gnu17 -lm"),
    "cpp": Language("g++", "main.cpp", ("./prog",), f"{_C} -std=gnu++20"),
    "java": Language(
        "javac", "Main.java", ("java", *_JAVA, "-Xmx{heap}m", "-jar", "prog"), threads=24, has_libraries=True,
        build=f"{{tool}} {_JAVAC} -d out {{file}} && {{folder}}/jar -J-XX:+UseSerialGC -cfe prog {{main}} -C out .",
    ),
    "go": Language("go", "main.go", ("./prog",), f"{_GO} -o prog {{file}}", threads=16),
    "rust": Language(
        "rustc", "main.rs", ("./prog",), has_libraries=True,
        # Rust's own linker looks for itself in /proc, which is not there.
        build="{tool} --edition 2021 -C opt-level=2 -C linker=./gcc -C link-arg=-fuse-ld=bfd -A warnings "
        + "".join(f"-C link-arg={word} " for word in _OF_GCC.split()) + "-o prog {file}",
    ),
    "javascript": Language("node", "main.js", ("node", "--stack-size=50000", "main.js"), threads=16),
    "bash": Language("bash", "main.sh", ("bash", "main.sh")),
}  # fmt: skip
_JAVA_MAIN = re.compile(r"\b(?:class|interface|enum|record)\s+(\w+)|\bstatic\s+(?:final\s+)?void\s+main\b")
_JAVA_PUBLIC = re.compile(r"^\s*public\s+(?:[a-z-]+\s+)*(?:class|interface|enum|record)\s+(\w+)", re.MULTILINE)
_JAVA_PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.MULTILINE)


def _java_names(program: str) -> tuple[str, str]:
    """Return the name that a Java program's file must have, and the name of its main class."""
    main = last = "Main"
    for match in _JAVA_MAIN.finditer(program):
        last = match[1] or last
        if match[1] is None:
            main = last
    public, package = _JAVA_PUBLIC.search(program), _JAVA_PACKAGE.search(program)
    return f"{public[1] if public else main}.java", f"{package[1]}.{main}" if package else main


def available() -> dict[str, bool]:
    """Return every language, with True if its tool is installed where programs may run it."""
    by_tool = {name: toolchains.find(language.tool) is not None for name, language in LANGUAGES.items()}
    return {"python": True} | by_tool


def run_built(pool: Pool, trial: Trial) -> RunResult:
    """Return the result of a program in another language than Python, with a new process for every test.

    A program that does not compile has status "runtime_error" on every test, with the compiler's message.

    Raises: ValueError when the language is unknown; IsolationError when its tool is not installed, or the walls are too
    low.
    """
    require_tool(trial.language)
    all_cases = cases(trial.tests, "stdin")
    limits = limits_for(all_cases, trial.limits)
    built = _BuiltProgram(LANGUAGES[trial.language], trial.program, all_cases, limits, trial.stop_on_failure)
    pool = pool.with_tools()
    require_walls(pool)
    try:
        pool.use(built.run)
    except WorkerDied as exc:
        return RunResult.failed(str(exc)[-ERROR_CHARACTERS:], len(all_cases), pool.isolation.level)
    results = tuple(built.results)
    return RunResult(results, pool.isolation.level, len(all_cases), sum(r.wall_s for r in results))


def require_tool(language: str) -> None:
    """Raise IsolationError if the tool of that language is not installed. Raises: ValueError if it is unknown."""
    there = available()
    if language not in there:
        raise ValueError(f"language {language!r} is unknown; there are {', '.join(there)}")
    if not there[language]:
        tool = LANGUAGES[language].tool
        raise IsolationError(f"language {language!r} needs {tool}, which is not installed here; install {tool}")


def require_walls(pool: Pool) -> None:
    """Raise IsolationError if programs with processes could send signals out: no namespaces, Landlock too old."""
    isolation = pool.isolation
    abi = int(isolation.notes.get("landlock", "abi 0").split()[-1]) if isolation.stands["landlock"] else 0
    if isolation.level < 3 and abi < _SIGNALS_ABI:
        raise IsolationError(
            f"programs that start others need namespaces or Landlock abi {_SIGNALS_ABI} around their signals, "
            f"and this machine has abi {abi} at level {isolation.level}; use Python, or a newer kernel"
        )


class _BuiltProgram:
    """A program that is built once and run on each input. If a worker dies, all of it is repeated."""

    def __init__(self, language: Language, program: str, tests: list[Case], limits: Limits, stop: bool) -> None:
        self.language, self.tests, self.limits, self.stop = language, tests, limits, stop
        self.source = program.removeprefix("\ufeff").encode("utf-8", "surrogatepass")
        self.results: list[TestResult] = []
        self.kills = 0

    def run(self, worker: Worker) -> None:
        """Build and run the program, then check the worker. Raises: WorkerDied."""
        self.results, was_new = [], worker.runs == 0
        self._run(worker)
        confirm(worker, was_new, frames.STDIN)

    def _run(self, worker: Worker) -> None:
        name, content = self.language.source, self.source
        if self.language.build:
            built = self._build(worker)
            if isinstance(built, TestResult):
                self.results = [built] * (1 if self.stop else len(self.tests))
                return
            name, content = "prog", built
        first, *rest = self.language.start
        heap = max(16, self.limits.memory_mib * 3 // 4)
        command = [first if "/" in first else _path(first), *(word.replace("{heap}", str(heap)) for word in rest)]
        for test in self.tests:
            if is_too_slow(self.results):
                self.results.append(TestResult("timeout", error=NOT_RUN))
                continue
            result = self._execute(worker, self.limits, command, name, test.data, content)
            if result.limit_reached(self.limits) is None and result.was_killed():
                # Another worker repeats all of it. Without namespaces a program can kill itself, and does each time.
                self.kills += 1
                if worker.level >= WITH_NAMESPACES or self.kills <= _MAX_KILLS:
                    raise WorkerDied("the program was killed from outside")
            self.results.append(self._result(result, test.expected))
            if self.stop and not self.results[-1].passed:
                return

    def _build(self, worker: Worker) -> bytes | TestResult:
        """Return what the program is built to, or the result of a test if it cannot be. Raises: WorkerDied."""
        language, file, main = self.language, self.language.source, ""
        if language.source.endswith(".java"):
            file, main = _java_names(self.source.decode("utf-8", "surrogateescape"))
        tool = _path(language.tool)
        line = language.build.format(tool=tool, folder=os.path.dirname(tool), file=file, main=main)
        command = ["/bin/sh", "-c", _BUILD.format(line=line)]
        result = self._execute(worker, _BUILD_LIMITS, command, file, b"", self.source, dict.fromkeys(_PARTS, _PART))
        status, error = _status(result, _BUILD_LIMITS)
        if result.limit_reached(_BUILD_LIMITS) is None:
            if os.waitstatus_to_exitcode(result.exit.status) in (-signal.SIGKILL, 128 + signal.SIGKILL):
                raise WorkerDied(f"the compiler was killed: {error[-200:]}")
            if os.WIFEXITED(result.exit.status) and os.WEXITSTATUS(result.exit.status) in _NO_SUCH_TOOL:
                raise WorkerDied(f"the compiler cannot be run behind these walls: {error[-200:]}")
        if status == "passed":
            return result.out
        reason: str = status
        if status == "runtime_error":  # the last lines of a compiler say only how many errors there are
            lines = result.err[:1_000_000].decode("utf-8", "replace").splitlines()
            reason = next(filter(_ERROR.search, lines), lines[0] if lines else "no message").strip()[:300]
        return TestResult("runtime_error", error=f"{NO_COMPILE}{reason}\n{error}")

    def _execute(
        self, worker: Worker, limits: Limits, argv: list[str], file: str, stdin: bytes, content: bytes,
        scripts: Mapping[str, str] = MappingProxyType({}),
    ) -> ProcessResult:  # fmt: skip
        job = order(frames.MANAGED if self.language.threads else frames.NATIVE, limits)
        disk_mib = limits.disk_mib + (len(content) >> 20) + 1  # the program's own file is extra
        job = job._replace(disk_mib=disk_mib, processes=limits.processes + self.language.threads)
        # Without /proc, the loader asks this variable where a program is whose libraries are next to it.
        origin = os.path.dirname(_path(self.language.tool))
        environment = {"LD_ORIGIN_PATH": origin} if self.language.has_libraries else {}
        plan = json.dumps({"argv": argv, "file": file, "scripts": dict(scripts), "environment": environment}).encode()
        return worker.execute(job, frames.pack_payload(plan, [stdin, content]))

    def _result(self, result: ProcessResult, expected: str | None) -> TestResult:
        status, error = _status(result, self.limits)
        out, end = result.out[: self.limits.output_kib << 10].decode("utf-8", "replace"), result.exit
        if status == "passed" and expected is not None and not compare.outputs_equal(out, expected):
            status = "wrong_answer"
        return TestResult(status, out, error, end.cpu_s, end.wall_s, end.peak_kib / 1024)


def _path(tool: str) -> str:
    return toolchains.find(tool) or tool


def _status(result: ProcessResult, limits: Limits) -> tuple[Status, str]:
    """Return status and error text of a process that ended; "passed" means exit code 0. Raises: WorkerDied."""
    status: Status = "runtime_error"
    if reached := result.limit_reached(limits):
        status, reason = reached
    elif result.exit.peak_kib > limits.memory_mib << 10:
        status, reason = "memory_limit", ""
    elif (code := os.waitstatus_to_exitcode(result.exit.status)) < 0:
        reason = f"killed by {signal_name(-code)}"
    elif code == 0:
        return "passed", ""
    else:
        reason = f"exit code {code}"
    return status, f"{tail(result.err, 4000)}\n{reason}".strip()
