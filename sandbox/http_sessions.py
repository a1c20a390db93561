"""Sessions over HTTP: opened, called, closed by an id that nobody can guess."""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from verizero.pipeline.errors import IsolationError
from verizero.sandbox.calls import Quota
from verizero.sandbox.http_requests import Call, Named, Open, Python, Read, Shell, Write
from verizero.sandbox.pool import Pool
from verizero.sandbox.results import Limits
from verizero.sandbox.session import Session


class UnknownSession(LookupError):
    """There is no session of that id."""


@dataclass(slots=True)
class _Open:
    """An open session, the time when its last call ended (seconds of `Sessions.clock`), and its calls that now run."""

    session: Session
    last: float
    calls: int = 0


class Sessions:
    """The sessions of a service. One that nobody calls for `expires_s` after its last call has ended is closed."""

    def __init__(self, pool: Callable[[], Pool], limits: Limits, quota: Quota, most: int, expires_s: float) -> None:
        self.pool, self.limits, self.quota, self.most, self.expires_s = pool, limits, quota, most, expires_s
        self.clock: Callable[[], float] = time.monotonic
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, asked: Open) -> dict[str, Any]:
        """Open a session. Limits and quota can only lower the service's. Raises: IsolationError; SessionError."""
        limits, quota = self.limits.lowered(**asked.limits or {}), self.quota.lowered(**asked.quota or {})
        self._expire()
        with self._lock:
            if len(self._open) + self._opening >= self.most:
                raise IsolationError(f"{len(self._open)} sessions are open of {self.most}; close some")
            self._opening += 1
        try:
            session = Session(self.pool(), limits=limits, quota=quota, seed=asked.seed)
            name = secrets.token_hex(16)
            with self._lock:
                self._open[name] = _Open(session, self.clock())
            return {"session": name, "level": session.level}
        finally:
            with self._lock:
                self._opening -= 1

    def call(self, asked: Call) -> dict[str, Any]:
        """Do one call of a session: python, shell, write or read. Raises: UnknownSession; ValueError; SessionError."""
        call = asked.root
        with self._use(call.session) as session:
            match call:
                case Write():
                    session.write(call.path, call.data)
                    return {}
                case Read():
                    return {"data": base64.b64encode(session.read(call.path)).decode()}
                case Python():
                    return asdict(session.python(call.code, wall_s=call.wall_s, cpu_s=call.cpu_s))
                case Shell():
                    return asdict(session.shell(call.line, wall_s=call.wall_s, cpu_s=call.cpu_s))

    def close(self, asked: Named) -> dict[str, Any]:
        """Close a session. Raises: UnknownSession."""
        with self._use(asked.session) as session:
            with self._lock:
                self._open.pop(asked.session, None)
            session.close()
        return {}

    def close_all(self) -> None:
        """Close every session."""
        with self._lock:
            sessions, self._open = [each.session for each in self._open.values()], {}
        for session in sessions:
            session.close()

    @contextmanager
    def _use(self, name: str) -> Iterator[Session]:
        """Yield the session of that id, which cannot expire until this ends. Raises: UnknownSession."""
        self._expire()
        with self._lock:
            if name not in self._open:
                raise UnknownSession("no such session: it was closed, has expired, or was never open")
            used = self._open[name]
            used.calls += 1
        try:
            yield used.session
        finally:
            with self._lock:
                used.calls -= 1
                used.last = self.clock()

    def _expire(self) -> None:
        with self._lock:
            now = self.clock()
            late = [name for name, each in self._open.items() if not each.calls and now - each.last > self.expires_s]
            sessions = [self._open.pop(name).session for name in late]
        for session in sessions:
            session.close()
