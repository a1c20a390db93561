"""Run untrusted programs and say what came of them. Knows nothing of rewards.

result = sandbox.run("print(int(input()) * 2)", [{"input": "4", "output": "8"}])
result.passed, result.status, result.level
"""

from sandbox.api import (
    Trial,
    configure,
    default_pool,
    execute,
    probe,
    run,
    run_async,
    run_many,
    run_many_async,
    shutdown,
)
from sandbox.isolation import WALLS, Isolation
from sandbox.languages import available, run_language
from sandbox.pool import Pool
from sandbox.results import Limits, Mode, RunResult, Status, TestResult

__all__ = [
    "WALLS",
    "Isolation",
    "Limits",
    "Mode",
    "Pool",
    "RunResult",
    "Status",
    "TestResult",
    "Trial",
    "available",
    "configure",
    "default_pool",
    "execute",
    "probe",
    "run",
    "run_async",
    "run_language",
    "run_many",
    "run_many_async",
    "shutdown",
]
