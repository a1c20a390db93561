"""Start a group of ranks here or by torchrun, DeepSpeed or Slurm, watch them, and end them together.

Each rank runs the same command with its place in the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and
writes `logs/rank<r>.log` in the run's folder. When a rank dies, the others are ended: they would wait for it for ever.
The same command continues from the last checkpoint, also with another number of ranks.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verizero.pipeline.child import appended, die_with, end, last_lines, signal_group, size_of, start, status_of
from verizero.pipeline.config.sections import LaunchConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.listening import LOOPBACK, free_port
from verizero.pipeline.own_programs import SAFE_PATH, leave_safe_path, module_command
from verizero.pipeline.report.ended import ended_by, has_ended, record_failure
from verizero.pipeline.shown import show
from verizero.pipeline.train.deadline import SPARE_S, WATCH

LAUNCHED = "VERIZERO_LAUNCHED"
"""Variable of the ranks that this module started, with the kind of launch."""
POLL_S = 0.05
PROGRAM = "verizero.pipeline.cli"


def is_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """True if this process is a rank of a group."""
    return LAUNCHED in environment or "RANK" in environment


def launch(config: LaunchConfig, arguments: Sequence[str], folder: Path, program: str = PROGRAM) -> None:
    """Run `verizero <arguments>` (the module `program`) as a group of ranks until all have finished.

    Raises: RunError naming the rank that died first, its phase and its last lines; the other ranks are ended.
    """
    logs, node = folder / "logs", _node() if config.kind == "torchrun" else 0
    logs.mkdir(parents=True, exist_ok=True)
    if node == 0:
        # A notice of death quotes these files: those of an earlier launch would name ranks that do not exist.
        for stale in logs.glob("rank*.phase"):
            stale.unlink(missing_ok=True)
    # A rank of another host that hangs is ended by its own deadline, so it is in vain to wait longer than that.
    group = Group(logs, config.phase_timeout_s + SPARE_S if config.kind == "torchrun" else math.inf)
    try:
        if config.kind == "local":
            group.start_local(config, [*module_command(program), *arguments])
        else:
            log = logs / (f"launcher{node}.log" if node else "launcher.log")
            group.start("launcher", command_of(config, arguments, program), {LAUNCHED: config.kind}, log)
        group.wait()
    except BaseException as exc:
        group.end()  # a rank that can still write says first how the run ended
        if not has_ended(folder):
            record_failure(folder, ended_by(exc, ""))
        raise
    finally:
        group.end()


@dataclass
class Member:
    """A child: a rank, or the launcher of ranks."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class Group:
    """The children of one launch."""

    logs: Path
    patience_s: float = math.inf
    """Seconds that a launcher may outlive its ranks."""
    ranks_seen: float = math.inf
    """The last time (of time.monotonic) at which the launcher had children."""
    members: list[Member] = field(default_factory=list)
    shown: Tail | None = None

    def start_local(self, config: LaunchConfig, command: Sequence[str]) -> None:
        """Start a child for each rank on this machine."""
        size = config.gpus_per_node
        port = free_port()
        # Each rank would otherwise start a thread per core, and all of them would compete.
        threads = str(max(1, (os.cpu_count() or 1) // size))
        for rank in range(size):
            rank_variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",  # or ranks would listen at the address of this machine's name
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
                LAUNCHED: "local",
            }
            self.start(f"rank {rank}", command, rank_variables, self.logs / f"rank{rank}.log")

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start a child that ends with this process and writes to `log`. The log of rank 0 is shown here."""
        first = self.logs / "rank0.log"
        if self.shown is None:
            # Logs are appended to over launches; begin behind the earlier ones.
            self.shown = Tail(first, size_of(first))
        # A launcher starts the ranks itself, without the words of `module_command`.
        more = {**environment, "PYTHONUNBUFFERED": "1", SAFE_PATH: "1"}
        try:
            process = start(command, more, log=log, dies=True)
        except FileNotFoundError as exc:
            raise RunError(f"{command[0]} is not installed here; install it or choose another launch.kind") from exc
        self.members.append(Member(name, process, log))

    def wait(self) -> None:
        """Wait until all have finished. Raises: RunError for the first that failed."""
        assert self.shown is not None
        while True:
            self.shown.show()
            # Polled once for all, so that the decisions below see one moment.
            codes = [(m, status_of(m.process)) for m in self.members]
            bad = [(m, code) for m, code in codes if code not in (None, 0)]
            if bad:
                self.shown.show()
                # if several are dead by now, report one that a signal killed: the others failed because of it
                member, code = min(bad, key=lambda pair: (pair[1] or 0) > 0)
                raise RunError(self._death_notice(member, code or 0))
            if all(code == 0 for _, code in codes) or self._waits_in_vain():
                return
            time.sleep(POLL_S)

    def _waits_in_vain(self) -> bool:
        """True if torchrun has waited too long for the launchers of other hosts after its own ranks had ended.

        Without a network it would wait for ever. Raises: RunError if a rank failed.
        """
        if self.patience_s == math.inf:
            return False
        # torchrun is one child, the launcher; its ranks are children of that.
        (member,), now = self.members, time.monotonic()
        if has_children(member.process.pid):
            self.ranks_seen = now
        if now - self.ranks_seen <= self.patience_s:
            return False
        waited = f"{member.name} still waited for the other hosts {self.patience_s:g} s after its ranks had ended"
        # A rank writes the phase "end" only after all its work.
        others = [file for file in sorted(self.logs.glob("rank*.phase"), key=_rank) if file.read_text() != "end"]
        if others:
            raise RunError(
                f"{waited}; see the ranks' logs, and restore the network connection between the hosts. The same "
                "command continues from the last checkpoint" + "".join(f"\n{self._other(file)}" for file in others)
            )
        show(f"verizero: {waited}; it is ended now. All ranks have finished: the run is complete", is_error=True)
        return True

    def end(self) -> None:
        """End the children, and what they started."""
        processes = [m.process for m in self.members]
        for process in processes:
            if process.returncode is None:  # else its number may be another program's by now
                signal_group(process, signal.SIGTERM)
        end(*processes, first=0)

    def _death_notice(self, member: Member, code: int) -> str:
        cause = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        phase_file = member.log.with_suffix(".phase")
        phase = f" in {phase_file.read_text()!r}" if phase_file.exists() else ""
        others = [self._other(file) for file in sorted(self.logs.glob("rank*.phase"), key=_rank) if file != phase_file]
        return (
            f"{member.name} (process {member.process.pid}) {cause}{phase}; the others were ended. The same command "
            f"continues from the last checkpoint. Last lines of {member.log}:\n  "
            + "\n  ".join(last_lines(member.log))
            + "".join(f"\n{other}" for other in others)
        )

    def _other(self, file: Path) -> str:
        """Return a line about a rank: the phase in `file`, if a signal stopped it, and the last line of its log."""
        name = f"rank {_rank(file)}"
        process = next((m.process for m in self.members if m.name == name), None)
        stopped = ", stopped by a signal" if process is not None and is_stopped(process.pid) else ""
        return f"{name} was in {file.read_text()!r}{stopped}: " + "".join(last_lines(file.with_suffix(".log"), 1))


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
    """Return the command for torchrun, DeepSpeed's launcher or Slurm. Raises: RunError outside a Slurm job."""
    nodes, each, address = str(config.nodes), str(config.gpus_per_node), config.address or LOOPBACK
    script = [program, *arguments]
    if config.kind == "torchrun":
        meeting = ["--master-addr", address, "--master-port", str(config.port)]
        return [*module_command("torch.distributed.run"), "--nnodes", nodes, "--nproc-per-node", each, "--node-rank",
                str(_node()), *meeting, "-m", *script]  # fmt: skip
    if config.kind == "deepspeed":
        hosts = ["--hostfile", config.hostfile] if config.hostfile else []
        meeting = ["--master_port", str(config.port), *(["--master_addr", config.address] if config.address else [])]
        return [*module_command("deepspeed.launcher.runner"), *hosts, "--num_nodes", nodes, "--num_accelerators", each,
                *meeting, "--no_local_rank", "--module", *script]  # fmt: skip
    exported = f"ALL,MASTER_ADDR={_first_slurm_host()},MASTER_PORT={config.port}"
    return ["srun", "--nodes", nodes, "--ntasks-per-node", each, "--kill-on-bad-exit=1", "--export", exported,
            *module_command(program), *arguments]  # fmt: skip


def join_as_rank(config: LaunchConfig, folder: Path) -> int:
    """Make this process a rank: open its log and watch the deadlines of its phases. Return its number."""
    for ours, theirs in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID")):
        if ours not in os.environ and theirs in os.environ:
            os.environ[ours] = os.environ[theirs]
    leave_safe_path()
    rank, logs = int(os.environ.get("RANK", "0")), folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if (
        os.environ.get(LAUNCHED, "local") != "local"
    ):  # the child of another launcher, whose output is not in the log yet
        die_with(os.getppid())
        with (logs / f"rank{rank}.log").open("ab") as log:
            # The descriptors, not sys.stdout: libraries in C write to them too.
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
    WATCH.start(logs / f"rank{rank}.phase", config.phase_timeout_s)
    return rank


def has_children(pid: int) -> bool:
    """True if the process has a child that runs."""
    try:
        return any(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """True if a signal has stopped the process (SIGSTOP, until SIGCONT)."""
    try:
        # The name comes in parentheses and may itself have some, so the fields are counted from the last one.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def _rank(file: Path) -> int:
    return int(file.stem.removeprefix("rank"))


def _node() -> int:
    """Return this machine's number among those on which torchrun is started."""
    return int(next((os.environ[n] for n in ("NODE_RANK", "SLURM_NODEID") if n in os.environ), "0"))


def _first_slurm_host() -> str:
    named = os.environ.get("SLURM_JOB_NODELIST")
    if not named or shutil.which("scontrol") is None:
        raise RunError("launch.kind=slurm works only inside a Slurm job; start the job with sbatch or salloc")
    hosts = subprocess.run(["scontrol", "show", "hostnames", named], capture_output=True, text=True, check=True)
    return hosts.stdout.split()[0]
