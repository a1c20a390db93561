"""Which server answers which request: one server has a whole group, and all turns of an episode, for its prefix cache.

Balance goes first: no server is idle while responses of the same call wait for another one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence

from verizero.pipeline.rollout.engine import Request
from verizero.pipeline.rollout.server_client import Server

ResponseIndex = tuple[int, int]
"""(index of a request, index of a seed in it)"""
IN_A_ROW = 8
"""So many episodes in a row go to one server, the next ones to the next server."""


class Deal:
    """The responses of one call that wait. Threads `take` one at a time for their server.

    A server takes the next response in its queue: those of its episodes, and of the group that it began last. If there
    is none, it begins a group that no server has begun. If there is none either, it takes the last response of the
    longest queue.
    """

    def __init__(
        self, waiting: Iterable[ResponseIndex], requests: Sequence[Request], servers: Sequence[Server]
    ) -> None:
        self._queues: dict[Server, deque[ResponseIndex]] = {server: deque() for server in servers}
        self._groups: deque[list[ResponseIndex]] = deque()
        self._stops = False
        self._lock = threading.Lock()
        for i, j in waiting:
            request = requests[i]
            if request.keys:
                self._queues[servers[request.keys[j] // IN_A_ROW % len(servers)]].append((i, j))
            elif self._groups and self._groups[-1][0][0] == i:
                self._groups[-1].append((i, j))
            else:
                self._groups.append([(i, j)])

    def firsts(self, num_threads: int) -> list[tuple[Server, ResponseIndex | None]]:
        """Return the first response of each of so many threads of every server; None if none is left."""
        # Servers with queues of their own take first, so that the others take only what is more.
        return [
            (server, self.take(server))
            for _ in range(num_threads)
            for server in sorted(self._queues, key=lambda server: not self._queues[server])
        ]

    def take(self, server: Server) -> ResponseIndex | None:
        """Return the next response for a thread of this server; None if none is left."""
        with self._lock:
            if self._stops or server not in self._queues:
                return None
            own = self._queues[server]
            if not own and self._groups:
                own.extend(self._groups.popleft())
            if own:
                return own.popleft()
            longest = max(self._queues.values(), key=len)
            return longest.pop() if longest else None

    def lose(self, server: Server, index: ResponseIndex) -> None:
        """Give what a lost server owes, this response too, to the others."""
        with self._lock:
            owed = [index, *self._queues.pop(server, ())]
            self._groups.extend([response] for response in owed)

    def stop(self) -> None:
        """Let no thread take another response."""
        self._stops = True

    def left(self) -> list[ResponseIndex]:
        """Return what nobody took."""
        return [index for some in (*self._queues.values(), *self._groups) for index in some]
