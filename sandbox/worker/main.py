"""The worker: it has one short-lived, walled-in child made per order, watches it, and reports how it ended.

Worker and forker never see a program: payloads pass through them as descriptors, so their memory, which the next child
inherits, holds nothing of a program.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from . import clocks, disk, forker, frames, harness, jail, keeper, kernel, process_flood, streams

_CORES = len(os.sched_getaffinity(0))
_DISK_EVERY_S = 0.05
_COUNT_EVERY_S = 0.005
"""Seconds between two counts of processes. A shell can double them within a millisecond, and a count is cheap."""
_FIRST_IN_QUEUE = -20
_PATIENCE = 20
"""Multiple of its wall limit that a run may take while other work keeps it from a CPU."""


def main() -> None:
    """Serve orders until the caller closes its end or dies. Arguments: descriptors, configuration as JSON."""
    config = json.loads(sys.argv[2])
    streams.stow(*map(int, sys.argv[1].split(",")))
    caller = os.pidfd_open(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        bounds = config["sessions"]
        cell = jail.enter(
            config["walls"], config["home"], config["uid"], config["tools"], config["cgroups"], bounds is not None
        )
        streams.open_on(cell.stdin)
        harness.prepare(cell.scratch)
        if bounds is not None:
            keeper.main(cell, caller, config)
            return
        children = forker.start(cell, config["host_file"], config["host_pid"])
    except jail.WallFailed as exc:
        _answer({"failed": exc.wall, "why": str(exc)})
        return
    _answer({"notes": cell.notes, "python": sys.version.split()[0]})
    Supervisor(caller, cell, children).serve()


def _answer(message: dict[str, Any]) -> None:
    os.write(streams.CONTROL, json.dumps(message).encode())


class Supervisor:
    """One warm process and its jail."""

    def __init__(self, caller: int, cell: jail.Jail, children: forker.Forker) -> None:
        self.sock, self.caller, self.cell, self.children = streams.CONTROL, caller, cell, children
        self.forks = bool(cell.tools) and not cell.has_namespaces
        """True if a run's processes may outlive its first one: no process namespace ends them, and they become ours."""
        if self.forks:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if cell.worker_counts:
            # Root, for whom the kernel has no bound of processes, may mostly raise its priority.
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, _FIRST_IN_QUEUE)
        self.poll = select.poll()
        self.poll.register(self.sock, select.POLLIN)
        self.poll.register(caller, select.POLLIN)

    def serve(self) -> None:
        """Answer orders, one at a time."""
        while True:
            self.poll.poll()
            try:
                packet = os.read(self.sock, 4096)
            except OSError:
                return
            if not packet:
                return
            order = frames.Order.unpack(packet)
            try:
                if self.cell.disk_mib != order.disk_mib:
                    jail.clear(self.cell, order.disk_mib)
                if self.cell.cgroup is not None:
                    self.cell.cgroup.bound(order.memory_mib, order.disk_mib, order.output_kib, order.processes)
                pid = self.children.child()
            except OSError as exc:
                os.write(self.sock, frames.Exit(-1, exc.errno or 0, 0.0, 0.0, 0).pack())
                continue
            jail.limit(pid, order, self.cell)
            os.write(self.children.orders, packet)
            report = self.watch(pid, order)
            if failure := self.children.failure(report.status):
                report = report._replace(status=-1, why=failure)
            jail.clear(self.cell, order.disk_mib)
            os.write(self.sock, report.pack())
            # The next child is made while the caller reads this result.
            self.children.call()

    def watch(self, pid: int, order: frames.Order) -> frames.Exit:
        """Return how the child ended. It is killed when it goes over a limit, or when the caller is gone."""
        child = os.pidfd_open(pid)
        self.poll.register(child, select.POLLIN)
        start = looked = time.monotonic()
        native, namespaces = order.kind in (frames.NATIVE, frames.MANAGED), self.cell.has_namespaces
        before = process_flood.total(self.cell.proc) if self.cell.worker_counts else 0
        why, deadline = frames.ENDED, start + order.wall_s
        often = _DISK_EVERY_S if native or not namespaces else order.wall_s
        often = _COUNT_EVERY_S if self.forks else often
        wait = min(order.wall_s, order.cpu_s / _CORES, often)
        while True:
            ready = {fd for fd, _ in self.poll.poll(max(0.0, wait) * 1000 + 1)}
            if child in ready:
                break
            if self.caller in ready or self.sock in ready:  # no order comes during a run: the caller is gone
                os.kill(pid, signal.SIGKILL)
                self.ended(pid)
                os._exit(0)
            now, used = time.monotonic(), clocks.cpu_clock(pid)
            if self.forks:
                process_flood.bury(pid)  # the kernel counts the dead too
            is_due = not namespaces and now >= looked + _DISK_EVERY_S
            looked = now if is_due else looked
            if used >= order.cpu_s:
                why = frames.CPU
            elif now >= deadline:
                deadline = self.later(pid, start, now, used, order.wall_s)
                why = frames.WALL if deadline <= now else why
            elif self.cell.worker_counts and process_flood.is_over(self.cell.proc, pid, order.processes, before):
                why = frames.PROCESSES
            elif is_due and disk.is_over(self.cell.scratch, order.disk_mib << 20):
                why = frames.DISK
            elif order.kind == frames.MANAGED and clocks.resident_mib(self.cell.proc, pid) > order.memory_mib:
                why = frames.MEMORY
            elif native and os.fstat(streams.OUT).st_size > order.output_kib << 10:
                # The file size limit does not end it: the first process of a namespace outlives that signal.
                why = frames.OUTPUT
            if why != frames.ENDED:
                os.kill(pid, signal.SIGKILL)
                break
            wait = min(deadline - now, max(0.005, (order.cpu_s - used) / _CORES), often)
        self.poll.unregister(child)
        status, usage = self.ended(pid)
        os.close(child)
        cpu = usage.ru_utime + usage.ru_stime
        if why == frames.ENDED:
            why = self._kernels_reason(order, status, cpu)
        return frames.Exit(status, why, cpu, time.monotonic() - start, usage.ru_maxrss)

    def _kernels_reason(self, order: frames.Order, status: int, cpu_s: float) -> int:
        """Return the limit for which the kernel ended a child, ENDED if there is none."""
        if os.WIFSIGNALED(status) and cpu_s >= order.cpu_s:
            return frames.CPU
        group, is_test = self.cell.cgroup, order.kind == frames.SELF_TEST
        if group is None or not (self.cell.tools or os.WIFSIGNALED(status) or is_test):
            return frames.ENDED
        # The self-test has processes killed on purpose. It asks as well, so that they count for no later run.
        return frames.MEMORY if group.killed() and not is_test else frames.ENDED

    def ended(self, pid: int) -> tuple[int, resource.struct_rusage]:
        """Return status and usage of the child, which is dead or dying, and end all processes that it has started."""
        if self.forks:
            process_flood.kill(pid)
        _, status, usage = os.wait4(pid, 0)
        if self.forks:
            process_flood.wait(pid)
        return status, usage

    def later(self, pid: int, start: float, now: float, used: float, wall_s: float) -> float:
        """Return the time at which the run will have had its wall time, without its waits for a busy CPU."""
        waited = clocks.cpu_wait(self.cell.proc, pid)
        if waited is None:  # without /proc, a run that got some CPU is taken to have wanted more
            waited = (now - start - used) * 0.8 if used > 0.05 * (now - start) else 0.0
        return min(now + wall_s - (now - start - waited), start + _PATIENCE * wall_s)
