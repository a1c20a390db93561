"""A Prefect flow that verifies programs, in itself and in tasks that run at one time: prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from flows.server import QUIET, EmbeddedServer

TESTS = [{"input": str(i), "output": str(2 * i)} for i in range(3)]


def main(folder: Path) -> None:
    """Start a server, run the flow against it, and stop it."""
    server = EmbeddedServer(folder / "prefect", folder / "server.log")
    os.environ.update(QUIET | server.settings(folder / "prefect"))
    try:
        server.wait(300)
        _run()
    finally:
        server.stop()


def _run() -> None:
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    import sandbox

    @task
    def one(factor: int) -> str:
        return sandbox.run(f"print(int(input()) * {factor})", TESTS).status

    @task
    async def another(factor: int) -> str:
        return (await sandbox.run_async(f"print(int(input()) * {factor})", TESTS)).status

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=6))
    def verify() -> dict[str, list[str]]:
        sandbox.configure(workers=2)
        waiting = [(one if i % 2 else another).submit(i) for i in range(8)]
        beside = sandbox.run("print(int(input()) * 2)", TESTS).status
        return {"tasks": [w.result() for w in waiting], "flow": [beside]}

    said = verify()
    workers = [w.process.pid for w in sandbox.default_pool()._all]
    sandbox.shutdown()
    print(json.dumps({**said, "workers": workers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
