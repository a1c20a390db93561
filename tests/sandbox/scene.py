"""A host to attack: files, folders, listeners and a process that programs behind the walls must not reach."""

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

BEGIN = "import sys; sys.stderr.write('attempt begins\\n'); sys.stderr.flush()\n"


class Scene:
    """The targets of acts. `harm()` returns what has changed on the host since the start."""

    def __init__(self) -> None:
        self.mark = f"mark{secrets.token_hex(6)}"
        self.root = Path(tempfile.mkdtemp(prefix="sandbox-scene-"))
        self.root.chmod(0o777)
        self.outside = self.root / "outside"
        self.outside.mkdir()
        self.outside.chmod(0o777)
        self.secret = self.root / "secret"
        for path in (self.secret, *(self.outside / n for n in ("code.py", "doomed", "doomed2"))):
            path.write_text(f"KEY = '{secrets.token_hex(8)}'\n")
            path.chmod(0o666)
        with sqlite3.connect(self.outside / "data.db") as base:
            base.execute("create table t as select 1")
        base.close()
        self.victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        self.visitors: list[object] = []
        self.sockets = self._listen()
        self.before = self._state()

    def _listen(self) -> list[socket.socket]:
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port = tcp.getsockname()[1]
        unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        unix.bind(str(self.outside / "socket"))
        os.chmod(self.outside / "socket", 0o777)
        abstract.bind(f"\0{self.mark}")
        datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        datagram.bind(f"\0{self.mark}d")
        for one in (tcp, unix, abstract):
            one.listen(16)
            threading.Thread(target=self._welcome, args=(one,), daemon=True).start()
        datagram.setblocking(False)
        return [tcp, unix, abstract, datagram]

    def _welcome(self, listener: socket.socket) -> None:
        while True:
            try:
                visitor, _ = listener.accept()
            except OSError:
                return
            self.visitors.append(visitor.fileno())
            visitor.close()

    def _state(self) -> dict[str, str]:
        states = {}
        for path in sorted(self.root.rglob("*")):
            state = f"{path.lstat().st_mode:o} {path.lstat().st_uid} {path.lstat().st_mtime_ns}"
            if path.is_file() and not path.is_symlink():
                state += hashlib.sha256(path.read_bytes()).hexdigest()
            states[str(path)] = state
        return states

    def fill(self, code: str) -> str:
        """Return the code with this host's paths and numbers in it."""
        for name, value in (
            ("SECRET", self.secret), ("OUTSIDE", self.outside), ("PID", self.victim.pid), ("PORT", self.port),
            ("MARK", self.mark),
        ):  # fmt: skip
            code = code.replace(name, str(value))
        return code

    def program(self, code: str) -> str:
        """Return a program that reports its begin, does the act, and prints PWNED if the act succeeds."""
        return f"{BEGIN}{self.fill(code)}\nprint('PWNED')\n"

    def harm(self) -> list[str]:
        """Return what has changed on the host; empty if nothing has."""
        now = self._state()
        changed = [p for p in self.before.keys() | now.keys() if self.before.get(p) != now.get(p)]
        if self.victim.poll() is not None:
            changed.append("the host process was killed")
        if self.visitors:
            changed.append("somebody connected")
        with contextlib.suppress(BlockingIOError):
            changed.append(f"a datagram came: {self.sockets[3].recv(10)!r}")
        changed += [str(p) for place in ("/tmp", "/var/tmp", "/dev/shm") for p in Path(place).glob(f"*{self.mark}*")]
        return changed

    def close(self) -> None:
        """Remove the scene."""
        self.victim.kill()
        self.victim.wait()
        for one in self.sockets:
            one.close()
        shutil.rmtree(self.root)
        Path(f"/var/tmp/{self.mark}").unlink(missing_ok=True)
