"""Kill workers, forkers, runs and compilers of a sandbox service, and the service: no verdict may be wrong.

python benchmarks/sandbox_kills.py --runs 800 --every 0.4

Half of the programs are right. A process is killed every so many seconds, and the service itself once, in the middle.
At the end `/health` must name the walls of the beginning. Exits with 1 for a wrong verdict, a lost wall or a leftover.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

# Started as a script, our own folder comes first, where `sandbox` is a file.
sys.path[:] = [str(Path(__file__).resolve().parents[1]), *(p for p in sys.path if Path(p).name != "benchmarks")]

from verizero import sandbox  # noqa: E402
from verizero.sandbox.client import Client  # noqa: E402

TOKEN = "kills"
TESTS = [{"input": f"{i}\n", "output": f"{2 * i}\n"} for i in range(3)]
CPP = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << %s << std::endl; }"
COMPILERS = ("cc1plus", "as", "collect2", "ld", "g++")
CLIENTS = 8


class Service:
    """A service in a process of its own, on one port, which can be killed and started again."""

    def __init__(self) -> None:
        self.port = 0
        self.process = self._start("0")
        self.url = f"http://127.0.0.1:{self.port}"

    def _start(self, port: str) -> subprocess.Popen[str]:
        code = "import sys; from verizero.pipeline.cli import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", code, "sandbox", "serve", "--port", port, "--workers", "4"]
        environment = os.environ | {"SANDBOX_TOKEN": TOKEN, "PYTHONPATH": sys.path[0]}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit("the service does not start")
        self.port = int(line.rsplit(":", 1)[1])
        return process

    def kill_and_restart(self) -> None:
        """Kill the service, and start it again on its port."""
        self.process.kill()
        self.process.wait()
        self.process = self._start(str(self.port))

    def health(self) -> dict[str, Any]:
        """Return what the service says of itself; an error text where it says no."""
        request = urllib.request.Request(f"{self.url}/health", headers={"Authorization": f"Bearer {TOKEN}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return dict(json.load(reply))
        except urllib.error.HTTPError as exc:
            return {"error": f"{exc.code} {exc.read().decode()[:200]}"}


def processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the name of every process."""
    known = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = stat.read_text().rpartition(")")
            known[int(stat.parent.name)] = (int(rest.split()[1]), head.partition("(")[2])
    return known


def victims(service: int) -> dict[str, list[int]]:
    """Return the processes below the service by what they are. A worker's first child is its forker."""
    known = processes()
    children = {pid: sorted(p for p, (parent, _) in known.items() if parent == pid) for pid in known}
    workers = children.get(service, [])
    runs = [pid for worker in workers for pid in children[worker][1:]]
    return {
        "worker": workers, "forker": [children[worker][0] for worker in workers if children[worker]], "run": runs,
        "compiler": [pid for pid, (_, name) in known.items() if name in COMPILERS and is_below(pid, service, known)],
    }  # fmt: skip


def is_below(pid: int, ancestor: int, known: dict[int, tuple[int, str]]) -> bool:
    """True if `ancestor` started the process, or one that did."""
    while pid in known and pid != ancestor:
        pid = known[pid][0]
    return pid == ancestor


def kill_on(service: Service, every_s: float, stop: threading.Event, killed: Counter[str]) -> None:
    """Kill a process of each kind in turn, workers most often."""
    dice, kinds = random.Random(0), ("worker", "forker", "worker", "run", "compiler")
    number = 0
    while not stop.wait(every_s):
        for kind in (kinds[number % len(kinds)], "worker"):
            chosen = victims(service.process.pid)[kind]
            if chosen:
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(chosen), signal.SIGKILL)
                    killed[kind] += 1
                break
        number += 1


def trial(number: int) -> sandbox.Trial:
    """Return a program, which is right if its number is even; every tenth is in C++."""
    value = "2 * n" if number % 2 == 0 else "n + 1000"
    limits = sandbox.Limits(wall_s=20)
    if number % 20 < 2:
        return sandbox.Trial(CPP % f"({value})", TESTS, limits=limits, language="cpp")
    return sandbox.Trial(f"import time\ntime.sleep(0.01)\nn = int(input())\nprint({value})", TESTS, limits=limits)


def main() -> int:
    """Run the programs under kills; print the counts and return 1 if one of them is bad."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=800)
    parser.add_argument("--every", type=float, default=0.4, help="seconds between two kills")
    arguments = parser.parse_args()
    service, stop, killed = Service(), threading.Event(), Counter[str]()
    before, client, statuses = service.health(), Client(service.url, TOKEN), Counter[tuple[str, str]]()
    killer = threading.Thread(target=kill_on, args=(service, arguments.every, stop, killed))
    killer.start()
    started, slowest = time.monotonic(), 0.0

    def judge(number: int) -> None:
        nonlocal slowest
        if number == arguments.runs // 2:
            service.kill_and_restart()
            killed["service"] += 1
        began = time.monotonic()
        (result,) = client.run_many([trial(number)])
        slowest = max(slowest, time.monotonic() - began)
        statuses["right" if number % 2 == 0 else "wrong", result.status] += 1
        if result.status == "sandbox_error":
            print(f"program {number}: {result.error[-200:]!r}")

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(judge, range(arguments.runs)))
    seconds = time.monotonic() - started
    stop.set()
    killer.join()
    health = service.health()
    last = list(victims(service.process.pid)["worker"])
    service.process.terminate()
    service.process.wait()
    left = [pid for pid in last if Path(f"/proc/{pid}").exists()]
    allowed = {("right", "passed"), ("wrong", "wrong_answer"), ("right", "sandbox_error"), ("wrong", "sandbox_error")}
    bad = {key: count for key, count in statuses.items() if key not in allowed}
    lost = {key: (before.get(key), health.get(key)) for key in ("level", "walls") if before.get(key) != health.get(key)}
    print(f"{arguments.runs} programs in {seconds:.0f} s, the slowest {slowest:.1f} s; killed: {dict(killed)}")
    print(f"verdicts: {dict(statuses)}; wrong: {bad or 'none'}")
    print(f"lost walls: {lost or 'none'}; processes left: {left or 'none'}")
    return 1 if bad or lost or left else 0


if __name__ == "__main__":
    sys.exit(main())
