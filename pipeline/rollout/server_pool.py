"""A pool of servers as the rollout engine: started by the run, or given by URL, of any kind (`server_client`).

The responses of a group and the turns of an episode go to one server, as far as others have work (`Deal`). A
server that fails is dropped, and other servers sample its unanswered requests again, with the same seeds. Weights go to
all servers piece by piece, in one pass; a dead server does not delay the others.

All ranks of a run use all servers. The first rank starts them and sends them the weights, at a time when no rank waits
for responses. From then on, a server that any rank lost is lost to all ranks.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from verizero.pipeline.errors import EngineError, VerizeroError
from verizero.pipeline.rollout.engine import Completion, Ended, EndedReader, Request, Sampling, check_requests
from verizero.pipeline.rollout.server_client import Client, Server, ServerLost, ServerSetup
from verizero.pipeline.rollout.server_nodes import OrderedServers, ServerProcess
from verizero.pipeline.rollout.weights import CountedWeights

LEAVE_S = 10.0
"""Seconds that `close` waits for process groups to be destroyed: a process that ends during that is aborted. A send to
a server that hangs takes longer, which does no harm."""
T = TypeVar("T")


class Peers(Protocol):
    """The ranks that use the same servers."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank; all ranks must call this. Collectives of other threads may run too."""
        ...


class ServerPool:
    """Generates with servers of one kind."""

    is_fast: bool | None = None
    fallback_reason: str | None = None
    answers_threads = True

    def __init__(self, client: Client, setup: ServerSetup, peers: Peers | None = None) -> None:
        """Start the servers, here or on `setup.nodes`, or take those of `client.params.urls`.

        Logs go to the run's folder, by the first rank.

        peers: None for a run of one rank. Raises: EngineError if a server does not start.
        """
        self.client, self.setup = client, setup
        self._num_bytes: int | None = None
        self.version = -1
        self._peers = peers
        self._is_first = peers is None or peers.rank == 0
        self._processes: list[ServerProcess] = []
        self._ordered = OrderedServers(setup.folder, setup.nodes) if setup.nodes and self._is_first else None
        self._lost_before: list[str] = []
        """Reasons for the servers lost before the last publish; equal on all ranks."""
        self._lost_since: dict[str, str] = {}
        """URL -> reason, for the servers that this rank lost since."""
        self._may_return: list[Server] = []
        """Lost servers that this process did not start: they may be restarted by their node, or by someone."""
        self._closing: list[Future[None]] = []
        self._changes_lock = threading.Lock()
        """Protects the servers and the counts of losses: several threads may call `generate`."""
        self._resampled = self._resampled_by_others = 0
        try:
            # The first rank decides, so that all ranks have the same addresses and the same tag of the run.
            urls, self._logs, self._run = self._by_first_rank(
                lambda: (client.params.urls or self._start(), str(self._log("*")), secrets.token_hex(4))
            )
            self.servers, self._num_servers = [client.connect(url) for url in urls], len(urls)
        except BaseException:
            self._end_processes()
            raise

    @property
    def lost(self) -> list[str]:
        """The reason for each lost server that this rank knows of."""
        return [*self._lost_before, *self._lost_since.values()]

    def publish(self, version: int) -> None:
        """Send the trainer's present weights to every server, and drop a server that does not confirm them.

        A lost server that was given by URL and restarted since is used again. All ranks must call this.
        Raises: EngineError if no server is left.
        """
        # After this all ranks have the same servers, and no request is being answered: weights may change.
        self._share_losses()
        with_base = self._by_first_rank(self._take_back)
        weights = CountedWeights(iter(self.setup.policy.published(with_base)))

        def send() -> tuple[list[str], list[str]]:
            self._send(weights, self._label(version))
            return [s.url for s in self.servers], self.lost

        # Gathering sharded weights is a collective: the other ranks pass through them too, and so does the first rank
        # for those that it did not send because no server was left.
        urls, self._lost_before = self._by_first_rank(send, lambda: deque(weights, 0))
        self._lost_since = {}
        # Keep the clients of the servers that stay: they hold open connections and the group for weights.
        have = {s.url: s for s in self.servers}
        self.servers = [have.get(url) or self.client.connect(url) for url in urls]
        self.version = version
        self._num_bytes = weights.num_bytes

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
    ) -> list[list[Completion]]:
        """Return, per request, one completion per seed. `reader` receives each when its server has answered.

        Raises: EngineError for a prompt that leaves no room, or if no server is left.
        """
        check_requests(requests, sampling.max_tokens, self.client.longest, self.client.longest_field)
        waiting = [(i, j) for i, r in enumerate(requests) for j in range(len(r.seeds))]
        completions: dict[ResponseIndex, Completion] = {}
        while waiting:  # again if a server was lost when all others were done
            waiting = self._answer(waiting, requests, sampling, completions, reader or (lambda ended: None))
        return [[completions[i, j] for j in range(len(r.seeds))] for i, r in enumerate(requests)]

    def rest(self) -> None:
        """Do nothing: servers do not use the trainer's memory."""

    def counts(self) -> Mapping[str, float]:
        """Return the run's servers and repeated requests so far, and the bytes of the last publish.

        Counts of other ranks are as of that publish.
        """
        num_bytes = {} if self._num_bytes is None else {"publish/bytes": float(self._num_bytes)}
        return num_bytes | {
            "servers/alive": float(len(self.servers)),
            "servers/lost": float(len(self.lost)),
            "servers/resampled": float(self._resampled + self._resampled_by_others),
        }

    def close(self) -> None:
        """End the servers that this run started; the others keep running."""
        self._closing += [in_thread(server.close) for server in self.servers]
        self._end_processes()
        wait(self._closing, LEAVE_S)

    def _start(self) -> tuple[str, ...]:
        """Start the client's programs; return the servers' URLs once all of them answer."""
        timeout_s, field = self.client.params.start_timeout_s, f"{self.setup.field}.start_timeout_s"
        if self._ordered is not None:
            programs = [(program.command, program.environment) for program in self.client.programs()]
            self._ordered.start(programs, timeout_s, field)
            return self._ordered.urls()
        # All start before the wait: they load at the same time, with one deadline.
        for number, program in enumerate(self.client.programs()):
            self._processes.append(ServerProcess(program.command, program.environment or None, self._log(number)))
        until, what = time.monotonic() + timeout_s, f"a server of {self.client.kind}"
        for process in self._processes:
            process.wait(max(1.0, until - time.monotonic()), what, field)
        return tuple(p.url for p in self._processes)

    def _log(self, number: int | str) -> Path:
        name = "server" if self.setup.nodes else self.client.kind.lower()  # each node names the logs of its own servers
        return self.setup.folder / "logs" / f"{name}-{number}.log"

    def _label(self, version: int) -> str:
        """Return a name for the weights that no other run uses, and no restarted server."""
        return f"{version}@{self._run}"

    def _gather(self, value: T) -> list[T]:
        return [value] if self._peers is None else self._peers.gather(value)

    def _by_first_rank(self, do: Callable[[], T], then: Callable[[], Any] = lambda: None) -> T:
        """Run `do` on the first rank, and return its result or raise its exception on all ranks. All ranks call `then`.

        Raises: VerizeroError.
        """
        outcome: list[T] | VerizeroError = []
        if self._is_first:
            try:
                outcome = [do()]
            except VerizeroError as exc:
                # Raised after the gather: an exception before it would leave the other ranks waiting there.
                outcome = exc
        then()
        outcome = self._gather(outcome)[0]
        if isinstance(outcome, VerizeroError):
            raise outcome
        return outcome[0]

    def _share_losses(self) -> None:
        """Drop the servers that any rank lost. All ranks must call this, when none waits for a response."""
        ranks = self._gather((self._lost_since, self._resampled))
        # Reversed: of several reasons for one server, all ranks keep that of the lowest rank.
        lost = {url: reason for losses, _ in reversed(ranks) for url, reason in losses.items()}
        self._drop({s: lost[s.url] for s in self.servers if s.url in lost})
        self._lost_before, self._lost_since = [*self._lost_before, *lost.values()], {}
        self._resampled_by_others = sum(number for _, number in ranks) - self._resampled

    def _take_back(self) -> bool:
        """Use lost servers again that were restarted, and those of nodes that came in place of others.

        Return True if any server is new or was restarted: the publish that calls this sends the weights to all, and
        then the base of adapters too.
        """
        if self._ordered is not None:
            have = {server.url for server in (*self.servers, *self._may_return)}
            self._may_return += [self.client.connect(url) for url in self._ordered.urls() if url not in have]
        asked = [*self.servers, *self._may_return]
        with ThreadPoolExecutor(max(1, len(asked))) as pool:
            # All at once: each server that is still gone takes its whole timeout.
            answers = pool.map(lambda server: server.was_restarted(), asked)
            restarted = [server for server, is_new in zip(asked, answers, strict=True) if is_new]
        self.servers += [s for s in self._may_return if s in restarted]
        self._may_return = [s for s in self._may_return if s not in restarted]
        return bool(restarted)

    def _send(self, weights: CountedWeights, label: str) -> None:
        """Send the weights to all servers, piece by piece, and confirm them as `label`."""
        self._check_left()
        with closing(self.client.pieces(weights)) as pieces:
            for piece in pieces:
                # The default argument binds this piece: threads would read the loop's variable later.
                self._each(lambda server, piece=piece: server.take_weights(piece))  # type: ignore[misc]
        self._each(lambda server: server.confirm(label))

    def _answer(
        self,
        waiting: Sequence[ResponseIndex],
        requests: Sequence[Request],
        sampling: Sampling,
        completions: dict[ResponseIndex, Completion],
        reader: EndedReader,
    ) -> list[ResponseIndex]:
        """Let all servers answer what is `waiting`, into `completions`; return what is left if the last ones fail."""
        self._check_left()
        servers, label = list(self.servers), self._label(self.version)
        ranks = 1 if self._peers is None else self._peers.size
        # For each server: all ranks use each server, and none gets more than its share before others have begun.
        num_threads = min(-(-self.client.params.concurrency // ranks), -(-len(waiting) // len(servers)))
        deal = Deal(waiting, requests, servers)
        refused: list[Exception] = []
        failures: dict[Server, str] = {}
        ended: SimpleQueue[Ended | None] = SimpleQueue()  # the threads' answers; each thread ends with a None

        def work(server: Server, index: ResponseIndex | None) -> None:
            try:
                while index is not None:
                    answer(server, *index)
                    index = deal.take(server)
            finally:
                ended.put(None)

        def answer(server: Server, i: int, j: int) -> None:
            request = requests[i]
            try:
                completions[i, j] = done = server.sample(request.prompt_ids, request.seeds[j], sampling, label)
                ended.put(Ended(i, j, done.token_ids, done.finish_reason))
            except ServerLost as exc:
                # Another server draws it again from the same seed, so the loss leaves no trace in the data.
                with self._changes_lock:
                    self._resampled += 1
                failures.setdefault(server, str(exc))
                deal.lose(server, (i, j))
            except Exception as exc:
                # Any server would refuse this request, or the client is wrong: no thread takes another one.
                refused.append(exc)
                deal.stop()

        # Each has its first response before any begins. Daemons: a request that hangs must not keep the process alive.
        threads = [threading.Thread(target=work, args=first, daemon=True) for first in deal.firsts(num_threads)]
        for thread in threads:
            thread.start()
        for _ in threads:
            for answered in iter(ended.get, None):
                reader([answered])
        if refused:
            raise refused[0]
        self._drop(failures)
        return deal.left()

    def _each(self, call: Callable[[Server], Any]) -> None:
        """Call `call` with all servers at once, and drop those that fail. Raises: EngineError if none is left."""
        failures: dict[Server, str] = {}

        def attempt(server: Server) -> None:
            try:
                call(server)
            except (ServerLost, EngineError) as exc:  # a server that refuses weights was not started to take them
                failures[server] = str(exc)

        with ThreadPoolExecutor(max(1, len(self.servers))) as pool:
            # `list` waits for all; `attempt` keeps failures, so that one does not hide those of others.
            list(pool.map(attempt, self.servers))
        self._drop(failures)
        self._check_left()

    def _check_left(self) -> None:
        """Raise EngineError if no server is left."""
        if self.servers:
            return
        remedy = f"start them again, or others that {self.setup.field}.urls then names (docs/engines.md)"
        if not self.client.params.urls:
            remedy = f"see why in {self._logs}"
        raise EngineError(
            f"no server of {self.client.kind} is left of {self._num_servers}; {remedy}, then start the same command "
            "again: it resumes from the last checkpoint. Lost:\n  " + "\n  ".join(self.lost)
        )

    def _drop(self, failures: dict[Server, str]) -> None:
        """Stop using the servers, and end those that this run started: a hung server would keep its memory."""
        with self._changes_lock:
            # Another thread may have dropped a server already.
            lost = {server: reason for server, reason in failures.items() if server in self.servers}
            for server, reason in lost.items():
                self.servers.remove(server)
                self._lost_since[server.url] = reason
        for server in lost:
            self._closing.append(in_thread(server.close))
            # Only the first rank sends weights, so it alone decides which servers are used again.
            if self._ordered is not None or (self.client.params.urls and self._is_first):
                self._may_return.append(server)
            for process in [p for p in self._processes if p.url == server.url]:
                process.close()
                self._processes.remove(process)

    def _end_processes(self) -> None:
        for process in self._processes:
            process.close()
        self._processes = []
        if self._ordered is not None:
            self._ordered.close()
        self.client.close()


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread and return its future: if it hangs, the process can still end."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as exc:
            result.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return result


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
