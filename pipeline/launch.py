"""Start a group of ranks by torchrun or Slurm, watch them, and end them together.

Each rank runs the same command with its place in the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and
writes `logs/rank<r>.log` in the run's folder. When a rank dies, the others are ended: they would wait for it for ever.
The same command continues from the last checkpoint, also with another number of ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from verizero.pipeline.config.sections import LaunchConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.child import (
    SAFE_PATH,
    appended,
    die_with,
    end,
    last_lines,
    leave_safe_path,
    module_command,
    signal_group,
    size_of,
    start,
    stat_of,
    status_of,
)
from verizero.pipeline.host.disk import require_plain
from verizero.pipeline.host.network import LOOPBACK, address_towards, free_port
from verizero.pipeline.report.ended import end_reason, ended_by, record_failure
from verizero.pipeline.rollout.server_nodes import ServersOfNode, folder_of, forget_orders
from verizero.pipeline.shown import show
from verizero.pipeline.train.deadline import SPARE_S, START_S, WATCH

LAUNCHED = "VERIZERO_LAUNCHED"
"""Variable of the ranks that this module started: the number of the process that did."""
POLL_S = 0.05
LOOK_S = 0.5
"""Seconds between two looks of a node that generates into the run's folder."""
PROGRAM = "verizero.pipeline.cli"
DEAD_RANK = re.compile(r"^ *time *: (\S+)\n.*\n *rank *: (\d+) .*\n *exitcode *: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)
"""The end of a rank in a report of torchrun: time in seconds, number, status and process."""


def is_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """True if this process is a rank of a group."""
    return LAUNCHED in environment or "RANK" in environment


def launch(
    config: LaunchConfig,
    arguments: Sequence[str],
    folder: Path,
    program: str = PROGRAM,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Run `verizero <arguments>` (the module `program`) as a group of ranks until all have finished.

    On a node that only generates, serve until the run has ended (`rollout/server_nodes.py`).
    `look` is called while they run; what it raises ends them.
    Raises: RunError naming the rank that died first, its phase and its last lines; the other ranks are ended.
    """
    logs, node = folder / "logs", _node() if config.kind == "torchrun" else 0
    if node in config.generating:
        serve_as_node(node, config, folder, str(config.address))
        return
    logs.mkdir(parents=True, exist_ok=True)
    require_plain(folder)  # the log of each rank is opened here
    if node == 0:
        # A notice of death quotes these files: those of an earlier launch would name ranks that do not exist.
        for stale in logs.glob("rank*.phase"):
            stale.unlink(missing_ok=True)
        forget_orders(folder)
    launcher = None
    try:
        launcher = Launcher(config, command_of(config, arguments, program), logs, node)
        launcher.wait(look)
    except BaseException as exc:
        if launcher is not None:
            launcher.end()  # a rank that can still write says first how the run ended
        if end_reason(folder) is None:
            record_failure(folder, ended_by(exc, ""))
        raise
    finally:
        if launcher is not None:
            launcher.end()


class Launcher:
    """The child that starts the ranks of this machine, torchrun or srun."""

    def __init__(self, config: LaunchConfig, command: Sequence[str], logs: Path, node: int) -> None:
        """Start `command`. It ends with this process, and writes to `logs`. Raises: RunError if it is not installed."""
        self.config, self.logs = config, logs
        self.log = logs / (f"launcher{node}.log" if node else "launcher.log")
        # Logs are appended to over launches; begin behind the earlier ones.
        self.begin, self.shown = size_of(self.log), Tail(logs / "rank0.log", size_of(logs / "rank0.log"))
        # A launcher starts the ranks itself, without the words of `module_command`.
        more = {LAUNCHED: str(os.getpid()), "PYTHONUNBUFFERED": "1", SAFE_PATH: "1"}
        more["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "1"  # in place of 30 s, which torchrun gives its ranks when we end it
        if config.kind == "torchrun" and config.nodes.train == 1:
            # Each rank would otherwise start a thread per core, and all of them would compete.
            threads = max(1, (os.cpu_count() or 1) // config.gpus_per_node)
            more["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
            more["GLOO_SOCKET_IFNAME"] = "lo"  # or ranks would listen at the address of this machine's name
        try:
            self.process = start(command, more, log=self.log, dies=True)
        except FileNotFoundError as exc:
            raise RunError(f"{command[0]} is not installed here; install it or choose another launch.kind") from exc
        self.ranks_seen = time.monotonic()
        """The last time at which the launcher had children."""

    def wait(self, look: Callable[[], None]) -> None:
        """Wait until all ranks have finished. Raises: RunError for the first that failed; what `look` raises."""
        while True:
            look()
            self.shown.show()
            code = status_of(self.process)
            if code:
                self.shown.show()
                raise RunError(self._death_notice(code))
            if code == 0 or self._waits_in_vain():
                return
            time.sleep(POLL_S)

    def _waits_in_vain(self) -> bool:
        """True if torchrun has waited too long for the launchers of other hosts after its own ranks had ended.

        Without a network it would wait for ever. Raises: RunError if a rank failed.
        """
        if self.config.kind != "torchrun" or self.config.nodes.train == 1:
            return False
        # A rank of another host that hangs is ended by its own deadline, so it is in vain to wait longer than that.
        now, patience_s = time.monotonic(), self.config.phase_timeout_s + SPARE_S
        if has_children(self.process.pid):
            self.ranks_seen = now
        if now - self.ranks_seen <= patience_s:
            return False
        waited = f"launcher still waited for the other hosts {patience_s:g} s after its ranks had ended"
        # A rank writes the phase "end" only after all its work.
        if others := self._phases(lambda rank, phase: phase != "end"):
            raise RunError(
                f"{waited}; see the ranks' logs, and restore the network connection between the hosts. The same "
                f"command continues from the last checkpoint{others}"
            )
        show(f"verizero: {waited}; it is ended now. All ranks have finished: the run is complete", is_error=True)
        return True

    def end(self) -> None:
        """End the child, and what it started."""
        if self.process.returncode is None:  # else its number may be another program's by now
            signal_group(self.process, signal.SIGTERM)
        end(self.process, first=0)

    def _death_notice(self, code: int) -> str:
        """Return which rank died first and how, the end of its log, and where the others were.

        It is the launcher that died where its log tells of no rank, or the rank died before it had a log.
        """
        name, pid, log, dead = "launcher", self.process.pid, self.log, -1
        ended = DEAD_RANK.findall(appended(self.log, self.begin).decode(errors="replace"))
        if ended:
            # The cause comes last; but of several in the same second, one that a signal killed was the first.
            _, number, status, process = min(reversed(ended), key=lambda of_rank: (of_rank[0], int(of_rank[2]) > 0))
            name, pid, code, dead = f"rank {number}", int(process), int(status), int(number)
        phase_file = self.logs / f"rank{dead}.phase"
        phase = ""
        if phase_file.exists():
            phase, log = f" in {phase_file.read_text()!r}", phase_file.with_suffix(".log")
        cause = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return (
            f"{name} (process {pid}) {cause}{phase}; the others were ended. The same command "
            f"continues from the last checkpoint. Last lines of {log}:\n  "
            + "\n  ".join(last_lines(log))
            + self._phases(lambda rank, phase: rank != dead)
        )

    def _phases(self, wanted: Callable[[int, str], bool]) -> str:
        """Return a line for each rank that is wanted by its number and phase, with the last line of its log."""
        lines = []
        for file in sorted(self.logs.glob("rank*.phase"), key=lambda file: int(file.stem.removeprefix("rank"))):
            rank, phase = int(file.stem.removeprefix("rank")), file.read_text()
            if wanted(rank, phase):
                lines.append(f"\nrank {rank} was in {phase!r}: " + "".join(last_lines(file.with_suffix(".log"), 1)))
        return "".join(lines)


class Tail:
    """Copies what is appended to a file to standard error."""

    def __init__(self, path: Path, position: int) -> None:
        self.path, self.position = path, position

    def show(self) -> None:
        """Copy what was appended since the last call."""
        new = appended(self.path, self.position)
        self.position += len(new)
        # A character cut at the end of the piece is shown as a replacement; the log itself is whole.
        show(new.decode(errors="replace"), is_error=True, end="")


def command_of(config: LaunchConfig, arguments: Sequence[str], program: str = PROGRAM) -> list[str]:
    """Return the command for torchrun or Slurm. Raises: RunError outside a Slurm job."""
    each = str(config.gpus_per_node)
    if config.kind == "torchrun":
        address, port = (LOOPBACK, free_port()) if config.nodes.train == 1 else (str(config.address), config.port)
        meeting = ["--master-addr", address, "--master-port", str(port)]
        return [*module_command("torch.distributed.run"), "--nnodes", str(config.nodes.train), "--nproc-per-node", each,
                "--node-rank", str(_node()), *meeting, "-m", program, *arguments]  # fmt: skip
    exported = f"ALL,MASTER_ADDR={_first_slurm_host()},MASTER_PORT={config.port}"
    # --wait=0: of a node that only generates all tasks but one end at once, and a cluster may end the others then.
    return ["srun", "--nodes", str(config.num_nodes), "--ntasks-per-node", each, "--kill-on-bad-exit=1", "--wait=0",
            "--export", exported, *module_command(program), *arguments]  # fmt: skip


def join_as_rank(config: LaunchConfig, folder: Path) -> int:
    """Make this process a rank: open its log and watch the deadlines of its phases. Return its number."""
    if config.kind == "slurm":  # tasks on nodes that only generate are no ranks
        os.environ.setdefault("WORLD_SIZE", str(config.nodes.train * config.gpus_per_node))
    for ours, theirs in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID")):
        if ours not in os.environ and theirs in os.environ:
            os.environ[ours] = os.environ[theirs]
    if config.kind != "none":
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(config.gpus_per_node))
    leave_safe_path()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python would hear it only after the collective that it waits in
    rank, logs = int(os.environ.get("RANK", "0")), folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if LAUNCHED in os.environ:  # the output of a launcher's child is not in the log yet
        die_with(os.getppid())
        if config.kind == "torchrun" and [os.environ[LAUNCHED]] != stat_of(os.getppid())[1:2]:
            os._exit(1)  # torchrun had ended before the line above, and another process is the parent now
        with (logs / f"rank{rank}.log").open("ab") as log:
            # The descriptors, not sys.stdout: libraries in C write to them too.
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
    WATCH.start(logs / f"rank{rank}.phase", config.phase_timeout_s)
    return rank


def served_here(config: LaunchConfig, folder: Path) -> bool:
    """Serve until the run has ended and return True, if this task of Slurm is on a node that only generates.

    The first task of the node does it, and the others return at once.
    """
    if config.kind != "slurm" or _node() not in config.generating:
        return False
    if os.environ.get("SLURM_LOCALID", "0") == "0":
        serve_as_node(_node(), config, folder, os.environ["MASTER_ADDR"])
    return True


def serve_as_node(node: int, config: LaunchConfig, folder: Path, trainer: str) -> None:
    """Serve as the trainer, at the address `trainer`, orders it in the run's folder, until the run has ended.

    Raises: RunError if no order comes, or if rank 0 begins no phase for longer than a phase may take.
    """
    phases = folder / "logs" / "rank0.phase"
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    seen, since, is_asked = "", time.monotonic(), False
    show(f"verizero: node {node} generates; it waits for the trainer's order in {folder_of(folder)}")
    with closing(ServersOfNode(folder, node, address_towards(trainer))) as servers:
        while True:
            servers.look()
            is_asked = is_asked or bool(servers.order)
            phase = _phase(phases)
            if is_asked and phase.startswith("end\n"):
                return
            if phase != seen:
                seen, since = phase, time.monotonic()
            is_begun = is_asked and not phase.startswith("start\n")
            limit_s = config.phase_timeout_s if is_begun else max(START_S, config.phase_timeout_s)
            if time.monotonic() - since > limit_s + SPARE_S:
                raise RunError(
                    f"node {node} ends its servers: rank 0 began no phase for {limit_s:g} s (launch.phase_timeout_s="
                    f"{config.phase_timeout_s:g}), so the trainer has ended, or was never started. The same command on "
                    "all nodes continues from the last checkpoint"
                )
            time.sleep(LOOK_S)


def _phase(file: Path) -> str:
    """Return the phase, and when it began; "" if there is none."""
    with suppress(OSError):
        return f"{file.read_text()}\n{file.stat().st_mtime_ns}"
    return ""


def has_children(pid: int) -> bool:
    """True if the process has a child that runs."""
    try:
        return any(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return False


def _node() -> int:
    """Return this machine's number among those on which torchrun is started."""
    return int(next((os.environ[n] for n in ("NODE_RANK", "SLURM_NODEID") if n in os.environ), "0"))


def _first_slurm_host() -> str:
    named = os.environ.get("SLURM_JOB_NODELIST")
    if not named or shutil.which("scontrol") is None:
        raise RunError("launch.kind=slurm works only inside a Slurm job; start the job with sbatch or salloc")
    hosts = subprocess.run(["scontrol", "show", "hostnames", named], capture_output=True, text=True, check=True)
    return hosts.stdout.split()[0]
