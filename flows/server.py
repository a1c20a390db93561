"""Prefect's server as a child process on loopback, which ends with the process that started it.

Run as `python -m verizero.flows.server PORT`; with `--services` it also has the scheduler and the automations,
which a single run does not need. It ends with its parent even if that is killed, so no run leaves a server behind.
What it changes in Prefect's: requests to other hosts' names and slow ones are refused, pages load nothing from other
hosts (`SameHostOnly`), and a transaction takes its lock when it begins (`lock_early`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import RunError, fault_in_log, fault_now, limit_fault, machine_fault
from verizero.pipeline.host.child import NotReady, appended, die_with, end, module_command, size_of, start, wait_until
from verizero.pipeline.host.disk import disk_errors
from verizero.pipeline.host.network import LOOPBACK, answers, free_port

HEALTH = "/api/health"
"""Path at which a server answers once it has started."""
LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
"""Variable with the login of a server, NAME:PASSWORD. Clients have it in PREFECT_API_AUTH_STRING."""
SAME_HOST = (
    b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob:; "
    b"frame-ancestors 'none'"
)
"""A Content-Security-Policy. Without it the newer UI asks a host of Prefect for settings, whatever the server's are."""
WITHIN_S = {"http": 60.0, "websocket": 15.0}
"""Seconds within which a body must arrive, or the first message of a websocket, which is its login."""
OTHER_HOST = b"this server answers to its own address alone; open the one that was printed"
DATABASE_BYTES = 8 << 20
"""Room that a server needs on the disk to begin: its database, the log of its changes and its own log."""
LEAST_FILES = 64
"""Descriptors with which server and client work; with fewer the server may wait for ever."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""Settings that keep Prefect from sending requests to other hosts."""


class EmbeddedServer:
    """The server's process and address. Start it from the main thread: it ends with the thread that started it."""

    def __init__(self, home: Path, log: Path, port: int | None = None, services: bool = False) -> None:
        self.port = free_port() if port is None else port
        self.log = log
        self.home = home
        if fault := limit_fault("Prefect's server", LEAST_FILES):
            raise RunError(fault)
        with disk_errors(f"preparing {home}, the folder of Prefect's server"):
            home.mkdir(parents=True, exist_ok=True)
            home.chmod(0o700)  # database and logs hold what the runs' recipes and prompts say
            self.login, self.login_place = login_of(home)
            require_room(home)
        variables = {**QUIET, **self.settings(home), **({} if services else {"PREFECT__SERVER_EPHEMERAL": "1"})}
        self.log_begin = size_of(log)
        words = [str(self.port), *(["--services"] if services else [])]
        # In a session of its own: Ctrl-C then stops the run first, while the server still takes its last states.
        self.process = start([*module_command("verizero.flows.server"), *words], variables, log=log)

    @property
    def address(self) -> str:
        """The address of the UI."""
        return f"http://{LOOPBACK}:{self.port}"

    def settings(self, home: Path) -> Mapping[str, str]:
        """Return the environment variables that server and clients need.

        A flow runs the code that its recipe names. So each request needs the login, and no page of another origin may
        send one.
        """
        return {
            "PREFECT_SERVER_API_AUTH_STRING": self.login,
            "PREFECT_API_AUTH_STRING": self.login,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": self.address,
            "PREFECT_HOME": str(home),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
            "PREFECT_API_URL": f"{self.address}/api",
            "PREFECT_UI_API_URL": f"{self.address}/api",
            "PREFECT_LOGGING_LEVEL": "WARNING",
        }

    def wait(self, timeout_s: float) -> None:
        """Wait until the server answers. Raises: RunError naming its log if it ends or does not answer in time."""
        try:
            wait_until(lambda: answers(f"{self.address}{HEALTH}"), self.process, self.log, timeout_s)
        except NotReady as exc:
            what = f"Prefect's embedded server {exc.what}"
            if fault := self.fault() or (fault_now() if exc.status is None else ""):
                raise RunError(f"{what}: {fault}") from exc
            remedy = "`verizero doctor` tells whether the installed versions fit; --no-prefect trains without a server"
            remedy = remedy if exc.status is not None else "the machine may be too busy; run the same command again"
            raise RunError(f"{what}; {remedy}. {exc.tail}") from exc

    def fault(self) -> str:
        """Return what the machine refuses the server, with the remedy; empty if nothing."""
        try:
            require_room(self.home)
        except OSError as exc:  # a full disk takes no more lines of the log either
            return machine_fault(exc)
        return fault_in_log(appended(self.log, self.log_begin).decode(errors="replace"))

    def stop(self) -> None:
        """End the server."""
        end(self.process, grace_s=10)


def require_room(home: Path) -> None:
    """Raise OSError unless the folder takes the files of a new database."""
    with tempfile.TemporaryFile(dir=home) as file:
        os.posix_fallocate(file.fileno(), 0, DATABASE_BYTES)


def login_of(home: Path) -> tuple[str, str]:
    """Return the login of the server whose files are in `home`, and where it is from: the environment, or a file.

    The file is made at the first start, and only its owner may read it.
    """
    login, place = os.environ.get(LOGIN), f"the variable {LOGIN}"
    if not login:
        path = home / "login"
        with contextlib.suppress(FileExistsError):
            write_new(path, f"verizero:{secrets.token_urlsafe(24)}\n".encode())
        login, place = path.read_text(encoding="utf-8").strip(), str(path)
    if not login:
        raise RunError(f"{place} is empty; delete it, and the next start makes a new login")
    if not login.isascii():
        raise RunError(f"{place} has characters other than ASCII's, which Prefect refuses; choose another password")
    return login, place


def write_new(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read. Raises: FileExistsError if it is there."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.link(part, path)  # whole or not at all, also where two processes start at once
    finally:
        part.unlink()


def serve(port: int, services: bool) -> None:
    """Serve API and UI on loopback until the parent ends or SIGTERM comes."""
    # SIGTERM, not SIGKILL: the server then closes its database in order.
    die_with(os.getppid(), signal.SIGTERM)
    import uvicorn
    from prefect.server.api.server import create_app, create_ui_app

    from verizero.pipeline.host.service import Connection

    os.umask(0o077)  # the database is for its owner alone
    lock_early()
    app = create_app(ephemeral=not services)  # an ephemeral server has no scheduler and marks no late runs
    if not services:
        app.router.routes = [route for route in app.router.routes if getattr(route, "name", "") != "ui"]
        app.mount("/", create_ui_app(ephemeral=False), name="ui")  # an ephemeral app has an empty page there
    # Around the app and not within it: automations call the app in this process, by a host name of their own.
    guarded = SameHostOnly(app, port)
    # Open browser tabs hold websockets, so a graceful end needs a limit.
    uvicorn.run(
        guarded, host=LOOPBACK, port=port, http=Connection, log_level="error", lifespan="on",
        timeout_graceful_shutdown=3,
    )  # fmt: skip


class SameHostOnly:
    """ASGI middleware for a server on loopback: nobody reaches it by another name, and it reaches no other host.

    A page of a stranger can make a name of its own point to this machine. The name is then in Host or Origin.
    """

    def __init__(self, app: Any, port: int) -> None:
        self.app = app
        self.names = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request to the app, and add the policy to its answer; refuse other names."""
        kind = scope["type"]
        if kind not in WITHIN_S:
            await self.app(scope, receive, send)
            return
        if not self.is_ours(scope["headers"]):
            await refuse(kind, receive, send, 421, OTHER_HOST)
            return
        if not has_ascii_login(scope["headers"]):
            await refuse(kind, receive, send, 401, b"no such login")
            return
        is_late = has_begun = False

        async def with_policy(message: Any) -> None:
            nonlocal has_begun
            if is_late:
                return
            has_begun = True
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"content-security-policy", SAME_HOST)]}
            await send(message)

        has_all, until = False, asyncio.get_running_loop().time() + WITHIN_S[kind]

        async def in_time() -> Any:
            """Receive a message. Of a client that is too slow, tell the app that it has left."""
            nonlocal has_all, is_late
            try:
                async with asyncio.timeout_at(None if has_all else until):
                    message = await receive()
            except TimeoutError:
                if kind == "websocket" or not has_begun:
                    await refuse(kind, None, send, 408, b"the request must come sooner")
                    is_late = True
                return {"type": f"{kind}.disconnect", "code": 1008}
            has_all = message["type"] != "websocket.connect" and not message.get("more_body", False)
            return message

        await self.app(scope, in_time, with_policy)

    def is_ours(self, headers: Any) -> bool:
        """True if Host is a name of this server, and Origin, where there is one, the same."""
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        our_origins = {b"http://" + name for name in self.names}
        return len(hosts) == 1 and hosts[0].lower() in self.names and all(o.lower() in our_origins for o in origins)


def has_ascii_login(headers: Any) -> bool:
    """False for a login of other characters, which is nobody's; Prefect fails where it compares them."""
    login = next((value for name, value in headers if name == b"authorization"), b"")
    with contextlib.suppress(ValueError):
        return base64.b64decode(login.partition(b" ")[2]).isascii()
    return True


async def refuse(kind: str, receive: Any, send: Any, status: int, text: bytes) -> None:
    """Answer a request, or close a websocket: one that is not open yet if there is `receive`."""
    if kind == "websocket":
        if receive is not None:
            await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": text.decode()})
        return
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def lock_early() -> None:
    """Make each transaction wait for SQLite's lock when it begins.

    A transaction that first reads and later writes fails at once if another one has written in between. A run with
    short tasks writes events all the time, so that a form in the browser would be answered with 503.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def with_lock(self: Any, session: Any, with_for_update: bool = False) -> Any:
        # Prefect turns this into BEGIN IMMEDIATE, which waits for the lock where an upgrade would fail.
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = with_lock  # type: ignore[method-assign]


if __name__ == "__main__":
    serve(int(sys.argv[1]), "--services" in sys.argv[2:])
