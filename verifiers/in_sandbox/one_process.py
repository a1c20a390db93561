"""Runs in the sandbox: a program and its tests in one process, under pytest. The program can reach all of it."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from typing import Any


def verizero_run(program: str, tests: str, names: list[str], modules: list[str]) -> list[list[str]]:
    """Return the tests that ran, each as its name, how it ended and why.

    `modules`: the names by which tests import the program. A test is "broken" if it lacks another module or a fixture.
    """
    import pytest  # only here: the verifier reads this text

    for name, content in (("solution.py", program), ("test_solution.py", tests)):
        with open(name, "w", encoding="utf-8") as file:
            file.write(content)
    sys.path.insert(0, os.getcwd())
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    ended, broken = list[list[str]](), set[str]()

    class Notes:
        """Notes how tests ended, and waits for those that are asynchronous."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome == "failed":
                ended.append([report.nodeid, report.outcome, _reason(report)])

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                ended.append([report.nodeid, "failed", _reason(report)])

        def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
            exc = call.excinfo.value
            exc = exc if exc.__cause__ is None else exc.__cause__  # of the module with the tests
            lacks_module = isinstance(exc, ModuleNotFoundError) and exc.name not in modules
            if type(exc).__name__ == "FixtureLookupError" or (lacks_module and not _is_of_program(exc)):
                broken.add(report.nodeid)

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
            if not inspect.iscoroutinefunction(pyfuncitem.obj):
                return None
            wanted = pyfuncitem._fixtureinfo.argnames
            asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
            return True

    import builtins

    builtins._verizero_names = lambda: _named(names)  # type: ignore[attr-defined]
    builtins._verizero_said = _said  # type: ignore[attr-defined]
    del sys.modules["solution"]  # this file's own
    for name in modules:
        sys.modules[name] = __import__("solution")
    options = f"-q -p no:cacheprovider -p no:faulthandler -s --rootdir=. -c {os.devnull} test_solution.py"
    # collected from this folder, as those above it are closed where there are no namespaces
    pytest.main(["--confcutdir=.", *options.split()], plugins=[Notes()])
    return [[name, "broken" if name in broken else how, why] for name, how, why in ended]


def _is_of_program(exc: BaseException) -> bool:
    """True if a line of the program raised the exception."""
    trace, files = exc.__traceback__, set[str]()
    while trace is not None:
        files.add(os.path.basename(trace.tb_frame.f_code.co_filename))
        trace = trace.tb_next
    return "solution.py" in files


def _named(names: list[str]) -> dict[str, Any]:
    """Return the program's globals of these names, and those that are methods of its class Solution."""
    module = sys.modules["solution"]
    solution = getattr(module, "Solution", None)
    globals_of = {name: getattr(module, name) for name in names if hasattr(module, name)}
    return globals_of | {
        n: getattr(solution(), n) for n in names if n not in globals_of and solution and hasattr(solution, n)
    }


def _said(text: str, got: Any, message: Any = None) -> str:
    return f"{text}: got {got!r:.100}" if message is None else f"{text}: got {got!r:.100}: {message}"


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    no_fixture = getattr(report.longrepr, "errorstring", None)
    return (
        str(crash.message if crash is not None else no_fixture or report.longrepr or "")
        .strip()
        .partition("\n")[0][:300]
    )
