"""A halted process that is made to do single system calls, and no instruction of its own, by ptrace(2).

The process is untrusted: its memory, its registers and its code are its program's. It does one instruction at a time,
which is known to be that of a system call, with registers that we have set. No signal is delivered meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from typing import Any

from . import clocks, kernel

_STEP, _GETREGS, _SETREGS, _DETACH, _SEIZE, _MESSAGE = 9, 12, 13, 17, 0x4206, 0x4201
_GETMASK, _SETMASK = 0x420A, 0x420B
_FORKS, _SECCOMP_STOPS, _EXITKILL = 2 | 4 | 8, 0x80, 0x100000
_OPTIONS = _FORKS | _SECCOMP_STOPS | _EXITKILL
_STEPPED, _NEW_CHILD, _AT_SECCOMP, _STOPPED = 5, 5 | 1 << 8, 5 | 7 << 8, 128
_REGISTERS = struct.Struct("27Q")
_RAX, _RCX, _ORIG_RAX, _RIP, _RSP = 10, 11, 15, 16, 19
_ARGUMENTS = (14, 13, 12, 7, 9, 8)  # rdi, rsi, rdx, r10, r8, r9
_NO_CALL = (1 << 64) - 1
_RESTARTS = {(1 << 64) - n for n in (512, 513, 514, 516)}
"""Results of a call that a signal has interrupted, and that the kernel begins again."""
_INSTRUCTION = b"\x0f\x05"
_REDZONE = 128
_STOPS = (os.CLD_TRAPPED, os.CLD_STOPPED)
ROOM = 2048
"""Bytes of the process's stack that calls may use for what they point to."""
_LIMIT_S, _LIMIT_CPU_S, _LOOK_EVERY_S = 2.0, 0.1, 0.01
"""Seconds in which a process must have done a call, by the wall and by its own CPU clock. It takes microseconds."""
_SIGNALS = (_NO_CALL & ~(1 << signal.SIGTRAP - 1)).to_bytes(8, "little")
"""All signals but the one with which the kernel reports a step."""


class Disobeyed(OSError):
    """The process is gone, or has not done what it was made to do."""


def _instruction() -> int:
    """Return the address of a system call's instruction, which is the same in all forks of this process."""
    start = ctypes.cast(kernel.libc.syscall, ctypes.c_void_p).value or 0
    at = ctypes.string_at(start, 64).find(_INSTRUCTION) if kernel.MACHINE in kernel.TRACEABLE else -1
    return start + at if at >= 0 else 0


_AT = _instruction()


class Traced:
    """A process that this one traces. It stays where it is until `call` or `let_go`; it dies with us."""

    def __init__(self, pid: int, former: Traced | None = None) -> None:
        """Take hold of a process that is halted; with `former`, of the child that this process has just made."""
        self.pid = pid
        if former is None:
            _ptrace(_SEIZE, pid, 0, _OPTIONS)
        if self._stop() >> 8 != _STOPPED:
            raise Disobeyed("it did not halt")
        if former is None:
            self.registers, self.mask = self._registers(), self._mask()
            if self.read(_AT, 2) != _INSTRUCTION:
                raise Disobeyed("its code was changed")
            self._set_mask(_SIGNALS)
            self.room = (self.registers[_RSP] - _REDZONE - ROOM) & ~15
            self.before = self.read(self.room, ROOM)
        else:
            self.registers, self.mask = former.registers, former.mask
            self.room, self.before = former.room, former.before

    def call(self, number: int, *arguments: int) -> int:
        """Have the process do a system call; return its result. Raises: OSError as the call has; Disobeyed."""
        self._begin(number, arguments)
        return self._result(self._go(_AT_SECCOMP), number)

    def fork(self, number: int, flags: int) -> tuple[Traced, int]:
        """Have the process make a child, held by us before its first instruction; return it and the call's result."""
        self._begin(number, (flags, 0, 0, 0, 0))
        status = self._go(_AT_SECCOMP)
        if status != _NEW_CHILD:
            raise Disobeyed(f"it made no child: {self._result(status, number)}")
        message = ctypes.c_ulong()
        _ptrace(_MESSAGE, self.pid, 0, ctypes.addressof(message))
        try:
            result = self._result(self._go(), number)
            return Traced(message.value, self), result
        except BaseException:
            end(message.value)
            raise

    def let_go(self) -> None:
        """Let the process continue where it was, once it gets SIGCONT. Raises: OSError; Disobeyed."""
        self.write(self.room, self.before)
        registers = list(self.registers)
        if registers[_ORIG_RAX] != _NO_CALL and registers[_RAX] in _RESTARTS:
            registers[_RAX], registers[_RIP] = registers[_ORIG_RAX], registers[_RIP] - len(_INSTRUCTION)
        registers[_ORIG_RAX] = _NO_CALL
        self._set(registers)
        self._set_mask(self.mask)
        os.kill(self.pid, signal.SIGSTOP)
        _ptrace(_DETACH, self.pid, 0, 0)

    def read(self, address: int, size: int) -> bytes:
        """Return memory of the process. Raises: Disobeyed where there is none."""
        data = ctypes.create_string_buffer(size)
        _copy(kernel.libc.process_vm_readv, self.pid, address, data, size)
        return data.raw

    def write(self, address: int, data: bytes) -> None:
        """Change memory of the process. Raises: Disobeyed where there is none that can be changed."""
        _copy(kernel.libc.process_vm_writev, self.pid, address, ctypes.create_string_buffer(data, len(data)), len(data))

    def _begin(self, number: int, arguments: tuple[int, ...]) -> None:
        """Bring the process to the instruction of a system call, with its arguments."""
        registers = list(self.registers)
        registers[_RAX], registers[_RIP], registers[_ORIG_RAX], registers[_RCX] = number, _AT, _NO_CALL, 0
        for place, argument in zip(_ARGUMENTS, arguments, strict=False):
            registers[place] = argument
        self._set(registers)

    def _result(self, status: int, number: int) -> int:
        """Return the result of a call that has ended. Raises: OSError; Disobeyed."""
        registers = self._registers()
        # The instruction itself writes the address of the next to two registers: so it was this, and nothing else.
        if status != _STEPPED or registers[_RIP] != _AT + len(_INSTRUCTION) or registers[_RCX] != registers[_RIP]:
            raise Disobeyed(f"it did not do system call {number}")
        result = registers[_RAX]
        if result > _NO_CALL - 4095:
            code = _NO_CALL + 1 - result
            raise OSError(code, f"system call {number}: {os.strerror(code)}")
        return result

    def _go(self, passing: int = 0) -> int:
        """Let the process do one instruction; return why it has stopped. The stop `passing` is passed over."""
        while True:
            _ptrace(_STEP, self.pid, 0, 0)
            if (status := self._stop()) != passing:
                return status

    def _stop(self) -> int:
        """Wait until the process has stopped; return why. Raises: Disobeyed if it dies or takes too long.

        SIGCHLD must be blocked: it comes at every stop.
        """
        end, most = 0.0, 0.0
        while True:
            try:
                # All stops of a process that is traced are told, and its end.
                end_of = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if end_of is not None and end_of.si_code not in _STOPS:
                    raise Disobeyed("it has ended")
                if end_of is not None:
                    os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
                    return int(end_of.si_status)
            except ChildProcessError:
                raise Disobeyed("it is gone") from None
            if signal.sigtimedwait([signal.SIGCHLD], _LOOK_EVERY_S) is not None:
                continue  # of this process or of another
            if not end:
                end, most = time.monotonic() + _LIMIT_S, clocks.cpu_clock(self.pid) + _LIMIT_CPU_S
            elif time.monotonic() > end or clocks.cpu_clock(self.pid) > most:
                raise Disobeyed("it took too long")

    def _registers(self) -> tuple[int, ...]:
        data = ctypes.create_string_buffer(_REGISTERS.size)
        _ptrace(_GETREGS, self.pid, 0, ctypes.addressof(data))
        return _REGISTERS.unpack(data.raw)

    def _set(self, registers: list[int]) -> None:
        data = ctypes.create_string_buffer(_REGISTERS.pack(*registers), _REGISTERS.size)
        _ptrace(_SETREGS, self.pid, 0, ctypes.addressof(data))

    def _mask(self) -> bytes:
        data = ctypes.create_string_buffer(len(_SIGNALS))
        _ptrace(_GETMASK, self.pid, len(_SIGNALS), ctypes.addressof(data))
        return data.raw

    def _set_mask(self, mask: bytes) -> None:
        data = ctypes.create_string_buffer(mask, len(mask))
        _ptrace(_SETMASK, self.pid, len(mask), ctypes.addressof(data))


def end(pid: int) -> None:
    """End a process that is traced, and hear of it: until then, the process above it could not end either."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        while os.WIFSTOPPED(os.waitpid(pid, 0)[1]):
            pass


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    """See ptrace(2). Raises: Disobeyed."""
    result = kernel.libc.ptrace(ctypes.c_long(request), pid, ctypes.c_void_p(address), ctypes.c_void_p(data))
    if result < 0:
        raise Disobeyed(f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}")


def _copy(call: Any, pid: int, address: int, data: ctypes.Array[ctypes.c_char], size: int) -> None:
    """Copy all `size` bytes from or to a process. Raises: Disobeyed."""
    here, there = (struct.pack("PN", at, size) for at in (ctypes.addressof(data), address))
    count = ctypes.c_ulong(1)
    if call(pid, here, count, there, count, ctypes.c_ulong(0)) != size:
        raise Disobeyed("memory of it cannot be reached")
