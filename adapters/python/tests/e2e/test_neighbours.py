"""An attacker and its victim, two sessions at once: one does all that a process can do, the other ends as if alone."""

from __future__ import annotations

import os
import secrets
import threading

import pytest
from attacks import PLACES, attacker

# All that processes can meet by: names and keys that both know.
OBJECTS = """
import hashlib, mmap, secrets, tempfile, time
KEY, NAME = {key}, {name!r}
CREATE = 0o1000
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
def meet(create):
    found = []
    calls = ('segment', libc.shmget, 4096), ('semaphores', libc.semget, 4), ('messages', libc.msgget)
    for kind, call, *arguments in calls:
        if call(KEY, *arguments, 0o666 | (CREATE if create else 0)) >= 0: found.append(kind)
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    if libc.mq_open(b'/' + NAME.encode(), flags, 0o666, None) >= 0: found.append('queue')
    for top in ('/dev/shm', '/tmp', '/var/tmp', os.path.expanduser('~'), '/var/cache/user', '/workspace'):
        path = f'{top}/{NAME}'
        if create:
            open(path, 'w').write('mine')
        if os.path.exists(path): found.append(top)
    one = socket.socket(socket.AF_UNIX)
    try:
        one.bind('\\0' + NAME) if create else one.connect('\\0' + NAME)
        if create: one.listen()
        found.append('abstract socket')
    except OSError: pass
    other = socket.socket()
    try:
        other.bind(('127.0.0.1', 4567)) if create else other.connect(('127.0.0.1', 4567))
        if create: other.listen()
        found.append('port')
    except OSError: pass
    libc.semctl.argtypes = [ctypes.c_int] * 4
    return found, one, other
"""
VICTIM = """
secret = os.environ['SECRET']
found, *held = meet(True)
print(found, flush=True)
memory = bytearray(secrets.token_bytes(1 << 20)) * 16
files = {f'file-{n}': secrets.token_bytes(1 << 14) for n in range(50)}
for name, data in files.items(): open('/workspace/' + name, 'wb').write(data)
before = hashlib.sha256(memory).digest()
print('begun', flush=True)
rounds = 0
until = time.monotonic() + 3
while time.monotonic() < until:
    rounds += 1
    assert hashlib.sha256(memory).digest() == before
    assert all(open('/workspace/' + name, 'rb').read() == data for name, data in files.items())
    with tempfile.TemporaryFile() as file: file.write(memory[:4096])
    os.close(os.memfd_create('x')); [os.close(one) for one in os.pipe()]
    child = os.fork()
    if child == 0: os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert os.environ['SECRET'] == secret and os.getcwd() == '/workspace' and os.uname().nodename == 'stepbox'
found, *again = meet(False)
print(found, rounds > 0, sorted(os.listdir('/workspace'))[0], time.strftime('%Z'), os.umask(0o22))
"""
# Nothing here reaches out of a broken sandbox with more than a look.
VANDAL = """
import contextlib, resource, subprocess, threading
found, *held = meet(False)
print(*found)
reached = [pid for pid in range(2, 70_000) if libc.kill(pid, 0) == 0]
print(len(reached) < 5)
print(*(number for number in range(0, 4096) if libc.shmctl(number, 2, ctypes.create_string_buffer(256)) >= 0))
environments = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    with contextlib.suppress(OSError): environments.append(open(f'/proc/{pid}/environ').read())
print(any('SECRET' in text for text in environments), flush=True)
until = time.monotonic() + 4
def quietly(call, *arguments):
    with contextlib.suppress(Exception): return call(*arguments)
def apart(call):
    # In a process of its own, which keeps what it has taken.
    if os.fork() == 0:
        quietly(call)
        while time.monotonic() < until: time.sleep(0.1)
        os._exit(0)
@apart
def watches(): kept = [libc.inotify_init() for _ in range(4000)]
@apart
def queues(): kept = [libc.mq_open(b'/other%d' % number, os.O_CREAT | os.O_RDWR, 0o600, None) for number in range(500)]
@apart
def segments():
    for number in range(1, 4000):
        libc.shmget(number, 1 << 20, 0o1666), libc.semget(number, 100, 0o1666), libc.msgget(number, 0o1666)
kept = []
@apart
def pipes():
    for _ in range(500):
        kept.append(os.pipe2(os.O_NONBLOCK))
        os.write(kept[-1][1], bytes(1 << 16))
@apart
def ports():
    for port in range(1024, 60_000):
        one = socket.socket(); kept.append(one)
        one.bind(('127.0.0.1', port))
@apart
def locks():
    for number in range(3000): kept.append(os.memfd_create('x')); os.lockf(kept[-1], os.F_LOCK, 0)
@apart
def timers():
    for _ in range(100_000): libc.timer_create(1, None, ctypes.create_string_buffer(8))
@apart
def threads():
    for _ in range(100): threading.Thread(target=time.sleep, args=(4,), daemon=True).start()
for name in ('a', 'b'):
    @apart
    def fill():
        for top in ('/tmp', '/dev/shm'):
            with contextlib.suppress(OSError), open(f'{top}/{name}', 'wb') as file:
                for _ in range(30): file.write(b'x' * (1 << 20))
        while time.monotonic() < until:
            if os.fork() == 0: os._exit(0)
            os.wait()
number = 0
while time.monotonic() < until:
    number += 1
    with open(f'/workspace/flood-{number % 500}', 'wb') as file: file.write(b'x' * 65536); os.fsync(file.fileno())
    quietly(os.mkdir, f'/var/tmp/{number}')
    quietly(os.setpriority, os.PRIO_USER, 0, -20); quietly(os.nice, -20)
    quietly(lambda: open('/proc/self/oom_score_adj', 'w').write('-1000'))
print('done')
"""
MET = [
    "segment",
    "semaphores",
    "messages",
    "queue",
    "/dev/shm",
    "/tmp",
    "/var/tmp",
    "/home/user",
    "/var/cache/user",
    "/workspace",
    "abstract socket",
    "port",
]


def objects():
    return OBJECTS.replace("{key}", str(secrets.randbelow(1 << 30) + (1 << 29))).replace(
        "{name!r}", repr(f"name-{secrets.token_hex(8)}")
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_victim_ends_as_if_it_were_alone(place, tmp_path):
    secret = secrets.token_hex(16)
    shared = objects()
    begun = threading.Event()
    seen = []

    def hear(chunk):
        seen.append(chunk)
        if b"begun" in b"".join(seen):
            begun.set()

    results = {}
    workspace = tmp_path / "victim"
    with (
        attacker(place, env={"SECRET": secret}, workspace=str(workspace)) as victim,
        attacker(place, memory_mb=768) as vandal,
    ):

        def suffer():
            results["victim"] = victim.py(shared + VICTIM, on_stdout=hear, timeout_s=120)

        thread = threading.Thread(target=suffer)
        thread.start()
        assert begun.wait(60), seen
        attack = vandal.py(shared + VANDAL, timeout_s=120)
        thread.join()
        result = results["victim"]
        assert (result.exit_code, result.fault) == (0, None), (result.stdout, result.code_stderr, result.fault)
        first, second, last = result.stdout.splitlines()
        # The bytes of message queues are counted for each id of the host, and rootless there is one for all sessions.
        met = MET if os.getuid() == 0 or "queue" in first else [name for name in MET if name != "queue"]
        assert (first, second) == (str(met), "begun")
        assert last == f"{met} True file-0 UTC 18"
        found, alone, segments, told = attack.stdout.splitlines()[:4]
        assert (found, alone, segments, told) == ("", "True", "", "False"), attack
        # It came to its end, or to the limit of its memory.
        assert attack.stdout.endswith("done\n") or (attack.fault and attack.fault.type == "oom"), attack
        assert {change.path for change in result.files} == {path.name for path in workspace.iterdir()}
        assert len(list(workspace.iterdir())) == 51
        # Both go on.
        if attack.fault is None or place != "kernel":
            assert vandal.py("print('on')").stdout == "on\n"
        assert victim.py("print('on')").stdout == "on\n"


@pytest.mark.parametrize("place", PLACES)
def test_no_two_draw_the_same(place):
    draw = (
        "import random, tempfile, uuid\n"
        "print(random.random(), uuid.uuid4(), tempfile.mktemp(), os.urandom(8).hex(), id(object()) % 4096, sep='|')"
    )
    rows = []
    for _ in range(3):
        with attacker(place) as code:
            rows.append(code.py(draw).stdout.split("|")[:4])
    for column in zip(*rows, strict=True):
        assert len(set(column)) == len(column)


SEND = """
with socket.socket(socket.AF_UNIX) as one:
    one.bind('/shared/socket'); os.chmod('/shared/socket', 0o777); one.listen()
    print('begun', flush=True)
    peer, _ = one.accept()
    with peer:
        rights = [os.open(path, os.O_RDONLY) for path in ('/', '/proc', '/workspace', '/proc/self/ns/mnt')]
        socket.send_fds(peer, [b'x'], rights)
        peer.recv(1)
"""
TAKE = """
with socket.socket(socket.AF_UNIX) as one:
    one.connect('/shared/socket')
    rights = socket.recv_fds(one, 1, 8)[1]
    root, proc, workspace, namespace = rights
    print(os.path.exists('/workspace/of-the-other'), os.stat('of-the-other', dir_fd=workspace).st_size)
    for number in rights[:3]:
        for up in ('../' * depth for depth in range(12)):
            for name in {names!r}:
                try: os.stat(up + name, dir_fd=number, follow_symlinks=False); print('FOUND', up + name)
                except OSError: pass
    attempt('chroot', lambda: os.chroot(f'/proc/self/fd/{root}'))
    attempt('memory', lambda: os.open('1/mem', os.O_RDONLY, dir_fd=proc))
    attempt('switch', lambda: os.open('sys/kernel/core_pattern', os.O_WRONLY, dir_fd=proc))
    one.send(b'x')
"""


def test_a_directory_that_one_sandbox_hands_to_another_leads_to_neithers_host(tmp_path):
    # Two that share a mount may hand each other what they have, and have no more after it.
    shared, canary = tmp_path / "shared", tmp_path / secrets.token_hex(8)
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    canary.write_text("host")
    begun = threading.Event()
    mounts = {str(shared): "/shared"}
    with attacker("cold", mounts=mounts) as giver, attacker("cold", mounts=mounts) as taker:
        giver.sandbox.write_file("of-the-other", "x" * 5)
        thread = threading.Thread(target=lambda: giver.py(SEND, on_stdout=lambda _: begun.set(), timeout_s=60))
        thread.start()
        assert begun.wait(60)
        names = [str(canary).lstrip("/"), canary.name, "root/.ssh", "etc/shadow", "boot"]
        lines = taker.lines(TAKE.replace("{names!r}", repr(names)), timeout_s=60)
        thread.join()
    assert lines[0] == "False 5"
    assert lines[1] == "chroot EPERM"
    assert lines[2] in ("memory EACCES", "memory ENOENT")
    assert lines[3:] in (["switch EACCES"], ["switch EROFS"])
