"""Sessions over HTTP: open, call and close them by an id that nobody can guess."""

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
from verizero.sandbox.http_requests import (
    CallRequest,
    OpenRequest,
    Python,
    Read,
    SessionRequest,
    Shell,
    Write,
    granted,
)
from verizero.sandbox.pool import Pool
from verizero.sandbox.results import Limits
from verizero.sandbox.session import Session


class UnknownSession(LookupError):
    """There is no session with that id."""


@dataclass(slots=True)
class _OpenSession:
    """An open session, the end of its last call (seconds of `Sessions.clock`), and the number of its calls that run."""

    session: Session
    last_call_s: float
    calls: int = 0


class Sessions:
    """The sessions of a service. A session is closed `expires_s` after its last call has ended."""

    def __init__(
        self, pool: Callable[[], Pool], limits: Limits, quota: Quota, max_sessions: int, expires_s: float
    ) -> None:
        self.pool, self.limits, self.quota, self.max_sessions, self.expires_s = (
            pool,
            limits,
            quota,
            max_sessions,
            expires_s,
        )
        self.clock: Callable[[], float] = time.monotonic
        self._lock = threading.Lock()
        self._open: dict[str, _OpenSession] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request: OpenRequest) -> dict[str, Any]:
        """Open a session. Raises: ValueError for limits above the service's; IsolationError; SessionError."""
        limits, quota = granted(self.limits, request.limits), granted(self.quota, request.quota)
        self._expire()
        with self._lock:
            if len(self._open) + self._opening >= self.max_sessions:
                raise IsolationError(f"{len(self._open)} sessions are open of {self.max_sessions}; close some")
            self._opening += 1
        try:
            session = Session(self.pool(), limits=limits, quota=quota, seed=request.seed)
            name = secrets.token_hex(16)
            with self._lock:
                self._open[name] = _OpenSession(session, self.clock())
            return {"session": name, "level": session.level}
        finally:
            with self._lock:
                self._opening -= 1

    def call(self, request: CallRequest) -> dict[str, Any]:
        """Do one call of a session: python, shell, write or read. Raises: UnknownSession; ValueError; SessionError."""
        call = request.root
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

    def close(self, request: SessionRequest) -> dict[str, Any]:
        """Close a session. Raises: UnknownSession."""
        with self._use(request.session) as session:
            with self._lock:
                self._open.pop(request.session, None)
            session.close()
        return {}

    def close_all(self) -> None:
        """Close every session."""
        with self._lock:
            sessions, self._open = [entry.session for entry in self._open.values()], {}
        for session in sessions:
            session.close()

    @contextmanager
    def _use(self, name: str) -> Iterator[Session]:
        """Yield the session with that id; it cannot expire meanwhile. Raises: UnknownSession."""
        self._expire()
        with self._lock:
            if name not in self._open:
                raise UnknownSession("no such session: it was closed, has expired, or was never open")
            entry = self._open[name]
            entry.calls += 1
        try:
            yield entry.session
        finally:
            with self._lock:
                entry.calls -= 1
                entry.last_call_s = self.clock()

    def _expire(self) -> None:
        with self._lock:
            now = self.clock()
            expired = [
                name
                for name, entry in self._open.items()
                if not entry.calls and now - entry.last_call_s > self.expires_s
            ]
            sessions = [self._open.pop(name).session for name in expired]
        for session in sessions:
            session.close()
