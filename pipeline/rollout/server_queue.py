"""Which server answers which request: one server has a whole group, and all turns of an episode, for its prefix cache.

Balance goes first: no server is idle while responses wait that another one has no room for.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from verizero.pipeline.rollout.engine import Request
from verizero.pipeline.rollout.server_client import Server

ResponseIndex = tuple[int, int]
"""(index of a request, index of a seed in it)"""
LEAD = 8
"""A server with so many episodes more than another one gets no new one, not even of a group that it has."""


class Homes:
    """The server of each open episode, by the number in `Request.keys`."""

    def __init__(self) -> None:
        self._of_key: dict[int, Server] = {}
        self._of_prompt: dict[tuple[int, ...], Server] = {}
        """The server that the last new episode with that prompt got."""
        self._counts: Counter[Server] = Counter()
        self._lock = threading.Lock()

    def of(self, key: int, prompt_ids: tuple[int, ...], servers: Sequence[Server]) -> Server:
        """Return the server of an episode: where it was, else where its group is, else that with the fewest."""
        with self._lock:
            home = self._of_key.get(key)
            if home is not None and home in servers:
                return home
            least = min(servers, key=lambda server: self._counts[server])
            home = self._of_prompt.get(prompt_ids)
            if home is None or home not in servers or self._counts[home] >= self._counts[least] + LEAD:
                home = least
            self._of_prompt[prompt_ids] = home
            self._move(key, home)
            return home

    def move(self, key: int, server: Server) -> None:
        """Note that the last turn of an episode was sampled elsewhere."""
        with self._lock:
            self._move(key, server)

    def _move(self, key: int, server: Server) -> None:
        if (before := self._of_key.get(key)) is not None:
            self._counts[before] -= 1
        self._of_key[key] = server
        self._counts[server] += 1


class Deal:
    """The responses of one call that wait. Threads `take` one at a time for their server.

    A server takes the next response in its queue: those of episodes that are at home there, and of the group that it
    began last. If there is none, it begins a group that no server has begun. If there is none either, it takes the last
    one of the longest queue of a server that is full: whose threads all wait for a response.
    """

    def __init__(
        self,
        waiting: Iterable[ResponseIndex],
        requests: Sequence[Request],
        servers: Sequence[Server],
        homes: Homes,
        num_threads: int,
    ) -> None:
        """`num_threads`: for each server."""
        self._requests, self._homes, self._num_threads = requests, homes, num_threads
        self._queues: dict[Server, deque[ResponseIndex]] = {server: deque() for server in servers}
        self._groups: deque[list[ResponseIndex]] = deque()
        self._busy: Counter[Server] = Counter()
        self._stops = False
        self._changed = threading.Condition()
        for i, j in waiting:
            request = requests[i]
            if request.keys:
                self._queues[homes.of(request.keys[j], request.prompt_ids, servers)].append((i, j))
            elif self._groups and self._groups[-1][0][0] == i:
                self._groups[-1].append((i, j))
            else:
                self._groups.append([(i, j)])

    def take(self, server: Server) -> ResponseIndex | None:
        """Return the next response for a thread of this server, which is busy until `end`; None if none is left."""
        with self._changed:
            while not self._stops and server in self._queues:
                index = self._next(server)
                if index is not None:
                    self._busy[server] += 1
                    self._changed.notify_all()
                    self._settle(index, server)
                    return index
                if not any(self._queues.values()):
                    return None
                self._changed.wait()  # what is left waits for threads that have room, or become busy
            return None

    def end(self, server: Server) -> None:
        """Note that a thread of this server has its response."""
        with self._changed:
            self._busy[server] -= 1
            self._changed.notify_all()

    def lose(self, server: Server, index: ResponseIndex) -> None:
        """Give what a lost server owes, this response too, to the others."""
        with self._changed:
            owed = [index, *self._queues.pop(server, ())]
            self._groups.extend([response] for response in owed)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no thread take another response."""
        with self._changed:
            self._stops = True
            self._changed.notify_all()

    def left(self) -> list[ResponseIndex]:
        """Return what nobody took."""
        return [index for some in (*self._queues.values(), *self._groups) for index in some]

    def _next(self, server: Server) -> ResponseIndex | None:
        own = self._queues[server]
        if not own and self._groups:
            own.extend(self._groups.popleft())
        if own:
            return own.popleft()
        full = [s for s in self._queues if self._queues[s] and self._busy[s] >= self._num_threads]
        return max((self._queues[s] for s in full), key=len).pop() if full else None

    def _settle(self, index: ResponseIndex, server: Server) -> None:
        i, j = index
        if self._requests[i].keys:
            self._homes.move(self._requests[i].keys[j], server)
