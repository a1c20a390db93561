"""Sessions over HTTP: opened, called, forked, closed by an id that nobody can guess."""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import IsolationError
from sandbox.calls import CallResult, Quota
from sandbox.pool import Pool
from sandbox.results import Limits
from sandbox.session import Session

_MOST_FORKS = 64
_OPEN = {"limits", "quota", "seed", "keeps_interpreter"}
_CALLS = {
    "python": {"code", "wall_s", "cpu_s"},
    "shell": {"line", "wall_s", "cpu_s"},
    "write": {"path", "data"},
    "read": {"path"},
}


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

    def open(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Open a session. Limits and quota can only lower the service's. Raises: ValueError; IsolationError."""
        _only(data, _OPEN, "open")
        seed, keeps = data.get("seed", 0), data.get("keeps_interpreter", True)
        if type(seed) is not int or not 0 <= seed < 1 << 60:
            raise ValueError(f"seed must be an integer of 0 to 2^60 - 1, got {seed!r}")
        if type(keeps) is not bool:
            raise ValueError(f"keeps_interpreter must be true or false, got {keeps!r}")
        limits = self.limits.lowered(**_numbers(data, "limits", Limits))
        quota = self.quota.lowered(**_numbers(data, "quota", Quota))
        with self._room(1):
            session = Session(self.pool(), limits=limits, quota=quota, seed=seed, keeps_interpreter=keeps)
            return {"session": self._keep(session), "level": session.level}

    def call(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Do one call of a session: python, shell, write or read. Raises: ValueError; SessionError."""
        kind = data.get("kind")
        if not isinstance(kind, str) or kind not in _CALLS:
            raise ValueError(f"kind must be one of {', '.join(_CALLS)}, got {kind!r}")
        _only(data, {"session", "kind"} | _CALLS[kind], kind)
        with self._use(data.get("session")) as session:
            if kind == "write":
                session.write(_text(data, "path"), _bytes(data))
                return {}
            if kind == "read":
                return {"data": base64.b64encode(session.read(_text(data, "path"))).decode()}
            seconds = {name: _seconds(data, name) for name in ("wall_s", "cpu_s")}
            if kind == "python":
                return asdict(session.python(_text(data, "code"), **seconds))
            return asdict(session.shell(_text(data, "line"), **seconds))

    def fork(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Fork a session. Raises: ValueError; SessionError."""
        _only(data, {"session", "count"}, "fork")
        count = data.get("count", 1)
        if type(count) is not int or not 1 <= count <= _MOST_FORKS:
            raise ValueError(f"count must be an integer of 1 to {_MOST_FORKS}, got {count!r}")
        with self._use(data.get("session")) as session, self._room(count):
            return {"sessions": [self._keep(fork) for fork in session.fork(count)]}

    def close(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Close a session."""
        _only(data, {"session"}, "close")
        with self._use(data.get("session")) as session:
            with self._lock:
                self._open.pop(data["session"], None)
            session.close()
        return {}

    def close_all(self) -> None:
        """Close every session."""
        with self._lock:
            sessions, self._open = [each.session for each in self._open.values()], {}
        for session in sessions:
            session.close()

    def _room(self, count: int) -> _Room:
        """Hold the room for `count` more sessions while they are opened. Raises: IsolationError."""
        self._expire()
        return _Room(self, count)

    def _keep(self, session: Session) -> str:
        name = secrets.token_hex(16)
        with self._lock:
            self._open[name] = _Open(session, self.clock())
        return name

    @contextmanager
    def _use(self, name: object) -> Iterator[Session]:
        """Yield the session of that id, which cannot expire until this ends. Raises: UnknownSession."""
        self._expire()
        with self._lock:
            if not isinstance(name, str) or name not in self._open:
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


class _Room:
    """The right to open some sessions more."""

    def __init__(self, sessions: Sessions, count: int) -> None:
        self.sessions, self.count = sessions, count

    def __enter__(self) -> None:
        of = self.sessions
        with of._lock:
            if len(of._open) + of._opening + self.count > of.most:
                raise IsolationError(f"{len(of._open)} sessions are open of {of.most}; close some")
            of._opening += self.count

    def __exit__(self, *_: object) -> None:
        with self.sessions._lock:
            self.sessions._opening -= self.count


def _only(data: Mapping[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(f"{what}: unknown {unknown}; known: {', '.join(sorted(known))}")


def _text(data: Mapping[str, Any], name: str) -> str:
    if not isinstance(data.get(name), str):
        raise ValueError(f"{name} must be text")
    return str(data[name])


def _bytes(data: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(_text(data, "data"), validate=True)
    except binascii.Error as exc:
        raise ValueError(f"data must be base64: {exc}") from exc


def _seconds(data: Mapping[str, Any], name: str) -> float | None:
    value = data.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
    return value


def _numbers(data: Mapping[str, Any], name: str, of: type[Limits] | type[Quota]) -> dict[str, Any]:
    """Return the numbers that a request asks for. Raises: ValueError on one that there is not."""
    asked = data.get(name) or {}
    if not isinstance(asked, Mapping):
        raise ValueError(f"{name} must be an object")
    _only(asked, set(of.__dataclass_fields__), name)
    for key, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name}.{key} must be a number, got {value!r}")
    return dict(asked)


def result_from_json(data: Mapping[str, Any]) -> CallResult:
    """Return the result in a reply. Raises: TypeError on a reply of another shape."""
    return CallResult(**data)
