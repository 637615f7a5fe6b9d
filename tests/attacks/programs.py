"""Programs that try to get out of the sandbox: each is run in it and must not print THROUGH.

A program is formatted with what the machine outside has: {folder} with the file `kept`, sockets listening at {folder}/
socket, at the abstract name {name} and on port {port}, and a process {pid} with a secret in its environment.
"""

HEAD = """
import ctypes, errno, os, signal, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
FOLDER, KEPT, PID = {folder!r}, {folder!r} + "/kept", {pid}
def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def through(): print("THROUGH", flush=True)
"""

# Each of these is an attempt that raises where it is refused; if it does not, it is through.
FILES = {
    "read a file": "open(KEPT).read()",
    "write a file": "open(KEPT, 'w')",
    "append to a file": "open(KEPT, 'a')",
    "truncate a file": "os.truncate(KEPT, 0)",
    "remove a file": "os.remove(KEPT)",
    "rename a file": "os.rename(KEPT, FOLDER + '/other')",
    "hard link to a file": "os.link(KEPT, 'link')",
    "symbolic link to a file": "os.symlink(KEPT, 'link'); open('link').read()",
    "make a file": "open(FOLDER + '/made', 'w')",
    "make a folder": "os.mkdir(FOLDER + '/made')",
    "make a fifo": "os.mkfifo(FOLDER + '/made')",
    "list a folder": "os.listdir(FOLDER)",
    "chmod a file": "os.chmod(KEPT, 0o777)",
    "chmod a folder": "os.chmod(FOLDER, 0o777)",
    "chown a file": "os.chown(KEPT, os.getuid(), os.getgid())",
    "set times of a file": "os.utime(KEPT, (1, 1))",
    "set an attribute of a file": "os.setxattr(KEPT, 'user.a', b'b')",
    "read attributes of a file": "os.listxattr(KEPT)",
    "watch a file": "watch = libc.inotify_init(); assert libc.inotify_add_watch(watch, KEPT.encode(), 0xfff) >= 0",
    "through the root of the first process": "open('/proc/1/root' + KEPT).read()",
    "through the folder of the first process": "os.listdir('/proc/1/cwd/../../../..' + FOLDER)",
    "through many steps up": "open('../' * 40 + KEPT).read()",
    "through the old root": "os.chdir('/'); os.chdir('..'); open('.' + KEPT).read()",
    "by chroot": "os.mkdir('x'); os.chroot('x'); os.chdir('../' * 40); open('.' + KEPT).read()",
    "passwords of the machine": "open('/etc/shadow').read()",
    "users of the machine": "open('/etc/passwd').read()",
    "keys of its user": "os.listdir('/root/.ssh')",
    "homes": "os.listdir('/home')",
    "disks": "os.listdir('/sys/block')",
    "temporary files of others": "assert any(name.startswith('ludus-') for name in os.listdir('/tmp'))",
    "handle of a file": "call(304, os.open('/', 0), b'\\x08\\0\\0\\0\\1\\0\\0\\0\\2\\0\\0\\0\\0\\0\\0\\0', 0)",
    "write to its own script": "open(__file__, 'w')",
    "chmod its own script": "os.chmod(__file__, 0o777)",
    "write to its input": "os.write(os.open('/proc/self/fd/0', os.O_RDWR), b'x')",
    "chmod its input": "os.fchmod(0, 0o777)",
    "set times of its input": "os.utime(0, (1, 1))",
    "write to the interpreter": "open(sys.executable, 'r+b')",
    "chmod the interpreter": "os.chmod(os.path.realpath(sys.executable), 0o777)",
    "write to the library": "open(os.__file__, 'a')",
    "set times of the library": "os.utime(os.__file__, (1, 1))",
    "put a module beside the library": "open(os.path.dirname(os.__file__) + '/sitecustomize.py', 'w')",
    "put a program beside those of the system": "open('/usr/bin/made', 'w')",
    "write to the loader's cache": "open('/etc/ld.so.cache', 'r+b')",
    "chmod a device": "os.chmod('/dev/null', 0o600)",
    "set times of a device": "os.utime('/dev/null', (1, 1))",
    "make a device": "os.mknod('disk', 0o60600, os.makedev(8, 0)); os.open('disk', os.O_RDONLY)",
    "make a file in the root": "open('/made', 'w')",
    "make a file among devices": "open('/dev/made', 'w')",
    "write to the jail": "open('/jail.py', 'w')",
    "inherited descriptors": "assert any(os.path.exists(f'/proc/self/fd/{{n}}') for n in range(4, 100))",
}
MOUNTS = {
    "mount a file system": "assert libc.mount(b'none', b'/sandbox', b'tmpfs', 0, None) == 0",
    "remount with writing": "assert libc.mount(None, b'/usr', None, 32 | 4096, None) == 0",
    "unmount what hides": "assert libc.umount2(b'/sandbox', 2) == 0",
    "mount /proc anew": "assert libc.mount(b'proc', b'/sandbox', b'proc', 0, None) == 0",
    "clear the attribute read-only": "call(442, -100, b'/usr', 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)",
    "copy a mount": "call(428, -100, b'/', 1)",
    "open a file system": "call(430, b'tmpfs', 0)",
    "swap roots": "call(155, b'.', b'.')",
    "a user namespace": "assert libc.unshare(0x10000000) == 0",
    "a mount namespace": "assert libc.unshare(0x00020000) == 0",
    "a child in a user namespace": "child = call(56, 0x10000000 | 17, 0, 0, 0, 0); child or os._exit(0)",
    "a child by clone3": "call(435, (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17), 64) or os._exit(0)",
    "enter the first process's namespace": "assert libc.setns(os.open('/proc/1/ns/mnt', 0), 0) == 0",
    "set the host's name": "socket.sethostname('x')",
}
NETWORK = {
    "port of this machine": "socket.create_connection(('127.0.0.1', {port}), 2)",
    "port of this machine by its address": "socket.create_connection(({address!r}, {port}), 2)",
    "port by IPv6": "socket.create_connection(('::1', {port}), 2)",
    "datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ({address!r}, {port}))",
    "Unix socket by path": "socket.socket(socket.AF_UNIX).connect(FOLDER + '/socket')",
    "Unix socket by name": "socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})",
    "Unix datagram by path": "socket.socket(1, socket.SOCK_DGRAM).sendto(b'x', FOLDER + '/socket')",
    "sockets of the system": "socket.socket(1).connect('/run/dbus/system_bus_socket')",
    "Docker's socket": "socket.socket(1).connect('/var/run/docker.sock')",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "raw IP": "socket.socket(type=socket.SOCK_RAW, proto=1)",
    "the host of a virtual machine": "socket.socket(socket.AF_VSOCK)",
    "routes": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "ciphers of the kernel": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "raise the loopback": "import fcntl; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0x49))",
    "names of hosts": "socket.getaddrinfo('localhost.localdomain.example', 80)",
}
PROCESSES = {
    "signal a process": "os.kill(PID, 0)",
    "signal all processes": "os.kill(-1, 0); assert len([n for n in os.listdir('/proc') if n.isdigit()]) > 2",
    "read another's environment": "open(f'/proc/{{PID}}/environ').read()",
    "see another's command": "open(f'/proc/{{PID}}/cmdline').read()",
    "read the guard's environment": "open('/proc/1/environ').read()",
    "read the guard's memory": "open('/proc/1/mem', 'rb')",
    "open the guard's descriptors": "os.open('/proc/1/fd/1', os.O_WRONLY)",
    "stop the guard": "os.kill(1, signal.SIGSTOP); time.sleep(0.1); assert ' T ' in open('/proc/1/stat').read()",
    "trace the guard": "assert libc.ptrace(16, 1, 0, 0) == 0",
    "trace a child": "child = os.fork(); child or time.sleep(1); assert libc.ptrace(16, child, 0, 0) == 0",
    "memory of the guard": "call(310, 1, (ctypes.c_uint64 * 2)(), 1, (ctypes.c_uint64 * 2)(), 1, 0)",
    "limits of the guard": "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
    "slow the guard down": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "idle scheduling of the guard": "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    "descriptor of the guard": "call(438, os.pidfd_open(1), 0, 0)",
    "keep keys": "call(248, b'user', b'a', b'b', 1, -2)",
    "read keys": "call(250, 0, -3, 0)",
    "shared memory of the machine": "assert libc.shmget(1, 4096, 0o1666) >= 0",
    "type on the terminal": "import fcntl; fcntl.ioctl(1, 0x5412, b'x')",
}
KERNEL = {
    "parameters of the kernel": "open('/proc/sys/kernel/core_pattern', 'w')",
    "parameters of memory": "open('/proc/sys/vm/overcommit_memory', 'w')",
    "magic keys": "open('/proc/sysrq-trigger', 'w')",
    "memory of the kernel": "open('/proc/kcore', 'rb').read(1)",
    "memory of the machine": "open('/dev/mem', 'rb')",
    "messages of the kernel": "assert libc.klogctl(3, ctypes.create_string_buffer(9999), 9999) >= 0",
    "control groups": "open('/sys/fs/cgroup/cgroup.procs', 'w')",
    "programs in the kernel": "call(321, 0, bytes(64), 64)",
    "counters": "call(298, bytes(112), 0, -1, -1, 0)",
    "page faults": "call(323, 0)",
    "rings": "call(425, 1, bytes(120))",
    "modules": "call(175, b'x', 1, b'')",
    "another kernel": "call(246, 0, 0, None, 0)",
    "reboot": "call(169, 0xfee1dead, 672274793, 0, None)",  # no more than: Ctrl-Alt-Del does nothing
    "clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "swap": "call(168, b'/swap')",
    "accounting": "call(163, b'/sandbox/acct')",
    "personality": "call(135, 0x0040000)",
    "become root": "assert os.getuid() != 0; os.setuid(0)",
    "take a capability": "call(126, (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[1 << 21] * 6))",
    "add privileges by a program": "subprocess.run(['su', '-c', 'true'], check=True, stdin=subprocess.DEVNULL)",
    "calls of 32 bits": "call(0x40000000 + 39)",
}

# These are through only if what they take stays unnoticed; each must end before its last line.
TOTALS = {
    "memory of one process": "x = bytearray(2 << 30); through()",
    "memory of five processes": (
        "for _ in range(5):\n    if os.fork() == 0:\n        x = b'x' * (100 << 20); time.sleep(3); os._exit(0)\n"
        "time.sleep(2); through()"
    ),
    "memory of children that left the session": (
        "for _ in range(6):\n    if os.fork() == 0:\n        os.setsid(); x = b'x' * (100 << 20); time.sleep(3)\n"
        "time.sleep(2); through()"
    ),
    "memory that hides what it is": (
        "for _ in range(6):\n    if os.fork() == 0:\n        libc.prctl(4, 0); x = b'x' * (100 << 20); time.sleep(3)\n"
        "time.sleep(2); through()"
    ),
    "memory of processes whose first thread has ended": (
        "import threading\ndef hold(): time.sleep(0.3); x = b'x' * (100 << 20); time.sleep(3)\n"
        "for _ in range(5):\n    if os.fork() == 0:\n"
        "        threading.Thread(target=hold).start(); time.sleep(0.1); libc.syscall(60, 0)\n"
        "time.sleep(2); through()"
    ),
    "shared memory without a name": "f = os.memfd_create('x'); os.ftruncate(f, 1); through()",
    "one large file": "open('x', 'wb').write(b' ' * (40 << 20)); through()",
    "many files": ("for n in range(40): open(f'{{n}}', 'wb').write(b' ' * (1 << 20))\nthrough()"),
    "files that were removed": (
        "held = []\nfor n in range(40):\n    held.append(open('x', 'w+b')); held[-1].write(b' ' * (1 << 20))\n"
        "    held[-1].flush(); os.remove('x')\nthrough()"
    ),
    "files among the shared memory": (
        "for n in range(40): open(f'/dev/shm/{{n}}', 'wb').write(b' ' * (1 << 20))\nthrough()"
    ),
    "files allocated ahead": "os.posix_fallocate(os.open('x', os.O_RDWR | os.O_CREAT), 0, 40 << 20); through()",
    "numbers of files": "for n in range(3000): open(str(n), 'w').close()\ntime.sleep(0.2); through()",
    "open files": "held = [os.dup(1) for _ in range(300)]; through()",
    "processes without end": "while True:\n    os.fork() or time.sleep(9)",
    "threads": (
        "import threading\nfor _ in range(100): threading.Thread(target=time.sleep, args=(2,)).start()\nthrough()"
    ),
    "queues of messages": "call(68, 1, 0o1600); through()",
    "locked memory": "assert libc.mlock(ctypes.create_string_buffer(9999), 9999) == 0; through()",
}
