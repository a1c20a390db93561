"""The worker: has one short-lived, walled-in child made per order, watches it, and reports how it ended.

Neither it nor its forker ever sees a program: payloads pass through them as descriptors, so nothing of one is left in
memory that the next child inherits.
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

from . import disk, forker, frames, harness, jail, kernel, process_flood, streams

_CORES = len(os.sched_getaffinity(0))
_DISK_EVERY_S = 0.05
_CROWD_EVERY_S = 0.005
"""A shell doubles in a millisecond what it has started; that there are more costs one small file to see."""
_FIRST_IN_QUEUE = -20
_PATIENCE = 20
"""A run may take this many times its wall limit where other work keeps it from a CPU."""


def main() -> None:
    """Serve orders until the judge closes its end or dies. Arguments: descriptor, configuration as JSON."""
    config = json.loads(sys.argv[2])
    streams.stow(*map(int, sys.argv[1].split(",")))
    judge = os.pidfd_open(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        cell = jail.enter(config["walls"], config["home"], config["uid"], config["tools"], config["cgroups"])
    except jail.WallFailed as exc:
        os.write(streams.CONTROL, json.dumps({"failed": exc.wall, "why": str(exc)}).encode())
        return
    streams.open_on(cell.stdin)
    harness.prepare(cell.scratch)
    try:
        children = forker.start(cell, config["host_file"], config["host_pid"])
    except jail.WallFailed as exc:
        os.write(streams.CONTROL, json.dumps({"failed": exc.wall, "why": str(exc)}).encode())
        return
    os.write(
        streams.CONTROL,
        json.dumps({"notes": cell.notes, "pid": os.getpid(), "python": sys.version.split()[0]}).encode(),
    )
    Supervisor(judge, cell, children).serve()


class Supervisor:
    """One warm process and its jail."""

    def __init__(self, judge: int, cell: jail.Jail, children: forker.Forker) -> None:
        self.sock, self.judge, self.cell, self.children = streams.CONTROL, judge, cell, children
        self.forks = bool(cell.tools) and not cell.has_namespaces
        """What a run starts may outlive its first process: no process namespace ends with that, so it becomes ours."""
        if self.forks:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if cell.worker_counts:
            with contextlib.suppress(PermissionError):  # root, whom the kernel does not bound, may mostly
                os.setpriority(os.PRIO_PROCESS, 0, _FIRST_IN_QUEUE)
        self.poll = select.poll()
        self.poll.register(self.sock, select.POLLIN)
        self.poll.register(judge, select.POLLIN)

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
            if len(packet) == len(frames.CANCEL):
                continue  # a cancellation that came after the run had ended
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
            self.children.call(
                report.why == frames.MEMORY or order.kind == frames.SELF_TEST
            )  # while the judge reads it

    def watch(self, pid: int, order: frames.Order) -> frames.Exit:
        """How the child ended; it is killed when it has used up its CPU or wall time, or the judge says so."""
        child = os.pidfd_open(pid)
        self.poll.register(child, select.POLLIN)
        start = time.monotonic()
        native = order.kind in (frames.NATIVE, frames.MANAGED)
        counts = self.cell.worker_counts
        before = process_flood.total(self.cell.proc) if counts else 0
        why, deadline, wait = frames.ENDED, start + order.wall_s, min(order.wall_s, order.cpu_s / _CORES)
        often = _DISK_EVERY_S if native or not self.cell.has_namespaces else order.wall_s
        often = _CROWD_EVERY_S if self.forks else often
        wait, looked = min(wait, often), start
        while True:
            ready = {fd for fd, _ in self.poll.poll(max(0.0, wait) * 1000 + 1)}
            if child in ready:
                break
            if self.judge in ready or self.sock in ready:
                if self.judge in ready or not os.read(self.sock, 16):
                    os.kill(pid, signal.SIGKILL)
                    self.ended(pid)
                    os._exit(0)
                why = frames.CANCELLED
            now, used = time.monotonic(), _cpu_clock(pid)
            if self.forks:
                process_flood.bury(pid)  # for the kernel the dead count
            is_due = not self.cell.has_namespaces and now >= looked + _DISK_EVERY_S
            looked = now if is_due else looked
            if used >= order.cpu_s:
                why = frames.CPU
            elif now >= deadline:
                deadline = self.later(pid, start, now, used, order.wall_s)
                why = frames.WALL if deadline <= now else why
            elif counts and process_flood.is_over(self.cell.proc, pid, order.processes, before):
                why = frames.PROCESSES
            elif is_due and disk.is_over(self.cell.scratch, order.disk_mib << 20):
                why = frames.DISK
            elif order.kind == frames.MANAGED and _resident_mib(self.cell.proc, pid) > order.memory_mib:
                why = frames.MEMORY
            elif native and os.fstat(streams.OUT).st_size > order.output_kib << 10:
                why = frames.OUTPUT  # the first process of a namespace outlives the signal that says so
            if why != frames.ENDED:
                os.kill(pid, signal.SIGKILL)
                break
            wait = min(deadline - now, max(0.005, (order.cpu_s - used) / _CORES), often)
        self.poll.unregister(child)
        status, usage = self.ended(pid)
        os.close(child)
        cpu = usage.ru_utime + usage.ru_stime
        if why == frames.ENDED and os.WIFSIGNALED(status) and cpu >= order.cpu_s:
            why = frames.CPU
        if self.cell.cgroup is not None and why == frames.ENDED:
            tried = order.kind == frames.SELF_TEST  # it has some killed on purpose, which count for no later run
            if (self.cell.tools or os.WIFSIGNALED(status) or tried) and self.cell.cgroup.killed() and not tried:
                why = frames.MEMORY
        return frames.Exit(status, why, cpu, time.monotonic() - start, usage.ru_maxrss)

    def ended(self, pid: int) -> tuple[int, resource.struct_rusage]:
        """Status and usage of the child, which is dead or dying; with it goes what it has started."""
        if self.forks:
            process_flood.kill(pid)
        _, status, usage = os.wait4(pid, 0)
        if self.forks:
            process_flood.wait(pid)
        return status, usage

    def later(self, pid: int, start: float, now: float, used: float, wall_s: float) -> float:
        """When the run will have had its wall time, leaving out what it waited for a CPU that others held."""
        waited = _cpu_wait(self.cell.proc, pid)
        if waited is None:  # no /proc: one that got some CPU is taken to have wanted more
            waited = (now - start - used) * 0.8 if used > 0.05 * (now - start) else 0.0
        return min(now + wall_s - (now - start - waited), start + _PATIENCE * wall_s)


def _cpu_clock(pid: int) -> float:
    """CPU seconds of all threads of the process so far; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _resident_mib(proc: int, pid: int) -> float:
    """Resident memory of the process; 0 when it is gone."""
    try:
        fd = os.open(f"{pid}/statm", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return 0.0
    try:
        return int(os.read(fd, 128).split()[1]) * resource.getpagesize() / (1 << 20)
    except (OSError, IndexError):
        return 0.0
    finally:
        os.close(fd)


def _cpu_wait(proc: int, pid: int) -> float | None:
    """Seconds that the process's threads stood in a queue for a CPU; None where the kernel does not say."""
    total, buffer = 0, b""
    try:
        folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:
        return None
    try:
        for task in os.listdir(folder):
            fd = os.open(f"{task}/schedstat", os.O_RDONLY, dir_fd=folder)
            buffer = os.read(fd, 128)
            os.close(fd)
            total += int(buffer.split()[1])
    except (OSError, IndexError, ValueError):
        return None
    finally:
        os.close(folder)
    return total / 1e9
