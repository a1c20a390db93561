"""Run untrusted programs on their tests. This package knows nothing of rewards.

result = sandbox.run("print(int(input()) * 2)", [{"input": "4", "output": "8"}])
result.passed, result.status, result.level
"""

from verizero.sandbox.api import execute, probe, run, run_many
from verizero.sandbox.isolation import WALLS, Isolation
from verizero.sandbox.languages import TOOLS, available
from verizero.sandbox.pool import Pool, configure, default_pool
from verizero.sandbox.results import Limits, Mode, RunResult, Status, TestResult, Trial
from verizero.sandbox.session import CallResult, Session

__all__ = [
    "TOOLS", "WALLS", "CallResult", "Isolation", "Limits", "Mode", "Pool", "RunResult", "Session", "Status",
    "TestResult", "Trial", "available", "configure", "default_pool", "execute", "probe", "run", "run_many",
]  # fmt: skip
