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
from functools import partial
from typing import Any

from . import disk, forker, frames, harness, jail, keeper, kernel, process_flood, streams
from .watching import Allowed, Watch

_FIRST_IN_QUEUE = -20


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
        if cell.floods:
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
        limits = Allowed(order.wall_s, order.cpu_s, order.memory_mib, order.output_kib, order.processes)
        is_managed = order.kind == frames.MANAGED
        # The limit of a file's size does not end it: the first process of a namespace outlives that signal.
        outputs = (streams.OUT,) if is_managed or order.kind == frames.NATIVE else ()
        watch = Watch(pid, limits, self.cell, partial(self.is_full, order.disk_mib), outputs, is_managed)
        while True:
            ready = {fd for fd, _ in self.poll.poll(max(0.0, watch.due - time.monotonic()) * 1000 + 1)}
            if child in ready:
                break
            if self.caller in ready or self.sock in ready:  # no order comes during a run: the caller is gone
                os.kill(pid, signal.SIGKILL)
                self.ended(pid)
                os._exit(0)
            if watch.look():
                break
        self.poll.unregister(child)
        status, usage = self.ended(pid)
        os.close(child)
        cpu = usage.ru_utime + usage.ru_stime
        why = watch.why if watch.why != frames.ENDED else self._kernels_reason(order, status, cpu)
        return frames.Exit(status, why, cpu, time.monotonic() - watch.start, usage.ru_maxrss)

    def is_full(self, disk_mib: int) -> bool:
        """True if the scratch folder holds more than it may, where it is no file system of that size."""
        return not self.cell.has_namespaces and disk.is_over(self.cell.scratch, disk_mib << 20)

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
        return process_flood.end(pid) if self.cell.floods else os.wait4(pid, 0)[1:]
