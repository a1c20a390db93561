"""Jobs and results as JSON, for programs that are verified on another machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sandbox.api import Trial
from sandbox.languages import NO_COMPILE, available
from sandbox.results import Limits, RunResult, TestResult
from sandbox.worker import codec

_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """The trial; its tests go encoded, since JSON alone would lose tuples, sets and integer keys."""
    return {
        "program": trial.program,
        "encoded_tests": codec.encode([dict(t) for t in trial.tests]).decode("ascii"),
        "mode": trial.mode,
        "limits": {name: getattr(trial.limits, name) for name in Limits.__dataclass_fields__},
        "stop_on_failure": trial.stop_on_failure,
        "language": trial.language,
        "values": trial.values,
    }


def trial_from_json(data: Mapping[str, Any], most: Limits) -> Trial:
    """The trial in a request, `tests` plain or `encoded_tests`; its limits only lower `most`.

    Raises: ValueError naming the field.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("program"), str):
        raise ValueError("program must be text")
    tests = codec.decode(data["encoded_tests"].encode()) if "encoded_tests" in data else data.get("tests")
    if not isinstance(tests, list) or not all(isinstance(t, Mapping) for t in tests):
        raise ValueError("tests must be a list of objects")
    limits = data.get("limits") or {}
    unknown = set(limits) - set(Limits.__dataclass_fields__)
    if unknown:
        raise ValueError(f"unknown limits {sorted(unknown)}; known: {', '.join(Limits.__dataclass_fields__)}")
    mode, stops = data.get("mode", "stdin"), bool(data.get("stop_on_failure", False))
    language = language_of(data.get("language"))
    return Trial(data["program"], tests, mode, most.lowered(**limits), stops, language, bool(data.get("values", False)))


_NAMES = {"python3": "python", "nodejs": "javascript", "js": "javascript", "c++": "cpp", "sh": "bash", "sqlite": "sql"}


def language_of(named: object) -> str:
    """The language that a request names, by our name; Python where it names none. Raises: ValueError if unknown."""
    language = "python" if named is None else _NAMES.get(str(named), str(named))
    if language not in available():
        raise ValueError(f"unknown language {named!r}; known: {', '.join(available())}")
    return language


def result_to_json(result: RunResult, values: bool = False) -> dict[str, Any]:
    """The result; with `values`, each test has what its function returned, encoded."""
    names = ("status", "stdout", "error", "cpu_s", "wall_s", "peak_mib")
    tests = [{n: getattr(t, n) for n in names} for t in result.tests]
    if values:
        for told, test in zip(tests, result.tests, strict=True):
            told["encoded_value"] = codec.encode(test.value).decode("ascii")
    return {
        "passed": result.passed,
        "status": result.status,
        "level": result.level,
        "num_tests": result.num_tests,
        "wall_s": result.wall_s,
        "tests": tests,
    }


def result_from_json(data: Mapping[str, Any]) -> RunResult:
    """The result in a reply. Raises: KeyError, TypeError on a reply of another shape."""
    tests = tuple(_test_from_json(t) for t in data["tests"])
    return RunResult(tests, data["level"], data["num_tests"], data["wall_s"])


def _test_from_json(data: Mapping[str, Any]) -> TestResult:
    told = dict(data)
    value = codec.decode(told.pop("encoded_value", "null").encode())
    return TestResult(**told, value=value)


def code_in(completion: str) -> str:
    """The last fenced block of a completion, or all of it where there is none."""
    blocks = _FENCE.findall(completion)
    return str(blocks[-1]) if blocks else completion


def fusion_run(result: TestResult) -> dict[str, Any]:
    """A SandboxFusion `/run_code` reply: status of the whole, and of the run with its streams and time."""
    run_status = {"timeout": "TimeLimitExceeded", "cpu_limit": "TimeLimitExceeded"}.get(result.status, "Finished")
    failed = result.status != "passed"
    if result.status == "sandbox_error":
        return {"status": "SandboxError", "message": result.error, "compile_result": None, "run_result": None,
                "executor_pod_name": None, "files": {}}  # fmt: skip
    broken = result.error.removeprefix(NO_COMPILE) if result.error.startswith(NO_COMPILE) else None
    if broken is not None:
        compiled = {"status": "Finished", "execution_time": None, "return_code": 1, "stdout": "", "stderr": broken}
        return {"status": "Failed", "message": "does not compile", "compile_result": compiled, "run_result": None,
                "executor_pod_name": None, "files": {}}  # fmt: skip
    run = {
        "status": run_status,
        "execution_time": result.wall_s,
        "return_code": (1 if failed else 0) if run_status == "Finished" else None,
        "stdout": result.stdout,
        "stderr": result.error,
    }
    return {"status": "Failed" if failed else "Success", "message": "" if not failed else result.status,
            "compile_result": None, "run_result": run, "executor_pod_name": None, "files": {}}  # fmt: skip


def fusion_tests(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tests of a SandboxFusion `/submit` request, from config.provided_data.

    Each has {"input": {"stdin": text} | text, "output": {"stdout": text} | text}. Raises: ValueError.
    """
    config = data.get("config") or {}
    provided = config.get("provided_data") or {}
    given = provided.get("test_cases", provided.get("tests")) if isinstance(provided, Mapping) else provided
    if not isinstance(given, list):
        raise ValueError("config.provided_data.test_cases must be a list of tests; data sets are not stored here")
    return [
        {"input": _stream(t.get("input", ""), "stdin"), "output": _stream(t.get("output", ""), "stdout")} for t in given
    ]


def _stream(value: Any, name: str) -> str:
    return str(value.get(name, "")) if isinstance(value, Mapping) else str(value)
