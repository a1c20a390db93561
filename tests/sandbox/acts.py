"""Single acts that must fail behind the walls. Each is code that raises, or ends, when it is stopped.

`SECRET`, `OUTSIDE`, `PID` and `PORT` are filled in: a readable host file, a writable host folder, a host process of the
same user, a listening TCP port of the host. An act that returns without raising has succeeded: its program then prints
the very output that was expected. Acts marked with `*` are harmless enough to be tried without walls as a control.
"""

# ruff: noqa: E501  (one program, one line)

READS = {
    "*read a secret": "assert open('SECRET').read()",
    "*read by os.open": "import os; assert os.read(os.open('SECRET', os.O_RDONLY), 9)",
    "*read by pathlib": "import pathlib; assert pathlib.Path('SECRET').read_text()",
    "*read by mmap": "import mmap\nwith open('SECRET') as f: assert mmap.mmap(f.fileno(), 0, prot=1)[:]",
    "*read by fileinput": "import fileinput; assert list(fileinput.input(['SECRET']))",
    "*read by linecache": "import linecache; assert linecache.getlines('SECRET')",
    "*read by relative path": "import os; assert open('/'.join(['..'] * 40) + 'SECRET').read()",
    "*read by importing": "import importlib.util as u; s = u.spec_from_file_location('m', 'OUTSIDE/code.py')\n"
    "m = u.module_from_spec(s); s.loader.exec_module(m); assert m.KEY",
    "*read by a dir fd": "import os; d = os.open('OUTSIDE', os.O_RDONLY); assert os.open('code.py', 0, dir_fd=d)",
    "*read by libc": "import ctypes; l = ctypes.CDLL(None); fd = l.open(b'SECRET', 0); assert fd >= 0",
    "*read by a raw call": "import ctypes; assert ctypes.CDLL(None).syscall(257, -100, b'SECRET', 0) >= 0",
    "*read by openat2": "import ctypes; b = ctypes.create_string_buffer(24)\n"
    "assert ctypes.CDLL(None).syscall(437, -100, b'SECRET', b, 24) >= 0",
    "*read by sqlite": "import sqlite3; c = sqlite3.connect('file:OUTSIDE/data.db?mode=ro', uri=True)\n"
    "assert c.execute('select * from t').fetchall()",
    "*read by copying": "import shutil; shutil.copyfile('SECRET', 'copy'); assert open('copy').read()",
    "*read /etc/passwd": "assert open('/etc/passwd').read()",
    "*read /etc/hosts": "assert open('/etc/hosts').read()",
    "*list the root": "import os; assert 'etc' in os.listdir('/')",
    "*list /etc": "import os; assert os.listdir('/etc')",
    "*list a folder outside": "import os; assert os.listdir('OUTSIDE')",
    "*scan a folder outside": "import os; assert list(os.scandir('OUTSIDE'))",
    "*glob the home": "import glob; assert glob.glob('/etc/*')",
    "*read environ of the parent": "import os; assert open(f'/proc/{os.getppid() or 1}/environ', 'rb')",
    "*read environ of the host process": "assert open('/proc/PID/environ', 'rb').read() is not None",
    "*read command lines": "assert open('/proc/PID/cmdline').read()",
    "*read memory maps": "assert open('/proc/self/maps').read()",
    "*read memory of the host": "assert open('/proc/PID/mem', 'rb')",
    "*list processes": "import os; assert [p for p in os.listdir('/proc') if p.isdigit()]",
    "*read the machine": "assert open('/proc/cpuinfo').read()",
    "*read mounts": "assert open('/proc/self/mounts').read()",
    "*read /sys": "import os; assert os.listdir('/sys')",
    "*enter a folder outside and read": "import os; os.chdir('OUTSIDE'); assert open('code.py').read()",
    "see the trainer's variable": "import os; assert 'SANDBOX_TEST_TOKEN' in os.environ",
    "read memory of another process": "import ctypes, struct; b = ctypes.create_string_buffer(8)\n"
    "iov = struct.pack('QQ', ctypes.addressof(b), 8); l = ctypes.CDLL(None)\n"
    "assert l.syscall(310, PID, iov, 1, struct.pack('QQ', 0x400000, 8), 1, 0) > 0",
    "open by handle": "import ctypes; assert ctypes.CDLL(None).syscall(304, -100, b'0' * 64, 0) >= 0",
    "trace the host process": "import ctypes; assert ctypes.CDLL(None).ptrace(16, PID, 0, 0) == 0",
    "take a descriptor of another": "import ctypes; l = ctypes.CDLL(None); p = l.syscall(434, PID, 0)\n"
    "assert p >= 0 and l.syscall(438, p, 0, 0) >= 0",
}

WRITES = {
    "*write outside": "open('OUTSIDE/left', 'w').write('x')",
    "*append to a host file": "open('OUTSIDE/code.py', 'a').write('# x')",
    "*truncate a host file": "import os; os.truncate('OUTSIDE/data.db', 1)",
    "*remove a host file": "import os; os.remove('OUTSIDE/doomed')",
    "*rename a host file": "import os; os.rename('OUTSIDE/doomed2', 'OUTSIDE/left2')",
    "*make a folder outside": "import os; os.mkdir('OUTSIDE/left3')",
    "*make a link outside": "import os; os.symlink('/etc', 'OUTSIDE/left4')",
    "*make a hard link": "import os; os.link('OUTSIDE/code.py', 'OUTSIDE/left5')",
    "*change modes": "import os; os.chmod('OUTSIDE/code.py', 0o777)",
    "*change times": "import os; os.utime('OUTSIDE/code.py', (1, 1))",
    "*make a fifo": "import os; os.mkfifo('OUTSIDE/left6')",
    "*set an attribute": "import os; os.setxattr('OUTSIDE/code.py', 'user.x', b'1')",
    "*write to /tmp by absolute path": "import os\nf = '/var/tmp/MARK'\nopen(f, 'w').write('x')",
    "*write to shared memory": "from multiprocessing import shared_memory as s; m = s.SharedMemory('MARK', True, 9)",
    "*write by libc": "import ctypes; assert ctypes.CDLL(None).open(b'OUTSIDE/left7', 0o101, 0o600) >= 0",
    "write to the interpreter's library": "import os; open(os.__file__, 'a').write('#')",
    "write a module for others": "import os; open(os.path.dirname(os.__file__) + '/MARK.py', 'w').write('')",
    "write to /usr/lib": "open('/usr/lib/MARK', 'w').write('x')",
    "write to /dev": "open('/dev/MARK', 'w').write('x')",
    "write to the root": "open('/MARK', 'w').write('x')",
    "write to kernel settings": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/x')",
    "write an oom score": "open('/proc/PID/oom_score_adj', 'w').write('1000')",
    "make a device": "import os, stat; os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0)); open('disk', 'rb').read(1)",
    "own a host file": "import os; os.chown('OUTSIDE/code.py', 1234, 1234)",
}

NETWORK = {
    "*connect to the host": "import socket; socket.create_connection(('127.0.0.1', PORT), 2)",
    "*connect by asyncio": "import asyncio; asyncio.run(asyncio.wait_for(asyncio.open_connection('127.0.0.1', PORT), 2))",
    "*fetch a page": "import urllib.request as u; u.urlopen('http://127.0.0.1:PORT/', timeout=2)",
    "*listen": "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
    "*send a datagram": "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', PORT))",
    "*open a unix socket": "import socket; socket.socket(socket.AF_UNIX).connect('OUTSIDE/socket')",
    "*open an abstract socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0MARK')",
    "*send from a pair to an abstract name": "import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "a.sendto(b'x', '\\0MARKd')",
    "*open netlink": "import socket; socket.socket(16, 3, 0)",
    "open a raw socket": "import socket; socket.socket(2, 3, 1)",
    "open a packet socket": "import socket; socket.socket(17, 3, 3)",
    "open vsock": "import socket; socket.socket(40, 1)",
    "*open kernel crypto": "import socket; socket.socket(38, 5)",
    "*resolve a name": "import socket; socket.gethostbyname('localhost'); socket.socket()",
    "*socket by a raw call": "import ctypes; assert ctypes.CDLL(None).syscall(41, 2, 1, 0) >= 0",
    "network by io_uring": "import ctypes; b = ctypes.create_string_buffer(256)\n"
    "assert ctypes.CDLL(None).syscall(425, 4, b) >= 0",
}

SIGNALS = {
    "*signal the host process": "import os; os.kill(PID, 0)",
    "kill the host process": "import os, signal; os.kill(PID, signal.SIGTERM)",
    "kill the parent": "import os, signal; os.kill(os.getppid() or 2, signal.SIGKILL)",
    "kill everything": "import os, signal; os.kill(-1, signal.SIGTERM)",
    "kill the group": "import os, signal; os.killpg(0, signal.SIGTERM)",
    "kill the first pids": "import os\nfor p in range(2, 400):\n  try: os.kill(p, 15)\n  except OSError: continue\n  break\n"
    "else: raise OSError",
    "*signal by pidfd": "import os, signal; fd = os.pidfd_open(PID); signal.pidfd_send_signal(fd, 0)",
    "signal by tgkill": "import ctypes; assert ctypes.CDLL(None).syscall(234, PID, PID, 15) == 0",
    "signal by tkill": "import ctypes; assert ctypes.CDLL(None).syscall(200, PID, 15) == 0",
    "signal by queue": "import ctypes; b = ctypes.create_string_buffer(128)\n"
    "assert ctypes.CDLL(None).syscall(129, PID, 0, b) == 0",
    "*aim SIGIO at the host process": "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, PID)",
    "*lower the host's priority": "import os; os.setpriority(os.PRIO_PROCESS, PID, 5)",
    "*pin the host process": "import os; os.sched_setaffinity(PID, os.sched_getaffinity(0))",
    "*limit the host process": "import resource; r = resource.prlimit(PID, 7, resource.prlimit(PID, 7))",
}

PROCESSES = {
    "*fork": "import os\nif os.fork() == 0: os._exit(0)",
    "*vfork by libc": "import ctypes, os\np = ctypes.CDLL(None).syscall(57)\nassert p >= 0\nif p == 0: os._exit(0)",
    "*clone": "import ctypes, os\np = ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0)\nassert p >= 0\nif p == 0: os._exit(0)",
    "clone3": "import ctypes, struct, os\nb = struct.pack('QQQQQQQQ', 0, 0, 0, 0, 17, 0, 0, 0)\n"
    "p = ctypes.CDLL(None).syscall(435, b, 64)\nassert p >= 0\nif p == 0: os._exit(0)",
    "*run a command": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "*run a shell": "import os; assert os.system('true') == 0",
    "*popen": "import os; assert os.popen('echo x').read()",
    "*exec": "import os; os.execv('/bin/echo', ['echo', 'PWNED'])",
    "*exec the interpreter": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(\"PWNED\")'])",
    "*spawn": "import os; assert os.posix_spawn('/bin/true', ['true'], {}) > 0",
    "*multiprocessing": "import multiprocessing as m\np = m.get_context('fork').Process(target=print); p.start(); p.join()\n"
    "assert p.exitcode == 0",
    "*process pool": "from concurrent.futures import ProcessPoolExecutor as P\nimport multiprocessing as m\n"
    "with P(1, m.get_context('fork')) as p: p.submit(int).result(5)",
    "*a daemon that stays": "import os, time\nif os.fork() == 0:\n  os.setsid(); time.sleep(2); os._exit(0)",
    "*exec from scratch": "import os, shutil; shutil.copy('/bin/echo', 'e'); os.chmod('e', 0o755); os.execv('./e', ['e', 'PWNED'])",
    "*new session": "import os\nif os.fork() == 0:\n  os.setsid(); os._exit(0)",
}

CALLS = {
    "mount": "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'.', b'tmpfs', 0, 0) == 0",
    "unmount": "import ctypes; assert ctypes.CDLL(None).umount2(b'/', 2) == 0",
    "new mount api": "import ctypes; assert ctypes.CDLL(None).syscall(430, b'tmpfs', 0) >= 0",
    "chroot": "import os; os.chroot('.')",
    "unshare a user": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "enter a namespace": "import ctypes; l = ctypes.CDLL(None); assert l.setns(l.syscall(434, 1, 0), 0x20000) == 0",
    "become root": "import os; os.setuid(0); os.setgid(0); open('/etc/shadow')",
    "change groups": "import os; os.setgroups([0])",
    "load a program into the kernel": "import ctypes; assert ctypes.CDLL(None).syscall(321, 5, b'0' * 128, 128) >= 0",
    "performance counters": "import ctypes; assert ctypes.CDLL(None).syscall(298, b'0' * 128, 0, -1, -1, 0) >= 0",
    "*userfaultfd or memory files": "import os; os.memfd_create('x')",
    "shared memory segment": "import ctypes; assert ctypes.CDLL(None).shmget(0x4D41524B, 4096, 0o1600) >= 0",
    "message queue": "import ctypes; assert ctypes.CDLL(None).msgget(0x4D41524B, 0o1600) >= 0",
    "semaphores": "import ctypes; assert ctypes.CDLL(None).semget(0x4D41524B, 1, 0o1600) >= 0",
    "*posix queue": "import ctypes; assert ctypes.CDLL(None).syscall(240, b'MARK', 0o102, 0o600, 0) >= 0",
    "keyring": "import ctypes; assert ctypes.CDLL(None).syscall(248, b'user', b'MARK', b'v', 1, -3) >= 0",
    "raise limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "raise the CPU limit": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))",
    "raise priority": "import os; os.nice(-5)",
    "real time": "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))",
    "host name": "import socket; socket.sethostname('MARK')",
    "set the clock": "import time; time.clock_settime(0, 0)",
    "reboot": "import ctypes; assert ctypes.CDLL(None).syscall(169, 0xFEE1DEAD, 672274793, 0, 0) == 0",
    "kernel log": "import ctypes; b = ctypes.create_string_buffer(99); assert ctypes.CDLL(None).klogctl(3, b, 99) >= 0",
    "swap off": "import ctypes; assert ctypes.CDLL(None).swapoff(b'/x') == 0",
    "load a module": "import ctypes; assert ctypes.CDLL(None).syscall(175, b'', 0, b'') == 0",
    "*weaken itself": "import ctypes; assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0",
    "survive the parent": "import ctypes; assert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0",
    "32-bit calls": "import ctypes; assert ctypes.CDLL(None).syscall(0x40000000 + 2, b'/etc/passwd', 0) >= 0",
    "terminal input": "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
    "personality": "import ctypes; assert ctypes.CDLL(None).personality(0x0040000) >= 0",
    "watch files": "import ctypes; l = ctypes.CDLL(None); assert l.inotify_add_watch(l.inotify_init(), b'/', 0xFFF) >= 0",
}

ALL = {
    "reads": READS,
    "writes": WRITES,
    "network": NETWORK,
    "signals": SIGNALS,
    "processes": PROCESSES,
    "calls": CALLS,
}
