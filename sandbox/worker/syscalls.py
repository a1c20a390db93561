"""The system calls that an untrusted program may make, by name, with their numbers on each architecture."""

# ruff: noqa: C408  (keyword form: a table of names and numbers without quotes)

from __future__ import annotations

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# What CPython, its extension modules and libc need to compute, read files and make threads. Not here, on purpose:
# chmod/chown/utime/xattr (Landlock does not see them), link/symlink, truncate by path, memfd_create and shmget
# (memory that RLIMIT_AS does not count), prctl, ptrace, mount, keyctl, bpf, io_uring, perf, sockets, sendmsg,
# statfs (it tells how full the host's disks are).
X86_64: dict[str, int] = dict(
    read=0, write=1, open=2, close=3, stat=4, fstat=5, lstat=6, poll=7, lseek=8, mmap=9, mprotect=10, munmap=11,
    brk=12, rt_sigaction=13, rt_sigprocmask=14, rt_sigreturn=15, pread64=17, pwrite64=18, readv=19, writev=20,
    access=21, pipe=22, select=23, sched_yield=24, mremap=25, msync=26, mincore=27, madvise=28, dup=32, dup2=33,
    pause=34, nanosleep=35, getitimer=36, alarm=37, setitimer=38, getpid=39, sendfile=40, shutdown=48, exit=60,
    uname=63, flock=73, fsync=74, fdatasync=75, ftruncate=77, getdents=78, getcwd=79, chdir=80, fchdir=81, rename=82,
    mkdir=83, rmdir=84, creat=85, unlink=87, readlink=89, umask=95, gettimeofday=96, getrlimit=97, getrusage=98,
    sysinfo=99, times=100, getuid=102, getgid=104, geteuid=107, getegid=108, getppid=110, getpgrp=111, getgroups=115,
    getresuid=118, getresgid=120, getpgid=121, getsid=124, rt_sigpending=127, rt_sigtimedwait=128, rt_sigsuspend=130,
    sigaltstack=131, getpriority=140, sched_getparam=143, sched_getscheduler=145,
    sched_get_priority_max=146, sched_get_priority_min=147, arch_prctl=158, gettid=186, time=201, futex=202,
    sched_getaffinity=204, getdents64=217, set_tid_address=218, restart_syscall=219, fadvise64=221, clock_gettime=228,
    clock_getres=229, clock_nanosleep=230, exit_group=231, epoll_wait=232, epoll_ctl=233, openat=257, mkdirat=258,
    newfstatat=262, unlinkat=263, renameat=264, readlinkat=267, faccessat=269, pselect6=270, ppoll=271,
    set_robust_list=273, get_robust_list=274, epoll_pwait=281, timerfd_create=283, timerfd_settime=286,
    timerfd_gettime=287, eventfd2=290, epoll_create1=291, dup3=292, pipe2=293, preadv=295, pwritev=296, getcpu=309,
    renameat2=316, getrandom=318, membarrier=324, copy_file_range=326, preadv2=327, pwritev2=328, statx=332, rseq=334,
    close_range=436, faccessat2=439, epoll_pwait2=441,
)  # fmt: skip

AARCH64: dict[str, int] = dict(
    getcwd=17, eventfd2=19, epoll_create1=20, epoll_ctl=21, epoll_pwait=22, dup=23, dup3=24, flock=32, mkdirat=34,
    unlinkat=35, renameat=38, ftruncate=46, faccessat=48, chdir=49, fchdir=50, openat=56,
    close=57, pipe2=59, getdents64=61, lseek=62, read=63, write=64, readv=65, writev=66, pread64=67, pwrite64=68,
    preadv=69, pwritev=70, sendfile=71, pselect6=72, ppoll=73, readlinkat=78, newfstatat=79, fstat=80, fsync=82,
    fdatasync=83, timerfd_create=85, timerfd_settime=86, timerfd_gettime=87, exit=93, exit_group=94,
    set_tid_address=96, futex=98, set_robust_list=99, get_robust_list=100, nanosleep=101, getitimer=102,
    setitimer=103, clock_gettime=113, clock_getres=114, clock_nanosleep=115, sched_getscheduler=120,
    sched_getparam=121, sched_getaffinity=123, sched_yield=124, sched_get_priority_max=125,
    sched_get_priority_min=126, restart_syscall=128, sigaltstack=132, rt_sigsuspend=133, rt_sigaction=134,
    rt_sigprocmask=135, rt_sigpending=136, rt_sigtimedwait=137, rt_sigreturn=139, getpriority=141, getresuid=148,
    getresgid=150, times=153, getpgid=155, getsid=156, getgroups=158, uname=160, getrlimit=163, getrusage=165,
    umask=166, getcpu=168, gettimeofday=169, getpid=172, getppid=173, getuid=174, geteuid=175, getgid=176,
    getegid=177, gettid=178, sysinfo=179, shutdown=210, brk=214, munmap=215, mremap=216, mmap=222, fadvise64=223,
    mprotect=226, msync=227, mincore=232, madvise=233, renameat2=276, getrandom=278, membarrier=283,
    copy_file_range=285, preadv2=286, pwritev2=287, statx=291, rseq=293, close_range=436, faccessat2=439,
    epoll_pwait2=441,
)  # fmt: skip

# RunLimits only with certain arguments; the filter has a clause for each.
GUARDED = {
    "x86_64": dict(clone=56, clone3=435, ioctl=16, fcntl=72, prlimit64=302, socketpair=53, sendto=44, recvfrom=45,
                   kill=62, tkill=200, tgkill=234),
    "aarch64": dict(clone=220, clone3=435, ioctl=29, fcntl=25, prlimit64=261, socketpair=199, sendto=206, recvfrom=207,
                    kill=129, tkill=130, tgkill=131),
}  # fmt: skip

# What a compiled program or another interpreter needs on top: to start, and to make and await processes of its own.
EXEC = {
    "x86_64": dict(vfork=58, fork=57, execve=59, wait4=61, waitid=247, prctl=157, getpgid=121,
                   sched_setaffinity=203, epoll_create=213, capget=125, pidfd_open=434,
                   execveat=322),
    "aarch64": dict(execve=221, wait4=260, waitid=95, prctl=167, sched_setaffinity=122, capget=90,
                    pidfd_open=434, execveat=281),
}  # fmt: skip

# Calls of a child before its last wall, which then closes them.
SETUP = {
    "x86_64": dict(capset=126, setpgid=109),
    "aarch64": dict(capset=91, setpgid=154),
}  # fmt: skip

# More such calls of a session's child, to get its streams and a Landlock domain of its own.
SESSION_SETUP = {
    "x86_64": dict(recvmsg=47, landlock_restrict_self=446),
    "aarch64": dict(recvmsg=212, landlock_restrict_self=446),
}  # fmt: skip

TABLES = {"x86_64": X86_64, "aarch64": AARCH64}
