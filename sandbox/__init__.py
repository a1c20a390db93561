"""Run untrusted programs on their tests. This package knows nothing of rewards.

result = sandbox.run("print(int(input()) * 2)", [{"input": "4", "output": "8"}])
result.passed, result.status, result.level
"""

from sandbox.api import Trial, configure, default_pool, execute, probe, run, run_many, shutdown
from sandbox.calls import CallResult, Quota
from sandbox.isolation import WALLS, Isolation
from sandbox.keepers import SessionBounds
from sandbox.languages import TOOLS, available, run_language
from sandbox.pool import Pool
from sandbox.results import Limits, Mode, RunResult, Status, TestResult
from sandbox.session import Session
from sandbox.snapshots import Snapshot

__all__ = [
    "TOOLS",
    "WALLS",
    "CallResult",
    "Isolation",
    "Limits",
    "Mode",
    "Pool",
    "Quota",
    "RunResult",
    "Session",
    "SessionBounds",
    "Snapshot",
    "Status",
    "TestResult",
    "Trial",
    "available",
    "configure",
    "default_pool",
    "execute",
    "probe",
    "run",
    "run_language",
    "run_many",
    "shutdown",
]
