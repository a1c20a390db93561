"""A fake sandbox that runs trusted test programs in this process, and keeps the jobs that it ran."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

from verizero.sandbox import TestResult
from verizero.verifiers._sandbox_jobs import Job, Outcome


class FakeSandbox:
    """Meets the protocol `Run`: same statuses and shares as the sandbox, no walls."""

    def __init__(self, down: bool = False) -> None:
        self.ran: list[Job] = []
        self.down = down

    def __call__(self, jobs: Sequence[Job]) -> list[Outcome]:
        if self.down:
            raise OSError("no worker left")
        self.ran.extend(jobs)
        return [self.outcome(job) for job in jobs]

    def outcome(self, job: Job) -> Outcome:
        done = tuple(self.one(job, test) for test in job.tests)
        failed = next((t for t in done if t.status != "passed"), None)
        share = sum(t.status == "passed" for t in done) / len(done)
        return Outcome(failed.status if failed else "passed", share, "", 0.01, done)

    def one(self, job: Job, test: Any) -> TestResult:
        printed = io.StringIO()
        space: dict[str, Any] = {"__name__": "__main__" if job.mode == "stdin" else "program"}
        try:
            with mock.patch.object(sys, "stdin", io.StringIO(test.get("input", ""))):
                with contextlib.redirect_stdout(printed):
                    exec(compile(job.program, "program", "exec"), space)
                    if job.mode == "function" and test["fn"] not in space:
                        space[test["fn"]] = getattr(space["Solution"](), test["fn"])
                    value = space[test["fn"]](*test["args"]) if job.mode == "function" else None
        except TimeoutError:
            return TestResult("timeout")
        except Exception:
            return TestResult("runtime_error")
        if job.mode == "stdin":
            right = printed.getvalue().split() == test["output"].split()
        else:
            right = type(value) is type(test["expected"]) and value == test["expected"]
        return TestResult("passed" if right else "wrong_answer", printed.getvalue())
