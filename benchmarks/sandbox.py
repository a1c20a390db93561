"""Executions per second, latency and CPU of the sandbox, a plain subprocess and bubblewrap; and a soak.

python benchmarks/sandbox.py            side by side, a trivial program and one with 10 tests
python benchmarks/sandbox.py --soak N   N runs, a tenth hostile; growth, and the first and the last thousand
python benchmarks/sandbox.py --sessions N   calls of sessions, and the memory of N that sleep
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Started as a script, our own folder comes first, where `sandbox` is this file.
sys.path[:] = [str(Path(__file__).resolve().parents[1]), *(p for p in sys.path if Path(p).name != "benchmarks")]

from verizero import sandbox  # noqa: E402

PROGRAM = "print(int(input()) * 2)"
TESTS = [{"input": f"{i}\n", "output": f"{2 * i}"} for i in range(10)]
PLAIN = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", PROGRAM]
HOSTILE = (
    "while True: pass",
    "a = []\nwhile True: a.append('x' * 10 ** 6)",
    "import os\nwhile True: os.fork()",
    "i = 0\nwhile True: open(f'f{i}', 'w').write('x' * 10 ** 5); i += 1",
    "import os; os._exit(0)",
    "import time; time.sleep(60)",
    "while True: print('x' * 10 ** 5)",
    "import ctypes; ctypes.string_at(0)",
)
HOSTILE_LIMITS = sandbox.Limits(wall_s=0.2, cpu_s=0.1, memory_mib=128, disk_mib=4)


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
    for pid in (p for w in (worker_pids(pool) if pool else ()) for p in (w, *below(w))):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # a run that has ended meanwhile, and that its worker counts
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def worker_pids(pool: sandbox.Pool) -> list[int]:
    """Return the process ids of the pool's workers."""
    return [w.process.pid for w in list(pool._all)]


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


HISTORY = ("import json, re\nx = [i * i for i in range(1000)]", "def f(y): return sum(y)", "print(f(x))")
"""The calls of a session before it sleeps."""


def tree_cpu(pool: sandbox.Pool) -> float:
    """Return the CPU seconds of this process and the keeper, with all processes below it and those that have ended."""
    own, total = resource.getrusage(resource.RUSAGE_SELF), 0.0
    keeper = pool.keeper().worker.process.pid
    for pid in (keeper, *below(keeper)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total + own.ru_utime + own.ru_stime


def timed(name: str, act: Callable[[int], None], count: int, pool: sandbox.Pool) -> None:
    """Print the wall time of one act, its 50th and 99th percentile, and its CPU time with all processes."""
    times, cpu = [], tree_cpu(pool)
    for number in range(count):
        begun = time.perf_counter()
        act(number)
        times.append(time.perf_counter() - begun)
    used = tree_cpu(pool) - cpu
    times.sort()
    p50, p99 = times[count // 2] * 1e3, times[int(count * 0.99)] * 1e3
    print(f"{name:34} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   CPU {used / count * 1e3:6.2f} ms", flush=True)


def used_mib() -> float:
    """Return the memory of the machine that is neither free nor can be freed: page tables and the kernel's included."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) / 1024


def sessions(count: int) -> None:
    """Print what calls cost, and the memory of sessions that sleep."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8 * count + 200)), hard))
    with sandbox.Pool(workers=1, tools=sandbox.TOOLS) as pool:
        print(f"sessions at level {pool.keeper().level}")
        base = sandbox.Session(pool, quota=sandbox.Quota(calls=10_000))
        base.python("x = 0")
        timed("a call of Python", lambda _: expect(base.python("x += 1; print(x)")), 500, pool)
        timed("a call of the shell", lambda n: expect(base.shell(f"echo {n} > f")), 50, pool)
        opened: list[sandbox.Session] = []
        timed("open, first call", lambda _: first_call(opened, pool), 100, pool)
        close_all(opened)
        time.sleep(1)
        before = used_mib()
        for _ in range(count):
            first_call(opened, pool)
            for code in HISTORY:
                expect(opened[-1].python(code))
        time.sleep(1)
        each = (used_mib() - before) / count
        print(f"{count} sleeping: {each:.2f} MiB each, so 2,000 take {each * 2000 / 1024:.1f} GiB of 8")
        timed(f"a call, {count} others asleep", lambda _: expect(base.python("x += 1; print(x)")), 500, pool)
        close_all([*opened, base])


def first_call(opened: list[sandbox.Session], pool: sandbox.Pool) -> None:
    """Open a session and make its interpreter."""
    opened.append(sandbox.Session(pool))
    expect(opened[-1].python("x = 1"))


def expect(result: sandbox.CallResult) -> None:
    """End the benchmark if a call did not pass."""
    if not result.passed:
        raise SystemExit(f"a benchmark call did not pass: {result}")


def close_all(opened: list[sandbox.Session]) -> None:
    """Close these sessions."""
    while opened:
        opened.pop().close()
    time.sleep(0.2)


def below(pid: int) -> list[int]:
    """Return all processes below `pid`."""
    try:
        threads = Path(f"/proc/{pid}/task").iterdir()
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []
    return children + [p for child in children for p in below(child)]


def resident_mib(pid: int) -> float:
    """Return the memory of the process, 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) / 256
    except OSError:
        return 0.0


def state(pool: sandbox.Pool) -> dict[str, float]:
    """Return the numbers of this process and its workers that must not grow: descriptors, processes, memory, files."""
    workers, end = list(pool._all), time.monotonic() + 60
    pids = [w.process.pid for w in workers]
    while len(tree := below(os.getpid())) < 3 * len(pids) and time.monotonic() < end:
        time.sleep(0.01)  # each worker has a forker and a waiting child, which is made after the last run
    files = [f for w in workers for f in Path(w.home).rglob("*")]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")) + sum(len(os.listdir(f"/proc/{p}/fd")) for p in pids),
        "processes": len(tree),
        "caller MiB": resident_mib(os.getpid()),
        "workers MiB": sum(map(resident_mib, tree)),
        "files": len(files),
        "disk KiB": sum(f.lstat().st_blocks for f in files) / 2,
        "in memory KiB": sum(os.fstat(fd).st_blocks for w in workers for fd in w.files) / 2,
    }


def programs(total: int) -> Iterator[tuple[str, bool]]:
    """Yield `total` programs, every tenth hostile, each with True if it is honest."""
    for number in range(total):
        hostile = number % 10 == 9
        yield (HOSTILE[number // 10 % len(HOSTILE)], False) if hostile else (PROGRAM, True)


def soak(total: int) -> None:
    """Run `total` programs and print what grew; exits with 1 when an honest one failed or a hostile one passed."""
    wrong, honest_times = 0, []
    with sandbox.Pool() as pool:

        def one(item: tuple[str, bool]) -> tuple[bool, float]:
            code, honest = item
            begun = time.monotonic()
            limits = sandbox.Limits() if honest else HOSTILE_LIMITS
            result = sandbox.run(code, TESTS[1:2], limits=limits, pool=pool)
            return result.passed == honest and result.status != "sandbox_error", time.monotonic() - begun

        with ThreadPoolExecutor(pool.size) as executor:
            list(
                executor.map(one, programs(1000))
            )  # every worker is up, every kind of program has run, buffers have grown
        before, begun, cpu = state(pool), time.monotonic(), cpu_seconds(pool)
        with ThreadPoolExecutor(pool.size) as executor:
            todo = programs(total)
            while batch := list(itertools.islice(todo, 1000)):
                for (_, honest), (good, seconds) in zip(batch, executor.map(one, batch), strict=True):
                    wrong += not good
                    if honest:
                        honest_times.append(seconds)
        took, cpu, after = time.monotonic() - begun, cpu_seconds(pool) - cpu, state(pool)
    print(f"{total} runs in {took:.0f} s, {total / took:.0f} per second; {wrong} did not end as they must")
    for name in before:
        print(f"{name:13} before {before[name]:10.1f}   after {after[name]:10.1f}")
    edge = min(1000, len(honest_times) // 2)
    first, last = statistics.median(honest_times[:edge]), statistics.median(honest_times[-edge:])
    print(f"median of the first {edge} honest runs {first * 1e3:.2f} ms, of the last {last * 1e3:.2f} ms")
    print(f"their wall time is the machine's too: {cpu / total * 1e3:.2f} CPU ms per run, the hostile ones' included")
    sys.exit(1 if wrong else 0)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soak", type=int, metavar="N", help="run N programs and look for growth")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, metavar="N", help="measure sessions, N of them asleep")
    settings = parser.parse_args()
    if settings.sessions:
        sessions(settings.sessions)
    elif settings.soak:
        soak(settings.soak)
    else:
        compare(settings.seconds, settings.rounds)


if __name__ == "__main__":
    main()
