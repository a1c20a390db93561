"""Executions per second, latency and CPU of the sandbox, a plain subprocess and bubblewrap, side by side."""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Started as a script, our own folder comes first, where `sandbox` is this file.
sys.path[:] = [str(Path(__file__).resolve().parents[1]), *(p for p in sys.path if Path(p).name != "benchmarks")]

from tests.sandbox.processes import descendants, worker_pids  # noqa: E402
from verizero import sandbox  # noqa: E402

PROGRAM = "print(int(input()) * 2)"
TESTS = [{"input": f"{i}\n", "output": f"{2 * i}"} for i in range(10)]
PLAIN = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", PROGRAM]


def bubblewrap() -> list[str] | None:
    """Return a command that runs the plain program in all of bubblewrap's namespaces; None if it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    binds = [
        x for p in ("/usr", "/lib", "/lib64", "/bin", sys.base_prefix) if Path(p).exists() for x in ("--ro-bind", p, p)
    ]
    return [program, *binds, "--proc", "/proc", "--dev", "/dev", "--unshare-all", "--die-with-parent", *PLAIN]


def by_command(command: list[str]) -> Callable[[int], bool]:
    """Return a function that runs a program's first n tests, one process for each."""

    def run(count: int) -> bool:
        for test in TESTS[:count]:
            done = subprocess.run(command, input=test["input"].encode(), capture_output=True)
            if done.stdout.decode().strip() != test["output"]:
                return False
        return True

    return run


def cpu_seconds(pool: sandbox.Pool | None) -> float:
    """Return the CPU seconds of this process, its ended children, and the pool's workers with all processes below."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for pid in (p for w in (worker_pids(pool) if pool else ()) for p in (w, *descendants(w))):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # a run that has ended meanwhile, and that its worker counts
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(run: Callable[[int], bool], count: int, seconds: float, pool: sandbox.Pool | None) -> dict[str, float]:
    """Run a program with `count` tests from twice as many threads as cores for about `seconds`; return the speed."""
    threads, times = 2 * len(os.sched_getaffinity(0)), []
    end = time.monotonic() + seconds

    def loop(_: int) -> None:
        while time.monotonic() < end:
            begun = time.monotonic()
            if not run(count):
                raise SystemExit("a benchmark program did not pass")
            times.append(time.monotonic() - begun)

    cpu, begun = cpu_seconds(pool), time.monotonic()
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(loop, range(threads)))
    took, used = time.monotonic() - begun, cpu_seconds(pool) - cpu
    times.sort()
    return {
        "rate": len(times) / took,
        "p50": statistics.median(times) * 1e3,
        "p99": times[int(len(times) * 0.99)] * 1e3,
        "cpu": used / len(times) * 1e3,
    }


def compare(seconds: float, rounds: int) -> None:
    """Print all variants side by side; rounds are interleaved, so that other work on the machine hits all alike."""
    with sandbox.Pool() as pool:
        isolation = pool.isolation
        print(f"sandbox at level {isolation.level}: {', '.join(w for w, up in isolation.stands.items() if up)}")
        variants: list[tuple[str, Callable[[int], bool], sandbox.Pool | None]] = [
            ("python -I -S", by_command(PLAIN), None),
            ("sandbox", lambda n: sandbox.run(PROGRAM, TESTS[:n], pool=pool).passed, pool),
        ]
        if wrapped := bubblewrap():
            variants.insert(1, ("bubblewrap", by_command(wrapped), None))
        for count, bar in ((1, 4.5), (10, 30)):
            print(f"\n{count} test(s)         programs/s   p50 ms   p99 ms   CPU ms   times plain (by CPU)")
            measured: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in variants}
            for _ in range(rounds):
                for name, run, used in variants:
                    run(count)
                    measured[name].append(measure(run, count, seconds, used))
            middle = {n: {k: statistics.median(x[k] for x in r) for k in r[0]} for n, r in measured.items()}
            plain = middle["python -I -S"]
            for name, m in middle.items():
                ratio = f"{m['rate'] / plain['rate']:6.1f} ({plain['cpu'] / m['cpu']:.1f})"
                print(f"{name:16} {m['rate']:12.1f} {m['p50']:8.2f} {m['p99']:8.2f} {m['cpu']:8.2f}   {ratio}")
            reached = middle["sandbox"]["rate"] / plain["rate"]
            print(f"bar: {bar} times plain; reached {reached:.1f}: {'yes' if reached >= bar else 'NO'}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    settings = parser.parse_args()
    compare(settings.seconds, settings.rounds)


if __name__ == "__main__":
    main()
