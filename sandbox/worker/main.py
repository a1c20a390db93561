"""The worker: for each order it has a child made behind the walls, watches it, and reports how it ended.

Worker and forker never read a program: they only pass descriptors of payloads. So their memory, which the next child
inherits, has nothing of an earlier program.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from functools import partial
from typing import Any

from . import disk, forker, frames, harness, kernel, processes, streams, walls
from .watching import Watch

_HIGHEST_PRIORITY = -20
_EXTRA_WALL_S = 1.0
"""Seconds that the tests of a suite have after their program's time is up."""


def main() -> None:
    """Serve orders until the caller closes its end or dies. `sys.argv`: descriptors, the configuration as JSON."""
    config = json.loads(sys.argv[2])
    bounds = config["sessions"]
    if bounds is not None:
        from . import keeper  # not in a worker of runs: its modules would make each child slower
    streams.move_descriptors(*map(int, sys.argv[1].split(",")))
    caller = os.pidfd_open(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        jail = walls.enter(
            config["walls"], config["home"], config["uid"], config["tools"], config["cgroups"], bounds is not None,
            config["packages"],
        )  # fmt: skip
        if jail.stdout >= 0:
            os.dup2(jail.stdout, streams.OUT, False)
        streams.open_on(jail.stdin)
        harness.prepare(jail.scratch, jail.packages)
        if bounds is not None:
            keeper.main(jail, caller, config)
            return
        program_forker = forker.start(jail, config["host_file"], config["host_pid"])
    except walls.WallFailed as exc:
        _answer({"failed": exc.wall, "why": str(exc), "errno": exc.errno})
        return
    _answer({"notes": jail.notes, "python": sys.version.split()[0]}, jail.stdout)
    Worker(caller, jail, program_forker).serve()


def _answer(message: dict[str, Any], file: int = -1) -> None:
    """Send the caller a message, with a descriptor if there is one."""
    data = json.dumps(message).encode()
    if file < 0:
        os.write(streams.CONTROL, data)
        return
    import _socket  # the forker has started: each library would make its children slower

    sock = _socket.socket(fileno=os.dup(streams.CONTROL))
    sock.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", file))])
    sock.close()
    os.close(file)


class Worker:
    """A process that waits for orders, with its jail and its forker."""

    def __init__(self, caller: int, jail: walls.Jail, program_forker: forker.Forker) -> None:
        self.control, self.caller, self.jail, self.forker = streams.CONTROL, caller, jail, program_forker
        if jail.processes_may_remain:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if jail.worker_must_count_processes:
            # Root has no RLIMIT_NPROC, so the worker must count. Root may mostly raise its own priority.
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST_PRIORITY)
        self.poll = select.poll()
        self.poll.register(self.control, select.POLLIN)
        self.poll.register(caller, select.POLLIN)

    def serve(self) -> None:
        """Answer orders, one at a time."""
        while True:
            self.poll.poll()
            try:
                packet = os.read(self.control, 4096)
            except OSError:
                return
            if not packet:
                return
            order = frames.Order.unpack(packet)
            is_suite = order.kind == frames.SUITE
            try:
                if self.jail.disk_mib != order.disk_mib:
                    walls.clear(self.jail, order.disk_mib)
                input_mib = os.fstat(streams.PAYLOAD).st_size >> 20
                if self.jail.cgroup is not None:
                    memory_mib = order.memory_mib * (2 if is_suite else 1) + 2 * input_mib
                    self.jail.cgroup.bound(memory_mib, order.disk_mib, order.output_kib, order.processes + is_suite)
                pid = self.forker.waiting_child()
            except OSError as exc:
                os.write(self.control, frames.Exit(-1, exc.errno or 0, 0.0, 0.0, 0).pack())
                continue
            run = self.run_suite if is_suite else self.run_one
            reports = run(pid, order, packet, input_mib)
            for index, report in enumerate(reports):
                if failure := self.forker.failure(report.status):
                    reports[index] = report._replace(status=-1, why=failure)
            os.write(self.control, b"".join(report.pack() for report in reports))
            # While the caller reads this result, the folder is emptied and the next child made.
            walls.clear(self.jail, order.disk_mib)
            self.forker.request_child()

    def run_one(self, pid: int, order: frames.Order, packet: bytes, input_mib: int) -> list[frames.Exit]:
        """Have the waiting child carry out the order; return how it ended."""
        walls.limit(pid, order, self.jail, input_mib)
        os.write(self.forker.orders, packet)
        return [self.watch(pid, order)]

    def run_suite(self, pid: int, order: frames.Order, packet: bytes, input_mib: int) -> list[frames.Exit]:
        """Have the waiting child run the tests of a suite, and a second one its program; return how both ended.

        The program is killed at a limit, or when the tests have ended. The tests have as much CPU time and memory, and
        their wall time is up a little later: so they can still say in which test the program was killed.
        """
        walls.limit(pid, order, self.jail, input_mib)
        try:
            partner = self.forker.make_partner()
        except OSError as exc:
            os.kill(pid, signal.SIGKILL)
            self.reap(pid)
            return [frames.Exit(-1, exc.errno or 0, 0.0, 0.0, 0)]
        walls.limit(partner, order, self.jail, input_mib)
        watcher = Watch(partner, order, self.jail, partial(self.is_full, order.disk_mib), ())
        os.write(self.forker.orders, packet)
        tests = self.watch(pid, order, watcher)
        wall_s, is_left_over = time.monotonic() - watcher.start, False
        with contextlib.suppress(ProcessLookupError):
            is_left_over = os.waitid(os.P_PID, partner, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            os.kill(partner, signal.SIGKILL)
        status, usage = self.reap(partner)
        for fd in (streams.PROGRAM_OUT, streams.PROGRAM_ERR):
            os.ftruncate(fd, 0)
        cpu = usage.ru_utime + usage.ru_stime
        why = watcher.why
        if why == frames.ENDED:
            why = self._kernels_reason(order, status, cpu) or (frames.LEFT_OVER if is_left_over else why)
        return [tests, frames.Exit(status, why, cpu, wall_s, usage.ru_maxrss)]

    def watch(self, pid: int, order: frames.Order, partner: Watch | None = None) -> frames.Exit:
        """Return how the child ended. It is killed at a limit, or when the caller is gone."""
        child = os.pidfd_open(pid)
        self.poll.register(child, select.POLLIN)
        is_jit_runtime = order.kind == frames.MANAGED
        # RLIMIT_FSIZE does not kill the first process of a PID namespace: it is immune to that signal.
        outputs = (streams.OUT,) if is_jit_runtime or order.kind == frames.NATIVE else ()
        watch = Watch(pid, order, self.jail, partial(self.is_full, order.disk_mib), outputs, is_jit_runtime)
        while True:
            next_look = watch.next_look if partner is None else min(watch.next_look, partner.next_look)
            ready = {fd for fd, _ in self.poll.poll(max(0.0, next_look - time.monotonic()) * 1000 + 1)}
            if child in ready:
                break
            if self.caller in ready or self.control in ready:  # no order comes during a run: the caller is gone
                os.kill(pid, signal.SIGKILL)
                self.reap(pid)
                os._exit(0)
            if partner is not None:
                if (
                    partner.next_look <= time.monotonic()
                ):  # it is not waited for: the tests notice its end by their pipe
                    with contextlib.suppress(ProcessLookupError):
                        partner.look()
                watch.wait_for(partner, _EXTRA_WALL_S)
                if watch.next_look > time.monotonic():
                    continue
            if watch.look():
                break
        self.poll.unregister(child)
        status, usage = self.reap(pid)
        os.close(child)
        cpu = max(usage.ru_utime + usage.ru_stime, watch.used_s)
        why = watch.why if watch.why != frames.ENDED else self._kernels_reason(order, status, cpu)
        return frames.Exit(status, why, cpu, time.monotonic() - watch.start, usage.ru_maxrss)

    def is_full(self, disk_mib: int) -> bool:
        """True if the scratch folder is over its limit. False with namespaces: it is a file system of that size."""
        return not self.jail.has_namespaces and disk.is_over(self.jail.scratch, disk_mib << 20)

    def _kernels_reason(self, order: frames.Order, status: int, cpu_s: float) -> int:
        """Return the limit at which the kernel killed the child; ENDED if it did not."""
        if os.WIFSIGNALED(status) and cpu_s >= order.cpu_s:
            return frames.CPU
        group, is_test = self.jail.cgroup, order.kind == frames.SELF_TEST
        if group is None or not (self.jail.tools or os.WIFSIGNALED(status) or is_test):
            return frames.ENDED
        # The self-test lets processes be killed. It calls `has_new_kills` too: they must not count for a later run.
        return frames.MEMORY if group.has_new_kills() and not is_test else frames.ENDED

    def reap(self, pid: int) -> tuple[int, resource.struct_rusage]:
        """Return status and usage of the dead or dying child, and kill all processes that it has started."""
        return processes.end(pid) if self.jail.processes_may_remain else os.wait4(pid, 0)[1:]
