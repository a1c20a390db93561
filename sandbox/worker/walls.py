"""The walls: some are put up once per worker (namespaces, file tree, uid), the others around every run."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from . import cgroup, disk, kernel, landlock, seccomp
from .frames import CGROUP, LANDLOCK, MANAGED, NAMESPACES, SECCOMP, SELF_TEST, SUITE, UID, Order
from .processes import num_threads_on_machine

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
SYSTEM = ("/usr/lib", "/lib", "/lib64", "/usr/lib64", "/usr/share/zoneinfo")
_INPUT, _OUTPUT = "/in/stdin", "/in/stdout"
"""Paths of standard input and output, in a folder where no program can put another file."""
_PACKAGES = "/packages"
_HOST = "sandbox"
"""The name that a program finds for its machine."""
DECOY = "decoy"
"""A file in the jail that only Landlock keeps closed. The self-test tries to open it."""
LAST_READ_S = 4_102_444_800
"""The time at which the scratch folder was read last, in the year 2100. Linux writes a later read only over a time
before the last change, so a process that lists the folder leaves no trace."""
_MAX_DESCRIPTORS = 64
_OTHER_PROCESSES = 1024
"""Processes that the same uid may start elsewhere during a run."""
BASE_MIB = 256
"""Address space beyond the memory limit: the interpreter, shared libraries and reserved thread stacks."""


class WallFailed(OSError):
    """A wall could not be put up; `wall` is its name."""

    def __init__(self, wall: str, cause: OSError) -> None:
        super().__init__(cause.errno, f"{wall}: {cause.strerror or cause}")
        self.wall = wall


class Jail:
    """The worker's walls, and what each run needs to put up its own: descriptors and paths."""

    def __init__(self, walls: frozenset[str], scratch: str, tools: tuple[str, ...]) -> None:
        self.walls, self.tools = walls, tools
        self.scratch = scratch
        """The only folder that a run may write to. It is empty when a run starts."""
        self.disk_mib = 0
        """Present size of the scratch file system."""
        self.stdin = self.stdout = self.proc = -1
        """`stdout`: -1 where programs find the caller's file by /proc. `proc`: a descriptor of the host's /proc, for
        the worker only. It shows how long a run waited for a CPU."""
        self.rules_fd: int | None = None
        """Descriptor of the Landlock rules; None without that wall."""
        self.cgroup: cgroup.CGroup | None = None
        self.has_own_uid = False
        """True if no other process has the run's uid: then the kernel's limit per uid bounds the run's processes."""
        self.notes: dict[str, str] = {}
        self.packages = ""
        """Folder with a link to each package that programs may import; empty without any."""
        self.readable: list[str] = []
        """Folders of libraries, which programs may read."""
        self.has_sessions = False
        """True in a keeper. Each child then has a user and a mount namespace too, for its session's files."""

    @property
    def has_namespaces(self) -> bool:
        """True if each run has its own process tree and scratch file system."""
        return NAMESPACES in self.walls

    @property
    def processes_may_remain(self) -> bool:
        """True if a run can leave processes behind: there is no process namespace to end them, and we adopt them."""
        return bool(self.tools) and not self.has_namespaces

    @property
    def worker_must_count_processes(self) -> bool:
        """True if nothing else bounds a run's processes: neither a uid of its own nor a control group."""
        is_bounded = (self.has_own_uid or self.cgroup is not None) and not self.has_sessions  # sessions share both
        return self.processes_may_remain and not is_bounded

    @property
    def needs_own_domain(self) -> bool:
        """True if each run needs a Landlock domain of its own: without one, its processes could signal the forker."""
        return bool(self.tools) and not (self.has_namespaces or self.has_sessions) and self.rules_fd is not None

    @property
    def clone_flags(self) -> int:
        """Flags of clone(2) for the namespaces that every run gets for itself."""
        for_session = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS if self.has_sessions else 0
        return kernel.CLONE_NEWPID | for_session if self.has_namespaces else 0


def enter(
    walls: Sequence[str],
    home: str,
    uid: int,
    tools: Sequence[str],
    cgroups: Mapping[str, str],
    has_sessions: bool = False,
    packages: Sequence[str] = (),
) -> Jail:  # fmt: skip
    """Put up the worker's walls and return its jail. `home` is this worker's folder, which the caller made.

    `tools` are folders of compilers and interpreters that programs may run; without any, there is only Python and no
    exec. `has_sessions` is True in a keeper of sessions. `packages`: files and folders that programs may import.
    Raises: WallFailed.
    """
    jail = Jail(frozenset(walls), f"{home}/box/tmp", tuple(tools))
    jail.has_sessions = has_sessions
    with contextlib.suppress(OSError):
        jail.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if CGROUP in walls:
        try:
            jail.cgroup = cgroup.CGroup(cgroups)
        except OSError as exc:
            raise WallFailed(CGROUP, exc) from exc
        jail.notes[CGROUP] = "memory and processes of a run together"
    readable = jail.readable = [f"{sys.base_prefix}/lib", *SYSTEM, *packages]
    os.umask(0o022)
    if packages:
        jail.packages = _PACKAGES if NAMESPACES in walls else f"{home}{_PACKAGES}"
    if NAMESPACES in walls:
        try:
            _enter_namespaces(jail, home, uid, readable, packages)
        except OSError as exc:
            raise WallFailed(NAMESPACES, exc) from exc
    else:
        os.mkdir(jail.scratch)
        if packages:
            disk.link(packages, jail.packages)
        if UID in walls:
            _change_uid(jail, uid, [readable[0], *map(os.path.dirname, packages)])
    if packages:
        readable.append(jail.packages)
    if jail.stdin < 0:
        jail.stdin = os.memfd_create("stdin", os.MFD_CLOEXEC)
    if LANDLOCK in walls:
        try:
            jail.rules_fd = landlock_rules(jail, jail.scratch)
            jail.notes[LANDLOCK] = f"abi {landlock.abi()}"
        except OSError as exc:
            raise WallFailed(LANDLOCK, exc) from exc
    if SECCOMP in walls and kernel.MACHINE not in seccomp.MACHINES:
        raise WallFailed(SECCOMP, OSError(38, f"no system call table for {kernel.MACHINE}"))
    _limit_worker(jail)
    return jail


def landlock_rules(jail: Jail, scratch: str) -> int:
    """Return a descriptor of Landlock rules for programs that write to `scratch` only. Raises: OSError."""
    # The scratch file system is mounted later. A rule covers what is mounted below its folder, but not on the folder.
    allowed = os.path.dirname(scratch) if jail.has_namespaces else scratch
    runnable = [*jail.tools, allowed] if jail.tools else []
    files = [_INPUT, _OUTPUT] if jail.has_namespaces else []
    writable = [allowed, "/dev/null"]
    if not jail.has_sessions:  # sessions share the input; otherwise only one run at a time has it
        writable += files
    return landlock.ruleset([*jail.readable, *DEVICES, *files], writable, runnable)


def _enter_namespaces(jail: Jail, home: str, uid: int, readable: list[str], packages: Sequence[str]) -> None:
    others = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET
    if os.geteuid() == 0 and _try_unshare(others):
        kernel.set_host_name(_HOST)
        _build_root(home, [*readable, *jail.tools], jail.has_sessions, packages)
        jail.notes[UID] = f"host uid {_unshare_user_as_root(uid, jail.proc)}"
    else:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER | others)
        kernel.set_host_name(_HOST)
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
        _build_root(home, [*readable, *jail.tools], jail.has_sessions, packages)
        jail.notes[UID] = f"host uid {user}, the only one that we may map"
    kernel.unshare(kernel.CLONE_NEWNS)  # belongs to the new user, so the worker may mount the scratch file system
    jail.scratch, jail.has_own_uid = "/box/tmp", True
    if not jail.has_sessions:
        jail.stdin, jail.stdout = (os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in (_INPUT, _OUTPUT))
    jail.notes[NAMESPACES] = "user, mount, pid, net, ipc, uts"


def _try_unshare(flags: int) -> bool:
    """Make namespaces. False if even root may not: then it needs a user namespace around them, as every user does."""
    try:
        kernel.unshare(flags)
    except PermissionError:
        return False
    return True


def _build_root(home: str, readable: Sequence[str], has_sessions: bool, packages: Sequence[str]) -> None:
    """Make a small read-only tree of libraries, four devices, an input and an output, and move into it.

    No program can put a file next to these two. Sessions share them, so they cannot write to them.
    """
    root = f"{home}/box"
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for path in dict.fromkeys(readable):
        _bind(path, root)
    if packages:
        disk.link(packages, root + _PACKAGES)
    os.makedirs(f"{root}/dev", exist_ok=True)
    for device in DEVICES:
        os.close(os.open(root + device, os.O_CREAT | os.O_WRONLY))
        kernel.mount(device, root + device, None, kernel.MS_BIND)
    os.makedirs(f"{root}/box/tmp")
    os.mkdir(f"{root}/in")
    kernel.mount("tmpfs", f"{root}/in", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, "mode=555")
    for path in (_INPUT, _OUTPUT):
        os.close(os.open(root + path, os.O_CREAT | os.O_WRONLY))
        os.chmod(root + path, 0o444 if has_sessions else 0o666)
    links = {"/tmp": "/box/tmp", "/dev/shm": "/box/tmp", "/dev/stdin": _INPUT, "/dev/stdout": _OUTPUT}
    for link, target in (links | {"/dev/stderr": "/dev/null"}).items():
        if not os.path.lexists(root + link):  # the interpreter itself may live under /tmp
            os.symlink(target, root + link)
    os.close(os.open(f"{root}/{DECOY}", os.O_CREAT | os.O_WRONLY, 0o644))
    os.mkdir(f"{root}/old")
    os.chdir(root)
    kernel.pivot_root(".", "old")
    os.chdir("/")
    kernel.unmount("/old")
    os.rmdir("/old")
    sealed = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(None, "/", None, kernel.MS_REMOUNT | kernel.MS_BIND | sealed)


def _bind(path: str, root: str) -> None:
    """Show the host's `path`, if it exists, read-only at the same place under `root`."""
    target = root + path
    if os.path.lexists(target) or not os.path.exists(path):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    sealed = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(None, target, None, kernel.MS_REMOUNT | kernel.MS_BIND | sealed)


def _change_uid(jail: Jail, uid: int, libraries: Sequence[str]) -> None:
    """Become `uid` if that is allowed and the interpreter's libraries stay readable.

    If a library's folder is closed to others, the right to read past such folders is kept, and Landlock narrows it
    to them. To stay root would be worse: the kernel bounds no processes of root, and root owns the host's files.
    """
    if os.geteuid() != 0:
        jail.notes[UID] = f"uid {os.geteuid()}, the caller's: an ordinary user has no other"
        return
    library = next((path for path in libraries if not _readable_by_all(path)), "")
    is_open = not library
    if not (is_open or kernel.has_capability(kernel.CAP_DAC_READ_SEARCH)):
        jail.notes[UID] = f"uid 0 without capabilities: {library} is closed to other users"
        return
    try:
        for folder in (os.path.dirname(jail.scratch), jail.scratch):
            os.chown(folder, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        if not is_open:
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setresuid(uid, uid, uid)
        if not is_open:
            kernel.keep_capabilities([kernel.CAP_DAC_READ_SEARCH])
    except OSError as exc:
        raise WallFailed(UID, exc) from exc
    how = "" if is_open else f" with the right to read {library}, which is closed to it"
    jail.notes[UID], jail.has_own_uid = f"host uid {uid}{how}", True


def _readable_by_all(path: str) -> bool:
    """True if every user can list the folder and pass through all folders above it."""
    if os.stat(path).st_mode & 0o005 != 0o005:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o001:
            return False
    return True


def limit_descriptors() -> None:
    """Bound the descriptors of this process and of all that it starts."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_DESCRIPTORS, _MAX_DESCRIPTORS))


def _limit_worker(jail: Jail) -> None:
    """Set the limits of the worker that are the same for every run. Runs inherit them."""
    for name in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK):
        resource.setrlimit(name, (0, 0))
    if not jail.has_sessions:  # a keeper needs many descriptors; its forkers limit those of programs
        limit_descriptors()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if jail.has_namespaces:
        kernel.prctl(kernel.PR_SET_SECUREBITS, kernel.ALL_SECUREBITS_LOCKED)


def clear(jail: Jail, disk_mib: int) -> None:
    """Empty the scratch folder and make it `disk_mib` large.

    A new file system takes its place, in which the next numbers of files are the same for every run. The folder's times
    are too: no program learns from them what another has done.
    """
    if jail.has_namespaces:
        if jail.disk_mib:
            kernel.unmount(jail.scratch)
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if jail.tools else kernel.MS_NOEXEC)
        kernel.mount("tmpfs", jail.scratch, "tmpfs", flags, f"size={disk_mib}m,nr_inodes={disk.MAX_ENTRIES},mode=700")
        jail.disk_mib = disk_mib
    else:
        disk.empty(jail.scratch)
    os.utime(jail.scratch, (LAST_READ_S, 0))


def limit(pid: int, order: Order, jail: Jail, input_mib: int) -> None:
    """Set the kernel's limits of the waiting child, as its order has them, with room for its input of `input_mib`.

    RLIMIT_NPROC counts all processes of a uid. If others have the uid too, the limit is far above their number, but low
    enough that the worker can still count processes during a fork bomb. Raises: OSError.
    """
    limits = [
        (resource.RLIMIT_CPU, int(order.cpu_s) + 2),  # a backstop: the worker stops the run at the exact second
        (resource.RLIMIT_FSIZE, max(order.disk_mib << 20, order.output_kib << 11, input_mib + 1 << 20)),
    ]
    if order.kind != MANAGED:
        limits.append((resource.RLIMIT_AS, (order.memory_mib + BASE_MIB + 2 * input_mib) << 20))
    if order.kind != SELF_TEST:  # the self-test proves that the control group alone bounds processes
        if jail.has_own_uid:
            others = 3 if order.kind == SUITE else 2  # the worker and its forker count too, and a suite's tests
            limits.append((resource.RLIMIT_NPROC, order.processes + others))
        elif jail.worker_must_count_processes:
            limits.append((resource.RLIMIT_NPROC, max_processes(jail, order.processes)))
    for name, value in limits:
        resource.prlimit(pid, name, (value, value))


def max_processes(jail: Jail, processes: int) -> int:
    """Return a limit of the uid's processes that is far above their number, and at which the worker can still count."""
    others, hard = (num_threads_on_machine(jail.proc) or _OTHER_PROCESSES, resource.getrlimit(resource.RLIMIT_NPROC)[1])
    bound = others + processes + _OTHER_PROCESSES
    return bound if hard == resource.RLIM_INFINITY else min(bound, hard)


def restrict(jail: Jail) -> None:
    """Put this process and its children into the control group, Landlock, and most of seccomp.

    Seccomp still allows the calls that a child makes before its program; `last_wall` closes them. Raises: WallFailed.
    """
    try:
        if jail.cgroup is not None:
            jail.cgroup.enter()
    except OSError as exc:
        raise WallFailed(CGROUP, exc) from exc
    try:
        if jail.rules_fd is not None:
            landlock.restrict(jail.rules_fd)
            if not jail.needs_own_domain:
                os.close(jail.rules_fd)
    except OSError as exc:
        raise WallFailed(LANDLOCK, exc) from exc
    if SECCOMP in jail.walls:
        own_pid = 1 if jail.has_namespaces else None
        seccomp.install(seccomp.assemble(seccomp.outer(kernel.MACHINE, own_pid, bool(jail.tools), jail.has_sessions)))


def last_wall(jail: Jail) -> Callable[[], None]:
    """Return a function that puts a child under the rest of seccomp: then it has only the allowlist.

    The function raises OSError if the kernel refuses.
    """
    if SECCOMP not in jail.walls:
        return lambda: None
    forks = bool(jail.tools)
    if jail.has_namespaces or forks:
        return partial(seccomp.install, seccomp.assemble(seccomp.inner(kernel.MACHINE, None, forks, jail.has_sessions)))
    return lambda: seccomp.install(
        seccomp.assemble(seccomp.inner(kernel.MACHINE, os.getpid(), forks, jail.has_sessions))
    )


def _unshare_user_as_root(uid: int, proc: int) -> int:
    """Enter a new user namespace and return the host uid of its root: `uid`, or our own if `uid` cannot be mapped."""
    ready_read, ready_write = os.pipe()
    answer_read, answer_write = os.pipe()
    our_pid = os.getpid()
    mapper = os.fork()  # stays in the old namespace, where it may map any uid
    if mapper == 0:
        os.close(ready_write)
        os.read(ready_read, 1)
        os.write(answer_write, _map_ids(proc, our_pid, (uid, os.geteuid())).to_bytes(8, "little"))
        os._exit(0)
    os.close(answer_write)  # the mapper alone has it: if that is killed, the read below ends
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    finally:
        os.write(ready_write, b"1")
        answer = os.read(answer_read, 8)
        os.waitpid(mapper, 0)
        for fd in (ready_read, ready_write, answer_read):
            os.close(fd)
    if not answer:  # killed, for example: that says nothing about a wall
        sys.exit("the process that maps ids died while the worker started")
    uid_plus_one = int.from_bytes(answer, "little")
    if not uid_plus_one:
        raise OSError(errno.EPERM, "uid_map: not permitted")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return uid_plus_one - 1


def _map_ids(proc: int, pid: int, candidates: Sequence[int]) -> int:
    """Map root of `pid`'s user namespace to the first uid that works. Return one more than that uid, or 0 for none."""
    for uid in candidates:
        try:
            for name in ("uid_map", "gid_map"):
                fd = os.open(f"{pid}/{name}", os.O_WRONLY, dir_fd=proc)
                os.write(fd, f"0 {uid} 1".encode())
                os.close(fd)
            return uid + 1
        except OSError:
            continue
    return 0
