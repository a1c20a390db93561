"""The whole suite of programs against one pool, without a test framework, so that any user and interpreter can run it.

`python -m tests.sandbox.suite [walls,...]` prints one line per program that did not end as it must.
"""

import secrets
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tests.sandbox import across, programs
from tests.sandbox.scene import BEGIN, Scene
from verizero import sandbox

_SMALL = sandbox.Limits(wall_s=120, cpu_s=30, memory_mib=64, output_kib=1024, disk_mib=8, processes=16)
# Time is short only for programs that must run into it: on a busy machine the others take long to fill memory or disk.
EXHAUST_LIMITS = {"timeout": replace(_SMALL, wall_s=0.7), "cpu_limit": replace(_SMALL, cpu_s=0.1)}
_FILLS_FIRST = {"fill memory and catch it": replace(_SMALL, cpu_s=0.3)}
"""It must have its MemoryError before its time is over."""
ACT_LIMITS = sandbox.Limits(wall_s=5, cpu_s=3, memory_mib=256, disk_mib=8)
_BREAKS = {"passed", "sandbox_error"}
WORKERS = 4
"""Workers of a suite's pool: more than cores, because many programs sleep."""


@dataclass(frozen=True)
class SuiteProgram:
    """One program of the suite, and the statuses that it may end with."""

    name: str
    trial: sandbox.Trial
    allowed: frozenset[str]
    must_begin: bool = True

    def complaint(self, result: sandbox.RunResult) -> str | None:
        """Return the fault of the result, None if it has none."""
        if result.status not in self.allowed:
            return f"{self.name}: {result.status}, not {sorted(self.allowed)}: {result.error[-200:]!r}"
        if self.must_begin and "attempt begins" not in result.error and result.status != "output_limit":
            return f"{self.name}: {result.status}, but it never began: {result.error[-200:]!r}"
        return None


_STOPPED = frozenset(
    {"wrong_answer", "runtime_error", "timeout", "cpu_limit", "memory_limit", "output_limit", "bad_output"}
)


def act_trials(scene: Scene) -> Iterator[SuiteProgram]:
    """Yield programs that try acts which must be stopped, and that would pass if the acts succeeded."""
    for category, table in programs.ACTS.items():
        for name, code in table.items():
            trial = sandbox.Trial(scene.program(code), [{"input": "", "output": "PWNED"}], "stdin", ACT_LIMITS)
            yield SuiteProgram(f"{category}: {name}", trial, _STOPPED)


def exhaust_trials(isolation: sandbox.Isolation) -> Iterator[SuiteProgram]:
    """Yield programs that use too much, or break, each with the status that it must have behind these walls."""
    table = [(name, code, status) for status, codes in programs.EXHAUST.items() for name, code in codes.items()]
    for name, code, at_level_3 in table:
        status = programs.AT_LEVEL_2.get(name, at_level_3) if isolation.level < 3 else at_level_3
        if isolation.stands["cgroup"]:
            status = programs.IN_A_GROUP.get(name, status)
        allowed = {status, programs.BY_INTERPRETER.get(name, status)}
        began = BEGIN if "syntax" not in name and "null" not in name else ""
        limits = EXHAUST_LIMITS.get(status, _SMALL)
        if status == "cpu_limit":
            limits = _FILLS_FIRST.get(name, limits)
        trial = sandbox.Trial(began + code, [{"input": "", "output": "TOKEN"}], "stdin", limits)
        yield SuiteProgram(f"exhaust: {name}", trial, frozenset(allowed), bool(began) and "flood errors" not in name)


def hack_trials() -> Iterator[SuiteProgram]:
    """Yield programs that want to pass without the answer, on three tests whose outputs nobody can know."""
    for name, code in programs.HACKS["stdin"].items():
        token = "tok" + f"en-{secrets.token_hex(8)}"
        tests = [{"input": f"{i}\n", "output": f"{token}-{i}"} for i in range(3)]
        yield SuiteProgram(f"hack: {name}", sandbox.Trial(code, tests, "stdin", ACT_LIMITS), _STOPPED, False)
    for name, (code, expected) in programs.HACKS["function"].items():
        value = eval(expected, {"nan": float("nan")})
        tests = [{"fn": "f", "args": [[1]], "expected": 12345 if value is None else value}] * 2
        yield SuiteProgram(f"hack: {name}", sandbox.Trial(code, tests, "function", ACT_LIMITS), _STOPPED, False)


def honest_trials() -> Iterator[SuiteProgram]:
    """Yield programs that must pass."""
    limits = sandbox.Limits(wall_s=10, cpu_s=5, memory_mib=512, output_kib=2048)
    for name, (code, pairs) in programs.HONEST.items():
        tests = [{"input": i, "output": o} for i, o in eval(pairs)]
        yield SuiteProgram(f"honest: {name}", sandbox.Trial(code, tests, "stdin", limits), frozenset({"passed"}), False)


def linger_complaints(pool: sandbox.Pool) -> Iterator[str]:
    """Yield what one program left for the next on the same worker. `pool` must have one worker."""
    for name, (leave, find) in programs.LINGER.items():
        first = sandbox.run(f"{leave}\nprint('left', flush=True)", [{"input": "", "output": "left"}], pool=pool)
        if name != "bytes in its input" and not first.passed:
            yield f"linger: {name}: could not be left: {first.status} {first.error}"
        second = sandbox.run(f"{BEGIN}{find}\nprint('found')", [{"input": "", "output": "found"}], pool=pool)
        if second.status in _BREAKS or "attempt begins" not in second.error:
            yield f"linger: {name}: {second.status} {second.error[-200:]}"


def program_complaints(walls: Iterable[str]) -> list[str]:
    """Run all programs behind these walls, and return the complaints."""
    scene = Scene()
    try:
        with sandbox.Pool(workers=WORKERS, walls=walls) as pool:
            isolation = pool.isolation
            members = [*act_trials(scene), *exhaust_trials(isolation), *hack_trials(), *honest_trials()]
            results = sandbox.run_many([m.trial for m in members], pool=pool)
            print(f"{len(members)} programs at level {isolation.level}; {dict(isolation.notes)}", flush=True)
        return [c for m, r in zip(members, results, strict=True) if (c := m.complaint(r))] + scene.harm()
    finally:
        scene.close()


def run(walls: list[str]) -> list[str]:
    """Try everything behind these walls, and return all complaints."""
    complaints = program_complaints(walls)
    with sandbox.Pool(workers=1, walls=walls) as pool:
        complaints += linger_complaints(pool)
    with sandbox.Pool(workers=1, walls=walls, tools=sandbox.TOOLS) as pool:
        return complaints + across.complaints(pool)


if __name__ == "__main__":
    faults = run(sys.argv[1].split(",") if len(sys.argv) > 1 else list(sandbox.WALLS))
    print("\n".join(faults) or "all as it must be")
    sys.exit(1 if faults else 0)
