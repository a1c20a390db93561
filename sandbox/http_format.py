"""Trials and results as JSON, for programs that run on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verizero.pipeline.fences import blocks_in, program_among
from verizero.sandbox.api import Trial
from verizero.sandbox.languages import NO_COMPILE, available
from verizero.sandbox.results import Limits, RunResult, TestResult
from verizero.sandbox.worker import codec


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """Return the trial with encoded tests, since JSON alone would lose tuples, sets and integer keys."""
    return {
        # A program with half of a surrogate pair is no program, here or there; JSON cannot carry it.
        "program": trial.program.encode("utf-8", "replace").decode(),
        "encoded_tests": codec.encode([dict(t) for t in trial.tests]).decode("ascii"),
        "mode": trial.mode,
        "limits": {name: getattr(trial.limits, name) for name in Limits.__dataclass_fields__},
        "stop_on_failure": trial.stop_on_failure,
        "language": trial.language,
        "values": trial.values,
    }


_NAMES = {
    "python3": "python", "nodejs": "javascript", "js": "javascript", "c++": "cpp", "sh": "bash", "sqlite": "sql",
    "golang": "go", "go_build": "go",
}  # fmt: skip


def language_of(named: object) -> str:
    """Return our name of the language in a request, Python where it names none. Raises: ValueError if unknown."""
    language = "python" if named is None else _NAMES.get(str(named), named)
    if not isinstance(language, str) or language not in available():
        raise ValueError(f"unknown language, known: {', '.join(available())}")
    return language


def result_to_json(result: RunResult, values: bool = False) -> dict[str, Any]:
    """Return the result as JSON; with `values`, every test has its function's returned value, encoded."""
    names = ("status", "stdout", "error", "cpu_s", "wall_s", "peak_mib")
    tests = [{n: getattr(t, n) for n in names} for t in result.tests]
    if values:
        for row, test in zip(tests, result.tests, strict=True):
            row["encoded_value"] = test.encoded.decode("ascii")
    return {
        "passed": result.passed,
        "status": result.status,
        "level": result.level,
        "num_tests": result.num_tests,
        "wall_s": result.wall_s,
        "tests": tests,
    }


def result_from_json(data: Mapping[str, Any]) -> RunResult:
    """Return the result in a reply. Raises: KeyError, TypeError on a reply of another shape."""
    tests = tuple(_test_from_json(t) for t in data["tests"])
    return RunResult(tests, data["level"], data["num_tests"], data["wall_s"])


def _test_from_json(data: Mapping[str, Any]) -> TestResult:
    fields = dict(data)
    encoded = fields.pop("encoded_value", "").encode("ascii")
    if encoded:
        codec.read(encoded)  # a service that sends what nobody can read has failed, and is not asked for it later
    return TestResult(**fields, encoded=encoded)


def code_in(completion: str, language: str) -> str:
    """Return the program in a completion: the last fenced block of the language, or all of it if it has none."""
    program = program_among(blocks_in(completion)[0], language)
    return completion if program is None else program


def fusion_run(result: TestResult) -> dict[str, Any]:
    """Return a SandboxFusion `/run_code` reply: the status of the whole, and the run with its streams and time."""
    error, failed = result.error, result.status != "passed"
    reply: dict[str, Any] = {
        "status": "Failed" if failed else "Success", "message": result.status if failed else "", "compile_result": None,
        "run_result": None, "executor_pod_name": None, "files": {},
    }  # fmt: skip
    if result.status == "sandbox_error":
        return reply | {"status": "SandboxError", "message": error}
    if error.startswith(NO_COMPILE):
        compiled = _part("Finished", None, 1, "", error.removeprefix(NO_COMPILE))
        return reply | {"message": "does not compile", "compile_result": compiled}
    if result.status in ("timeout", "cpu_limit"):
        return reply | {"run_result": _part("TimeLimitExceeded", result.wall_s, None, result.stdout, error)}
    if result.exit_code is None:  # it went over a limit
        return reply | {"run_result": _part("Finished", result.wall_s, 1, result.stdout, error)}
    run = _part("Finished", result.wall_s, result.exit_code, result.stdout, result.stderr)
    return reply | {"run_result": run}


def _part(status: str, seconds: float | None, code: int | None, stdout: str, stderr: str) -> dict[str, Any]:
    """Return the compilation or the run of a reply."""
    return {"status": status, "execution_time": seconds, "return_code": code, "stdout": stdout, "stderr": stderr}


def fusion_tests(provided: object) -> list[dict[str, Any]]:
    """Return the tests in config.provided_data of a SandboxFusion `/submit` request.

    Each has {"input": {"stdin": text} | text, "output": {"stdout": text} | text}. Raises: ValueError.
    """
    tests = provided.get("test_cases", provided.get("tests")) if isinstance(provided, Mapping) else provided
    if not isinstance(tests, list) or not all(isinstance(test, Mapping) for test in tests):
        raise ValueError("config.provided_data.test_cases must be a list of tests; data sets are not stored here")
    return [
        {"input": _stream(t.get("input", ""), "stdin"), "output": _stream(t.get("output", ""), "stdout")} for t in tests
    ]


def _stream(value: Any, name: str) -> str:
    return str(value.get(name, "")) if isinstance(value, Mapping) else str(value)
