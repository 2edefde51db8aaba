"""Attacks by the code of a step, from every place that code can be in.

Each is refused beside a twin that is allowed, and what it was after is as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import pty
import secrets
import select
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from attacks import PLACES, attacker
from evidence import children

import stepbox

X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
def code(place):
    with attacker(place) as found:
        yield found


# ---- files ----

# Where code may write, as the documents say. Whatever else can be written to is a mistake.
WRITABLE = ["/dev/shm", "/home/user", "/tmp", "/var/cache/user", "/var/tmp", "/workspace"]

# Tries to make a file in every directory that a mount begins at, and in all that lie less than three below the root.
EVERY_DIRECTORY = """
places = {line.split()[4] for line in open('/proc/self/mountinfo')}
for top, names, _ in os.walk('/'):
    places.add(top)
    if top.count('/') > 2 or top.startswith(('/proc', '/workspace')): names.clear()
written = []
for place in places:
    name = place + '/planted-{token}'
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        written.append(place)
        os.unlink(name)
    except OSError: pass
print(len(places) > 50)
print(*sorted(place for place in written if not any(place.startswith(own + '/') for own in {own})))
"""


def test_what_can_be_written_to_is_what_the_documents_say(code):
    token = secrets.token_hex(8)
    lines = code.lines(EVERY_DIRECTORY.replace("{token}", token).replace("{own}", repr(WRITABLE)))
    assert lines == ["True", " ".join(WRITABLE)]


def test_what_a_caller_gives_can_be_written_to_and_nothing_else(place, tmp_path):
    for name in ("given", "shown", "workspace/.git/hooks", "workspace/inner", "inner", "data"):
        (tmp_path / name).mkdir(parents=True)
    mounts = {
        str(tmp_path / "given"): "/srv/given",
        str(tmp_path / "shown"): ("/srv/shown", "ro"),
        str(tmp_path / "inner"): "/workspace/inner",
        str(tmp_path / "data"): "/data",
    }
    tmpfs = {"/tmp": "8m", "/scratch": "8m"}
    with attacker(place, workspace=str(tmp_path / "workspace"), mounts=mounts, tmpfs=tmpfs) as code:
        token = secrets.token_hex(8)
        given = sorted([*WRITABLE, "/srv/given", "/scratch"])
        lines = code.lines(EVERY_DIRECTORY.replace("{token}", token).replace("{own}", repr(WRITABLE)))
        assert lines == ["True", " ".join(sorted([*given, "/data"]))]
        for name, path in (("inner", "/workspace/inner/file"), ("data", "/data/file"), ("given", "/srv/given/file")):
            assert code.lines(f"print(open({path!r}, 'w').write('x'))") == ["1"]
            assert (tmp_path / name / "file").read_text() == "x"
        refused = code.lines("attempt('hook', lambda: open('/workspace/.git/hooks/file', 'w'))")
        assert refused == ["hook EROFS"]
    assert [path.name for path in tmp_path.rglob("planted-*")] == []


PLANT = """
for line in open('/proc/self/mountinfo'):
    place = line.split()[4]
    if os.path.isdir(place):
        with contextlib.suppress(OSError): open(place + '/planted', 'x').close()
"""
FIND = """
for line in open('/proc/self/mountinfo'):
    place = line.split()[4]
    if os.path.exists(place + '/planted'): print(place)
print(sorted(os.listdir('/var/empty') + os.listdir('/proc/driver') + os.listdir('/proc/fs')))
"""


def test_nothing_that_code_leaves_is_there_for_another_session(place):
    # Both have the same root, which is made once.
    with attacker(place) as first, attacker(place) as second:
        first.lines("import contextlib" + PLANT)
        assert second.lines(FIND) == ["[]"]
        # The cache is the session's own and stays.
        assert set(first.lines(FIND)) >= {"/var/cache/user", "[]"}


NAMES = """
import itertools
roots = ['', '/proc/1/root', '/proc/self/root', '/proc/thread-self/root', f'/proc/{os.getppid()}/root', '/proc/1/cwd']
roots += ['/proc/self/cwd/../../..', '/dev/fd/../../..', '/workspace/../../..', '/proc/self/fd/0/..']
roots += ['/proc/1/task/1/root']
roots += [f'/proc/self/fd/{number}{up}' for number in range(64) for up in ('', '/..', '/../../..')]
print(*(root for root in roots if os.path.exists(root + '{canary}')))
print(os.path.exists('/proc/self/root/workspace'), os.path.exists('/workspace/../../../workspace'))
"""


def test_a_file_of_the_host_is_reached_by_no_name(code, tmp_path):
    canary = tmp_path / secrets.token_hex(8)
    canary.write_text("host")
    assert code.lines(NAMES.replace("{canary}", str(canary))) == ["", "True True"]


DESCRIPTORS = """
import stat
kinds = set()
for pid in (p for p in os.listdir('/proc') if p.isdigit()):
    try: numbers = os.listdir(f'/proc/{pid}/fd')
    except PermissionError:
        kinds.add('shut')
        continue
    for number in numbers:
        with contextlib.suppress(FileNotFoundError): kinds.add(os.readlink(f'/proc/{pid}/fd/{number}').split(':')[0])
own = f'/proc/{os.getpid()}/fd'
print(sorted(kinds - {own}))
for number in range(3, 4096):
    with contextlib.suppress(OSError): print('open', number, os.stat('.', dir_fd=number))
directory = os.open('/workspace', os.O_DIRECTORY)
os.stat('.', dir_fd=directory)
print(directory)
"""


def test_no_descriptor_leads_out(code):
    kinds, twin = code.lines("import contextlib" + DESCRIPTORS)
    # Pid 1 is shut, and of the code's own there are the three streams.
    assert kinds in ("['pipe', 'shut']", "['/dev/null', 'pipe', 'shut']"), kinds
    assert twin == "3"


def test_what_a_client_has_open_is_in_no_sandbox(place):
    script = textwrap.dedent(
        f"""
        import os, sys
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}
        from attacks import attacker
        for _ in range(200): os.set_inheritable(os.open('/', os.O_RDONLY), True)
        with attacker({place!r}) as code: print(code.lines({"import contextlib" + DESCRIPTORS!r}))
        """
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120, check=True)
    kinds, twin = eval(process.stdout)
    assert set(eval(kinds)) <= {"/dev/null", "pipe", "shut"}
    assert twin == "3"


@pytest.mark.parametrize("number", [3, 4, 5, 7, 8, 9])
def test_a_working_directory_by_a_descriptor_leads_nowhere(number):
    # A runtime that holds a directory of the host while it enters this one is left through it.
    with stepbox.Sandbox() as sandbox:
        result = sandbox.run(["pwd", "-P"], cwd=f"/proc/self/fd/{number}")
        assert (result.fault and result.fault.type) == "startup_failed", result
        twin = sandbox.run(["pwd", "-P"], cwd="/proc/self/root/workspace")
        assert twin.stdout == "/workspace\n"


EXECUTABLES = """
opened = []
for pid in (p for p in os.listdir('/proc') if p.isdigit()):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_PATH):
        with contextlib.suppress(OSError):
            number = os.open(f'/proc/{pid}/exe', flags)
            if not flags & os.O_PATH: opened.append(pid)
            # What was opened by name only is opened anew.
            os.close(os.open(f'/proc/self/fd/{number}', os.O_WRONLY))
            opened.append(pid)
print(opened)
shutil.copy('/usr/bin/true', '/workspace/own')
os.close(os.open('/workspace/own', os.O_WRONLY))
open('/workspace/script', 'w').write('#!/proc/self/exe\\n')
os.chmod('/workspace/script', 0o755)
# Whoever executes it is this interpreter, for which the line is a comment.
print(os.spawnv(os.P_WAIT, '/workspace/script', ['script']))
"""


def test_no_program_can_be_written_to_through_proc(code):
    engine = code.sandbox._lease.session.engine.process.pid
    [launcher] = children(engine)
    programs = [f"/proc/{engine}/exe", f"/proc/{launcher}/exe", sys.executable, "/bin/sh"]
    before = [hashlib.sha256(Path(program).read_bytes()).digest() for program in programs]
    assert code.lines("import contextlib, shutil" + EXECUTABLES) == ["[]", "0"]
    assert [hashlib.sha256(Path(program).read_bytes()).digest() for program in programs] == before


READ_ONLY = """
inside = '/read-only/file'
attempt('link', os.link, inside, '/workspace/link')
attempt('rename', os.rename, inside, '/workspace/file')
attempt('write', lambda: open(inside, 'w'))
attempt('unlink', os.unlink, inside)
attempt('chmod', os.chmod, inside, 0o777)
attempt('times', os.utime, inside)
attempt('attribute', os.setxattr, inside, 'user.a', b'a')
reading = os.open(inside, os.O_RDONLY)
attempt('again', os.open, f'/proc/self/fd/{reading}', os.O_RDWR)
attempt('link by number', lambda: os.link(f'/proc/self/fd/{reading}', '/workspace/link', follow_symlinks=True))
named = os.open(inside, os.O_PATH)
attempt('by name only', os.open, f'/proc/self/fd/{named}', os.O_WRONLY)
attempt('truncate', os.truncate, f'/proc/self/fd/{reading}', 0)
attempt('hook', lambda: open('/workspace/.git/hooks/post-commit', 'w'))
attempt('hooks', os.rename, '/workspace/.git/hooks', '/workspace/hooks')
attempt('git', os.rename, '/workspace/.git', '/workspace/other')
attempt('link of a hook', os.link, '/workspace/.git/hooks/pre-push', '/workspace/link')
open('/workspace/own', 'w').write('own')
attempt('twin', os.link, '/workspace/own', '/workspace/link')
attempt('twin again', os.open, f"/proc/self/fd/{os.open('/workspace/own', os.O_RDONLY)}", os.O_RDWR)
"""


def test_what_is_read_only_is_so_by_every_way(place, tmp_path):
    source, workspace = tmp_path / "source", tmp_path / "workspace"
    source.mkdir()
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git" / "hooks" / "pre-push").write_text("caller's")
    canary = source / "file"
    canary.write_text("host")
    before = canary.stat()
    with attacker(place, workspace=str(workspace), mounts={str(source): ("/read-only", "ro")}) as code:
        lines = code.lines(READ_ONLY)
    assert lines[-2:] == ["twin done", "twin again done"]
    refused = dict(line.rsplit(" ", 1) for line in lines[:-2])
    assert set(refused.values()) <= {"EROFS", "EXDEV", "EBUSY"}, refused
    after = canary.stat()
    assert (canary.read_text(), after.st_nlink, after.st_mode, after.st_mtime_ns) == (
        "host",
        1,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert (workspace / ".git" / "hooks" / "pre-push").read_text() == "caller's"


SET_ID = """
def of_mode(call, *arguments): return attempt(f'{call.__name__} {arguments[-1]:o}', call, *arguments)
mounts = [line.split() for line in open('/proc/self/mountinfo')]
print('not nosuid', *(m[4] for m in mounts if 'nosuid' not in m[5].split(',')))
print('devices', *(m[4] for m in mounts if 'nodev' not in m[5].split(',') and not m[4].startswith(('/dev', '/proc/'))))
print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'CapEff', 'CapBnd'))))
shutil.copy('/bin/sh', 'sh')
for mode in (0o4755, 0o2755, 0o6777): of_mode(os.chmod, 'sh', mode)
of_mode(os.open, 'new', os.O_CREAT | os.O_WRONLY, 0o4755)
of_mode(os.mkdir, 'directory', 0o2755)
capable = bytes.fromhex('0100000200200000000000000000000000000000')
attempt('capabilities', os.setxattr, 'sh', 'security.capability', capable)
attempt('device', os.mknod, 'device', 0o20666, os.makedev(1, 1))
attempt('disk', os.mknod, 'disk', 0o60666, os.makedev(254, 0))
for path in ('/usr/bin/su', '/usr/bin/passwd', '/usr/bin/mount', '/bin/sh'):
    if os.path.exists(path): print(os.stat(path).st_mode & 0o6000 and 'set-id' or 'plain')
print(os.getresuid(), os.popen('/usr/bin/id -u').read().strip())
attempt('uid', os.setuid, 0)
attempt('groups', os.setgroups, [0])
of_mode(os.chmod, 'sh', 0o755)
attempt('pipe', os.mkfifo, 'pipe')
"""


def test_no_file_gives_or_keeps_a_right(place, tmp_path):
    with attacker(place, workspace=str(tmp_path)) as code:
        lines = code.lines("import shutil" + SET_ID)
    assert lines[:2] == ["not nosuid", "devices"]
    assert lines[2].split() == ["0000000000000000", "0000000000000000", "1"]
    told = [line.split() for line in lines[3:]]
    refused = [words for words in told if words[-1].startswith("E")]
    assert {words[-1] for words in refused} <= {"EPERM", "EINVAL"}, refused
    assert len(refused) == 10, lines
    assert "(1000, 1000, 1000) 1000" in lines
    assert lines[-2:] == ["chmod 755 done", "pipe done"]
    assert not [path for path in tmp_path.rglob("*") if path.lstat().st_mode & 0o6000]
    assert {path.lstat().st_uid for path in tmp_path.iterdir()} == {os.getuid()}


# A mount point in a workspace may have become a link since the caller made it.
@pytest.mark.parametrize("target", ["/proc/sys", "/dev/null", "/var/empty", "/proc", "/usr/bin", "/", "/dev"])
def test_a_mount_that_is_led_astray_uncovers_nothing(tmp_path, target):
    workspace, source = tmp_path / "workspace", tmp_path / "source"
    workspace.mkdir()
    (workspace / "point").symlink_to(target)
    if target == "/dev/null":
        source.write_text("host")
    else:
        source.mkdir()
    try:
        with stepbox.Sandbox(workspace=str(workspace), mounts={str(source): "/workspace/point"}, prewarm=0) as sandbox:
            result = sandbox.run_code(SWITCHES)
            if result.fault is None and result.exit_code == 0:
                assert result.stdout.splitlines()[0] == "", result.stdout
            else:
                assert "WRITABLE" not in result.stdout
    except stepbox.StepboxError:
        pass
    assert not [path for path in tmp_path.rglob("*") if path.name == "planted"]


# ---- switches of the kernel ----

# Opens and writes nothing. What can be opened is the null device, or belongs to a process.
SWITCHES = """
import os
found, opened = [], 0
roots = ['/proc', '/sys', '/proc/self/root/proc/sys', '/proc/thread-self/root/proc/sys', '/proc/1/root/proc/sys']
for root in roots:
    for top, directories, files in os.walk(root):
        directories[:] = [d for d in directories if not (top == '/proc' and (d.isdigit() or d.endswith('self')))]
        for name in files:
            path = os.path.join(top, name)
            try: number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError: continue
            opened += 1
            if os.fstat(number).st_rdev != os.makedev(1, 3): found.append('WRITABLE ' + path)
            os.close(number)
print(*found)
"""
SHOWN = """
for name in ('kcore', 'keys', 'key-users', 'kallsyms', 'timer_list', 'modules', 'config.gz', 'interrupts', 'cmdline',
             'sched_debug', 'latency_stats', 'softirqs', 'diskstats', 'partitions', 'kmsg'):
    try: print(name, len(open('/proc/' + name, 'rb').read(1))) if open('/proc/' + name, 'rb').read(1) else None
    except OSError: pass
for name in ('bus', 'fs', 'irq', 'pressure', 'acpi', 'driver', 'tty', 'scsi', 'asound'):
    try: print(name, *os.listdir('/proc/' + name)) if os.listdir('/proc/' + name) else None
    except FileNotFoundError: pass
for path in ('/dev/mem', '/dev/kmsg', '/dev/kvm', '/dev/fuse', '/dev/net/tun', '/sys/firmware', '/sys/kernel'):
    if os.path.exists(path): print(path)
print(sorted(os.listdir('/dev')))
print(open('/proc/self/comm', 'w').write('hello'), open('/proc/self/comm').read().strip())
print(len(open('/proc/sys/kernel/pid_max').read()) > 1, len(open('/proc/swaps').readlines()) < 2)
"""
GLOBAL = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "vm/overcommit_memory", "kernel/sysrq"]
DEVICES = ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]


def test_no_switch_of_the_kernel_can_be_opened_for_writing(code):
    def state():
        return [path.read_text() for path in (Path("/proc/sys", name) for name in GLOBAL) if path.exists()]

    before = state()
    assert code.lines(SWITCHES)[0] == ""
    assert code.lines(SHOWN) == [str(DEVICES), "5 hello", "True True"]
    assert state() == before


# ---- other processes, and the host's names ----

HOST_PATHS = """
for line in open('/proc/self/mountinfo'): print('mount', line.split()[3], line.split()[4])
for name in ('maps', 'mounts', 'cgroup', 'cmdline', 'environ', 'mountstats'):
    print(name, *open('/proc/self/' + name).read().replace(chr(0), ' ').split())
"""


def test_of_the_hosts_paths_only_those_are_told_that_the_caller_mounted(place, tmp_path, monkeypatch):
    secret = secrets.token_hex(8)
    monkeypatch.setenv("A_SECRET_OF_THE_CALLER", secret)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with attacker(place, mounts={str(mounted): ("/mounted", "ro")}) as code:
        lines = code.lines(HOST_PATHS)
    prefixes = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    # What a private directory is called says whose it is to nobody.
    ours = f"/stepbox-{os.getuid()}/data-"
    known = ("/usr", "/lib", "/bin", "/sbin", "/var/empty", "/run/stepbox", "/null", "/sys", *prefixes)
    for line in lines:
        kind, *words = line.split(" ")
        assert secret not in line
        if kind == "mount":
            root, target = words
            is_ours = ours in root and target in WRITABLE
            is_bytecode = "/stepbox/bytecode/" in root and target.startswith("/opt/stepbox/bytecode")
            # Numbers of our own, in a file system that has nothing else.
            is_numbers = target == "/sys/devices" or "/.proc/" in root
            # A workspace's own file system.
            is_volume = root.startswith(("/slots/", "/workspace", "/cache"))
            is_named = root == target or root in target or root.startswith(known) or root.endswith(str(mounted))
            device = target.startswith("/dev/") and root == f"/{target.removeprefix('/dev/')}"
            assert root == "/" or is_ours or is_bytecode or is_numbers or is_volume or is_named or device, line
        if kind == "cgroup":
            assert {word.rpartition(":")[2] for word in words if word} == {"/"}, line
        if kind in ("maps", "mounts", "environ", "cmdline"):
            assert ours not in line, line
            assert str(tmp_path) not in line, line


PROCESSES = """
own = {1, os.getpid(), os.getppid()}
print(*(pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if pid not in own))
def reached():
    for pid in range(1, 70_000):
        if pid not in own and libc.kill(pid, 0) == 0: yield pid
print(*reached())
for name in ('mem environ maps fd root cwd exe fdinfo auxv stack syscall pagemap map_files ns/mnt io'.split()):
    path = '/proc/1/' + name
    try: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1)
    except OSError: continue
    print('READ', path)
for name in 'mem clear_refs oom_score_adj comm coredump_filter timerslack_ns uid_map setgroups attr/current'.split():
    try:
        number = os.open('/proc/1/' + name, os.O_WRONLY)
        # Some look at who it is only when something is written.
        if name in ('timerslack_ns', 'attr/current'): os.write(number, b'50000')
    except OSError: continue
    print('WRITABLE', name)
attempt('signal to pid 1', os.kill, 1, 0)
attempt('signal to all', os.killpg, 1, 0)
attempt('descriptor of pid 1', raw, 434, 1, 0)
child = os.fork()
if child == 0: os._exit(os.kill(os.getppid(), 0) or 0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), open('/proc/self/mem', 'rb') is not None)
"""


@X86_64
def test_no_other_process_is_seen_or_touched(code):
    *found, last = code.lines(PROCESSES)
    scoped = any("signals" in layer for layer in code.sandbox.isolation)
    assert found[:2] == ["", ""]
    assert [line for line in found[2:] if line.startswith(("READ", "WRITABLE"))] == []
    assert ("signal to pid 1 EPERM" in found) == scoped, found
    assert last == "0 True"


# ---- sockets ----

SOCKETS = """
for name in {names!r}:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as one:
            try: one.connect(name); print('CONNECTED', name)
            except OSError: pass
print(open('/proc/net/unix').read().count('@'))
families = []
for family in range(64):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try: socket.socket(family, kind).close()
        except OSError: continue
        families.append((family, int(kind)))
print(families)
with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as one:
    listening.bind('\\0own'); listening.listen()
    one.connect('\\0own')
    print('own', open('/proc/net/unix').read().count('@own'))
parent, child = socket.socketpair()
socket.send_fds(parent, [b'x'], [os.open('/workspace', os.O_PATH)])
print(len(socket.recv_fds(child, 1, 1)[1]))
"""


def test_of_the_hosts_sockets_none_is_reached(code, tmp_path):
    abstract = "\0" + secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        names = [
            abstract,
            str(tmp_path / "socket"),
            "/run/docker.sock",
            "/var/run/docker.sock",
            "/run/dbus/system_bus_socket",
        ]
        names.append(code.sandbox._lease.session.engine.address.target.removeprefix("unix:"))
        for name in names[:2]:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(name)
            listening.listen()
        count, families, own, passed = code.lines(SOCKETS.replace("{names!r}", repr(names)))
    stream, datagram, raw_kind, packet = 1, 2, 3, 5
    assert (count, own, passed) == ("0", "own 2", "1")
    found = {tuple(pair) for pair in eval(families)}
    # A raw socket of the local family is a datagram's. Routing is asked about, never told.
    local = {(1, stream), (1, datagram), (1, raw_kind), (1, packet)}
    internet = {(family, kind) for family in (2, 10) for kind in (stream, datagram)}
    assert local | internet <= found
    assert found - local - internet <= {(16, datagram), (16, raw_kind)}, found


NETLINK = """
import struct
def request(kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as one:
        one.settimeout(2)
        one.send(struct.pack('=IHHII', 16 + len(body), kind, flags, 1, 0) + body)
        answer = one.recv(65536)
        kind = struct.unpack('=H', answer[4:6])[0]
        if kind == 2:
            number = -struct.unpack('=i', answer[16:20])[0]
            if number: raise OSError(number, 'refused')
for protocol in range(1, 32):
    with contextlib.suppress(OSError): print('OPEN', socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol))
NEW_LINK, SET_LINK, NEW_ADDRESS, NEW_ROUTE, GET_LINK, ACK, DUMP = 16, 19, 20, 24, 18, 5, 0x301
attempt('new link', request, NEW_LINK, ACK | 0x600, struct.pack('=BxHiII', 0, 0, 0, 0, 0))
attempt('link down', request, SET_LINK, ACK, struct.pack('=BxHiII', 0, 0, 1, 0, 1))
attempt('address', request, NEW_ADDRESS, ACK | 0x600, struct.pack('=BBBBI', 2, 24, 0, 0, 1))
attempt('route', request, NEW_ROUTE, ACK | 0x600, struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 254, 3, 0, 1, 0))
attempt('links', request, GET_LINK, DUMP, struct.pack('=Bxxx', 0))
"""


def test_routing_is_asked_about_and_never_changed(code):
    lines = code.lines("import contextlib" + NETLINK)
    assert lines[-1] == "links done"
    assert set(lines[:-1]) == {"new link EPERM", "link down EPERM", "address EPERM", "route EPERM"}


# ---- system calls ----

CALLS = """
one, two = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
for name, number, *arguments in {calls!r}: attempt(name, raw, number, *arguments)
attempt('twin of io_uring', __import__('select').epoll)
attempt('twin of keys', os.urandom, 8)
attempt('twin of clocks', __import__('time').clock_gettime, 0)
print(os.uname().nodename)
"""
REFUSED = {
    "ENOSYS": [
        ("io_uring_setup", 425, 8, 0),
        ("io_uring_enter", 426, 0, 0, 0, 0, 0),
        ("io_uring_register", 427, 0, 0, 0, 0),
        ("add_key", 248, 0, 0, 0, 0, -3),
        ("request_key", 249, 0, 0, 0, 0),
        ("keyctl", 250, 1, 0),
        ("userfaultfd", 323, 0),
        ("perf_event_open", 298, 0, 0, -1, -1, 0),
        ("clone3", 435, 0, 0),
        ("pidfd_getfd", 438, 0, 0, 0),
        ("kcmp", 312, 0, 0, 0, 0, 0),
    ],
    "EPERM": [
        ("ptrace", 101, 0, 0, 0, 0),
        ("process_vm_readv", 310, 1, 0, 0, 0, 0, 0),
        ("process_vm_writev", 311, 1, 0, 0, 0, 0, 0),
        ("unshare of users", 272, 0x10000000),
        ("clone of users", 56, 0x10000011, 0, 0, 0, 0),
        ("settimeofday", 164, 0, 0),
        ("clock_settime", 227, 0, 0),
        ("adjtimex", 159, 0),
        ("sethostname", 170, 0, 0),
        ("setdomainname", 171, 0, 0),
    ],
}


@X86_64
def test_calls_that_lead_to_the_kernels_depths_are_refused(code):
    calls = [call for group in REFUSED.values() for call in group]
    before = (socket.gethostname(), Path("/proc/sys/kernel/domainname").read_text())
    lines = code.lines(CALLS.replace("{calls!r}", repr(calls)))
    told = dict(line.rsplit(" ", 1) for line in lines[:-1])
    for errno, group in REFUSED.items():
        assert {name: told[name] for name, *_ in group} == {name: errno for name, *_ in group}
    assert [told[name] for name in told if name.startswith("twin")] == ["done"] * 3
    assert lines[-1] == "stepbox"
    assert (socket.gethostname(), Path("/proc/sys/kernel/domainname").read_text()) == before


# No pointer that a kernel would take.
FATAL = {
    "mount": "raw(165, 0, 0, 0, 0, 0)",
    "umount2": "raw(166, 0, 0)",
    "move_mount": "raw(429, -1, 0, -1, 0, 0)",
    "open_tree": "raw(428, -1, 0, 0)",
    "fsopen": "raw(430, 0, 0)",
    "mount_setattr": "raw(442, -1, 0, 0, 0, 0)",
    "pivot_root": "raw(155, 0, 0)",
    "setns": "raw(308, -1, 0)",
    "bpf": "raw(321, -1, 0, 0)",
    "init_module": "raw(175, 0, 0, 0)",
    "finit_module": "raw(313, -1, 0, 0)",
    "kexec_load": "raw(246, 0, 0, 0, 0)",
    "reboot": "raw(169, 0, 0, 0, 0)",
    "swapon": "raw(167, 0, 0)",
    "open_by_handle_at": "raw(304, -1, 0, 0)",
    "x32 syscall 39": "raw(0x40000000 | 39)",
    # mov eax, 20 (getpid of i386); int 0x80; ret
    "i386 syscall 20": (
        "m = __import__('mmap').mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3'));"
        " ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    ),
}


@X86_64
@pytest.mark.parametrize("where", ["cold", "forked", "kernel"])
@pytest.mark.parametrize("call", sorted(FATAL))
def test_a_call_out_of_the_sandbox_ends_it_whoever_in_it_makes_it(where, call):
    # Made by a child, which has no part in how the code itself ends.
    child = f"print('on', flush=True)\nif os.fork() == 0:\n    try: {FATAL[call]}\n    finally: os._exit(0)\n"
    with attacker(where) as code:
        result = code.py(child + "import time; time.sleep(20)")
        assert (result.fault and result.fault.type, result.exit_code, result.stdout) == ("escape_blocked", 159, "on\n")
        assert result.fault.syscall == call
        assert code.sandbox.run(["true"]).success


TERMINALS = """
import fcntl, termios
leader, own = os.openpty()
numbers = [0, 1, 2, own, leader]
attempt('terminal', lambda: numbers.append(os.open('/dev/tty', os.O_RDWR)))
for request in (0x5412, 0x5412 | 1 << 32, 0x541C, 0x541C | 1 << 32):
    found = {libc.syscall(ctypes.c_long(16), ctypes.c_long(number), ctypes.c_ulong(request), bytes([char]))
             for number in numbers for char in b'#id\\n'}
    print(hex(request), found)
print(len(fcntl.ioctl(own, termios.TIOCGWINSZ, bytes(8))), os.isatty(own))
"""


@X86_64
def test_nothing_is_typed_into_a_terminal(place):
    # The client has a terminal of its own, with somebody at it.
    script = textwrap.dedent(
        f"""
        import sys
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}
        from attacks import attacker
        with attacker({place!r}) as code: print(code.lines({TERMINALS!r}))
        """
    )
    leader, follower = pty.openpty()
    try:
        process = subprocess.run(
            [sys.executable, "-c", script],
            stdin=follower,
            capture_output=True,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0),
            timeout=120,
            check=False,
        )
        lines = eval(process.stdout) if process.returncode == 0 else pytest.fail(process.stderr.decode())
        assert lines[0] == "terminal ENXIO"
        assert lines[1:5] == [f"{request:#x} {{-1}}" for request in (0x5412, 0x100005412, 0x541C, 0x10000541C)]
        assert lines[5] == "8 True"
        assert select.select([leader, follower], [], [], 0)[0] == []
    finally:
        os.close(leader)
        os.close(follower)


# ---- the fence ----


def test_the_fence_is_told_and_stands_wherever_code_is(code):
    [told] = [layer for layer in code.sandbox.isolation if layer.startswith("landlock")]
    if told.startswith("landlock: none"):
        pytest.skip("this kernel has no Landlock to use")
    # Of the first layers none refuses a mount namespace's own file to its owner: only a fence has signals in it.
    if "signals" in told:
        assert code.lines("attempt('init', os.kill, 1, 0)\nattempt('own', os.kill, os.getpid(), 0)") == [
            "init EPERM",
            "own done",
        ]


EVERYDAY = """
import multiprocessing, subprocess, tempfile, threading
for top in ('/workspace', '/tmp', '/dev/shm', os.path.expanduser('~'), '/var/tmp', os.environ['XDG_CACHE_HOME']):
    place = tempfile.mkdtemp(dir=top)
    os.mkdir(place + '/a'); os.mkdir(place + '/b')
    open(place + '/a/file', 'w').write('one')
    os.rename(place + '/a/file', place + '/b/file'); os.link(place + '/b/file', place + '/a/again')
    os.symlink('file', place + '/b/link'); os.mkfifo(place + '/b/pipe')
    os.truncate(place + '/b/link', 1); os.replace(place + '/a', place + '/c')
    with socket.socket(socket.AF_UNIX) as one: one.bind(place + '/b/socket')
    with tempfile.TemporaryFile(dir=place) as file: file.write(b'x')
    __import__('shutil').rmtree(place)
for device in ('null', 'zero', 'full', 'tty', 'stdout'):
    attempt(device, lambda: os.close(os.open('/dev/' + device, os.O_WRONLY)))
for name in ('comm', 'oom_score_adj', 'coredump_filter', 'clear_refs', 'timerslack_ns', 'mem'):
    attempt(name, lambda: os.close(os.open('/proc/self/' + name, os.O_RDWR if name == 'comm' else os.O_WRONLY)))
threading.Thread(target=lambda: open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('own')).start()
leader, own = os.openpty(); print(os.isatty(own), os.ttyname(own)[:9])
number = os.memfd_create('x'); open(f'/proc/self/fd/{number}', 'w').write('x')
queue = libc.mq_open(b'/queue', os.O_CREAT | os.O_RDWR, 0o600, None); print(queue > 0)
child = subprocess.Popen(['sleep', '60']); child.terminate(); print(child.wait())
with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))
print(subprocess.run(['sh', '-c', 'echo out >/dev/stderr; kill -0 $PPID && cat </dev/null >/dev/stdout']).returncode)
"""


def test_the_fence_hinders_no_ordinary_program(code):
    lines = code.lines(EVERYDAY)
    assert lines[:5] == ["null done", "zero done", "full done", "tty ENXIO", "stdout done"]
    assert [line for line in lines[5:11] if not line.endswith("done")] == []
    assert lines[11:] == ["True /dev/pts/", "True", "-15", "[1, 2]", "0"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_link_to_a_directory_of_the_host_brings_nothing_in(tmp_path):
    # What one session leaves in a workspace is what the next one finds there.
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("host")
    workspace = tmp_path / "workspace"
    with stepbox.Sandbox(workspace=str(workspace)) as first:
        first.run(["ln", "-s", str(outside), "link"])
        first.run(["ln", "-s", "../outside/secret", "near"])
    with stepbox.Sandbox(workspace=str(workspace)) as second:
        assert second.run(["cat", "link/secret", "near"]).exit_code == 1
        for path in ("link/secret", "near"):
            with pytest.raises((stepbox.StepboxError, OSError)):
                second.read_file(path)
        with pytest.raises((stepbox.StepboxError, OSError)):
            second.write_file("link/planted", "x")
    assert [path.name for path in outside.iterdir()] == ["secret"]


SWAP = """
import time
os.mkdir('point-0')
for number, target in enumerate({targets!r}, 1): os.symlink(target, f'point-{number}')
print('begun', flush=True)
until, number = time.monotonic() + {seconds}, 0
while time.monotonic() < until and not os.path.exists('stop'):
    number = (number + 1) % {count}
    # The name is there at any time, and is now this and now that.
    if libc.syscall(ctypes.c_long(316), -100, b'point', -100, b'point-%d' % number, 2) < 0:
        os.rename(f'point-{number}', 'point')
"""


@X86_64
def test_a_mount_point_that_changes_while_it_is_mounted_on_uncovers_nothing(tmp_path):
    # One session swaps what the next ones mount on, as fast as it can.
    targets = ["/proc/sys", "/proc", "/dev", "/var/empty", "/", "/run/stepbox", "/proc/self/fd", str(tmp_path)]
    workspace, source = tmp_path / "workspace", tmp_path / "source"
    workspace.mkdir()
    source.mkdir()
    canary = tmp_path / "canary"
    canary.write_text("host")
    swap = (
        SWAP.replace("{targets!r}", repr(targets)).replace("{count}", str(len(targets) + 1)).replace("{seconds}", "60")
    )
    begun = threading.Event()
    with attacker("cold", workspace=str(workspace)) as swapping:
        thread = threading.Thread(target=lambda: swapping.py(swap, on_stdout=lambda _: begun.set(), timeout_s=90))
        thread.start()
        assert begun.wait(60)
        opened = 0
        for _ in range(12):
            options = {"workspace": str(workspace), "mounts": {str(source): "/workspace/point"}, "prewarm": 0}
            with contextlib.suppress(stepbox.StepboxError), stepbox.Sandbox(**options) as sandbox:
                result = sandbox.run_code(SWITCHES + f"print(os.path.exists({str(canary)!r}))")
                if result.success:
                    opened += 1
                    assert result.stdout.splitlines() == ["", "False"], result.stdout
        (workspace / "stop").touch()
        thread.join()
    assert opened > 0
    assert list(source.iterdir()) == []
    assert canary.read_text() == "host"
