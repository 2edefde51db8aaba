"""Where no controller can be had, limits bind all the same: by the watchdog, by RLIMIT_NPROC, by affinity."""

from __future__ import annotations

import os
import threading

import pytest

import stepbox

MEMORY = 128
HOLD = "import time\ntime.sleep(1)\nprint('held')"


def kept_by(limits):
    """What keeps those that a cgroup would keep."""
    return {name: limit.enforced_by for name, limit in limits.items() if not name.startswith("workspace")}


def test_a_result_names_what_keeps_each_limit(face):
    with face(cpus=1) as sandbox:
        expected = {"memory": "watchdog", "pids": "rlimit", "cpu": "throttle"}
        assert kept_by(sandbox.limits) == expected
        result = sandbox.py("print(1)")
        assert (result.stdout, kept_by(result.limits)) == ("1\n", expected)


# The process goes on in another thread, which takes so many MiB.
FIRST_THREAD_ENDS = """
import ctypes, os, threading, time

def work():
    time.sleep(0.2)
    kept = [bytearray(4 << 20) for _ in range({} // 4)]
    time.sleep(2)
    print("held", flush=True)
    os._exit(0)

threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""
# A thread no longer shares the descriptors of its process, and writes so many MiB to one of its own.
OWN_DESCRIPTORS = """
import ctypes, os, threading, time

def work():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    f = os.memfd_create("x")
    for _ in range({}): os.write(f, bytes(1 << 20))
    time.sleep(2)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print("held")
"""
# Whoever asks for the shares of the first process waits for a lock. Another takes so many MiB for so many seconds.
SLOW_TO_DIVIDE = """
import ctypes, os, threading, time

child = os.fork()
if child == 0:
    time.sleep(1)
    b = bytearray({} << 20)
    time.sleep({})
    print("held", flush=True)
    os._exit(0)

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def hold():
    size = 16 << 30
    while True:
        start = libc.mmap(None, size, 1, 0x4022, -1, 0)
        # Small pages, that are all the one of zeros, are looked up at once.
        for advice in (15, 22):
            libc.madvise(start, size, advice)
        libc.munmap(start, size)

def queue():
    while True:
        libc.munmap(libc.mmap(None, 4096, 3, 0x22, -1, 0), 4096)

for work in (hold, queue):
    threading.Thread(target=work, daemon=True).start()
os.waitpid(child, 0)
os._exit(0)
"""

EATERS = {
    "main": "b = []\nwhile True: b.append(bytearray(4 << 20))",
    "child": (
        "import os\n"
        "if os.fork() == 0:\n    b = []\n    while True: b.append(bytearray(4 << 20))\n"
        "os.wait()\nprint('after')"
    ),
    "many children": (
        "import os, signal\n"
        "for _ in range(20):\n    if os.fork() == 0:\n        b = bytearray(10 << 20)\n        signal.pause()\n"
        "os.wait()\nprint('after')"
    ),
    "what forks no longer share": (
        "import os, signal\nb = bytearray(70 << 20)\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n        for i in range(0, len(b), 4096): b[i] = 1\n        signal.pause()\n"
        "os.wait()\nprint('after')"
    ),
    "memfd": "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20))",
    "memfd of another process": (
        "import os, signal\nf = os.memfd_create('x')\n"
        "if os.fork() == 0:\n    signal.pause()\nos.close(f)\n"
        "f = os.memfd_create('y')\nwhile True: os.write(f, bytes(1 << 20))"
    ),
    "shared mapping": (
        "import mmap\nm = mmap.mmap(-1, 4 << 30)\nfor i in range(0, len(m), 4096): m[i] = 1\nprint('after')"
    ),
    "segment": (
        "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nl.shmat.restype = ctypes.c_void_p\n"
        "l.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]\n"
        "l.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]\nl.shmdt.argtypes = [ctypes.c_void_p]\n"
        "while True:\n"
        "    i = l.shmget(0, 8 << 20, 0o1600)\n    a = l.shmat(i, None, 0)\n"
        "    ctypes.memset(a, 1, 8 << 20)\n    l.shmdt(a)"
    ),
    "/tmp": "open('/tmp/x', 'wb').write(bytes(30 << 20))\nb = bytearray(110 << 20)\n" + HOLD,
    "/dev/shm": "open('/dev/shm/x', 'wb').write(bytes(30 << 20))\nb = bytearray(110 << 20)\n" + HOLD,
    "after the first thread's end": FIRST_THREAD_ENDS.format(400),
    "memfd of a thread's own": OWN_DESCRIPTORS.format(400),
    "beside a process that is slow to look at": SLOW_TO_DIVIDE.format(400, 6),
    "a file without a name": (
        "import os, tempfile\nf = tempfile.TemporaryFile(dir='/tmp')\nf.write(bytes(30 << 20))\nf.flush()\n"
        "b = bytearray(110 << 20)\n" + HOLD
    ),
}


@pytest.mark.parametrize("eater", EATERS.values(), ids=EATERS)
def test_memory_past_the_limit_is_a_fault_wherever_it_is_and_the_next_call_is_fine(face, eater):
    # Both file systems in memory together get half of it.
    with face(memory_mb=MEMORY, timeout_s=60, tmpfs={"/tmp": "32m"}) as sandbox:
        result = sandbox.py(eater)
        assert (result.fault and result.fault.type, result.exit_code) == ("oom", 137), result
        assert "watchdog" in result.fault.message
        assert f"{MEMORY} MiB" in result.fault.message
        assert ("after" in result.stdout, "held" in result.stdout) == (False, False)
        assert sandbox.py("print('fine')").stdout == "fine\n"


FRUGAL = {
    "forks that share": (
        "import os, time\nb = bytearray(70 << 20)\n"
        "children = []\n"
        "for _ in range(8):\n    pid = os.fork()\n    if pid == 0:\n        time.sleep(1)\n        os._exit(0)\n"
        "    children.append(pid)\n"
        "for pid in children: os.waitpid(pid, 0)\nprint('held')"
    ),
    "a large program that starts others": (
        "import subprocess\nb = bytearray(100 << 20)\n"
        "for _ in range(100): subprocess.run(['true'], check=True)\nprint('held')"
    ),
    "shared memory with a name": (
        "import os, mmap, time\n"
        "with open('/dev/shm/x', 'w+b') as f:\n    f.truncate(25 << 20)\n    m = mmap.mmap(f.fileno(), 25 << 20)\n"
        "m[:] = bytes(25 << 20)\nb = bytearray(60 << 20)\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n        sum(m[::4096])\n        time.sleep(1)\n        os._exit(0)\n"
        "for _ in range(4): os.wait()\nprint('held')"
    ),
    "a memfd that is mapped": (
        "import os, mmap, time\nf = os.memfd_create('x')\nos.ftruncate(f, 70 << 20)\nm = mmap.mmap(f, 70 << 20)\n"
        "m[:] = bytes(70 << 20)\n" + HOLD
    ),
    "a mapped file": (
        "import mmap, time\n"
        "with open('big', 'w+b') as f:\n    f.truncate(300 << 20)\n"
        "    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "print(sum(m[::4096]))\n" + HOLD
    ),
    "reserved addresses": "import mmap\nm = mmap.mmap(-1, 8 << 30)\nm[0] = 1\n" + HOLD,
    "a first thread that ends": FIRST_THREAD_ENDS.format(60),
    "a thread's own descriptors": OWN_DESCRIPTORS.format(60),
    "little beside a process that is slow to look at": SLOW_TO_DIVIDE.format(40, 2),
    "memory that is given back": ("for _ in range(40): b = bytearray(60 << 20); del b\n" + HOLD),
}


@pytest.mark.parametrize("code", FRUGAL.values(), ids=FRUGAL)
def test_what_is_held_once_is_counted_once_and_what_is_not_held_is_not(face, code):
    with face(memory_mb=MEMORY, timeout_s=60, tmpfs={"/tmp": "32m"}) as sandbox:
        result = sandbox.py(code)
        assert (result.fault, result.exit_code, result.code_stderr) == (None, 0, "")
        assert result.stdout.endswith("held\n")


def test_a_calls_own_memory_limit_binds(face):
    with face(memory_mb=None) as sandbox:
        eater = EATERS["main"]
        assert sandbox.py(eater, memory_mb=64).fault.type == "oom"
        result = sandbox.py("b = bytearray(200 << 20); print(1)")
        assert (result.stdout, kept_by(result.limits)["memory"]) == ("1\n", "none")


def test_the_most_memory_in_use_is_told(face):
    with face() as sandbox:
        usage = sandbox.py("b = bytearray(100 << 20)").usage
        assert 100 << 20 < usage.peak_memory_bytes < 160 << 20
        assert sandbox.py("1").usage.peak_memory_bytes < 60 << 20


FORKS = """
import os, signal, sys
made = []
try:
    while len(made) < 100:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        made.append(pid)
except BlockingIOError:
    print(len(made), flush=True)
"""
END = "for pid in made: os.kill(pid, 9)"


def test_tasks_are_held_to_their_limit(face):
    with face(pids=16) as sandbox:
        result = sandbox.py(FORKS + END)
        assert (result.stdout, result.fault) == ("15\n", None)
        threads = (
            "import threading, time\nn = 0\n"
            "try:\n    for _ in range(100):\n"
            "        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n        n += 1\n"
            "except RuntimeError: pass\n"
            "print(n, flush=True)\nimport os\nos._exit(0)"
        )
        assert sandbox.py(threads).stdout == "15\n"


def test_the_limit_of_tasks_cannot_be_lifted(sandbox):
    code = (
        "import resource as r\n"
        "soft, hard = r.getrlimit(r.RLIMIT_NPROC)\n"
        "r.setrlimit(r.RLIMIT_NPROC, (2, hard))\n"
        "try: r.setrlimit(r.RLIMIT_NPROC, (hard + 1, hard + 1))\nexcept ValueError: print('refused', soft == hard)"
    )
    assert sandbox.py(code).stdout == "refused True\n"


def test_a_fork_bomb_meets_its_limit_and_the_session_goes_on(face, marker):
    with face(pids=32, timeout_s=3) as sandbox:
        result = sandbox.py(
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", args=[marker.number]
        )
        assert marker.running() == []
        assert result.fault.type == "timeout"
        assert sandbox.py("print(1)", timeout_s=30).stdout == "1\n"


def test_two_sandboxes_at_once_have_each_its_own_tasks():
    told = []
    both = threading.Barrier(2)

    def fork_all(sandbox):
        def chunk(_text):
            both.wait(60)

        told.append(sandbox.run_code(FORKS + "sys.stdin.read()\n" + END, on_stdout=chunk).stdout)

    with stepbox.Sandbox(pids=40, timeout_s=60) as one, stepbox.Sandbox(pids=40, timeout_s=60) as other:
        threads = [threading.Thread(target=fork_all, args=(sandbox,)) for sandbox in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told == ["39\n", "39\n"]


WIDEN = (
    "import os\nprint(len(os.sched_getaffinity(0)))\n"
    "try: os.sched_setaffinity(0, os.sched_getaffinity(0)); print('allowed')\n"
    "except PermissionError: print('refused')"
)


def test_a_whole_processor_is_a_limit_that_code_cannot_widen(face):
    with face(cpus=1) as sandbox:
        assert sandbox.py(WIDEN).stdout == "1\nrefused\n"
    with face() as sandbox:
        assert sandbox.py(WIDEN).stdout.endswith("allowed\n")


def test_sandboxes_are_spread_over_the_processors(face):
    with face(cpus=1) as sandbox:
        code = "import os; print(os.sched_getaffinity(0), len(os.sched_getaffinity(0)))"
        seen = {sandbox.py(code).stdout for _ in range(8)}
        allowed = len(os.sched_getaffinity(0))
        assert len(seen) == min(8, allowed)


def test_the_numbers_are_the_caps_and_no_cgroup_is_seen(face):
    look = (
        "import glob, os\n"
        "print(os.cpu_count(), open('/proc/cpuinfo').read().count('processor\\t'), os.sysconf('SC_NPROCESSORS_CONF'))\n"
        "print(open('/proc/meminfo').readline().split()[1], glob.glob('/sys/fs/cgroup/*'))\n"
    )
    with face(cpus=1, memory_mb=MEMORY) as sandbox:
        assert sandbox.py(look).stdout == f"1 1 1\n{MEMORY << 10} []\n"
    with face(memory_mb=None) as sandbox:
        allowed = len(os.sched_getaffinity(0))
        assert sandbox.py(look).stdout.startswith(f"{allowed} ")


def test_a_part_of_a_processor_is_refused_with_the_way_out():
    with pytest.raises(stepbox.SandboxError) as raised:
        stepbox.Sandbox(cpus=0.5)
    for words in ("cpus cannot be enforced", "whole processors", "cpus=1", "enforce_limits=False"):
        assert words in str(raised.value)


def test_a_part_of_a_processor_that_need_not_bind_runs_and_says_none(face):
    with face(cpus=0.5, enforce_limits=False) as sandbox:
        result = sandbox.py("print(1)")
        assert (result.stdout, kept_by(result.limits)) == (
            "1\n",
            {"memory": "watchdog", "pids": "rlimit", "cpu": "none"},
        )


def test_code_has_no_capability_and_can_make_no_user_namespace(sandbox):
    code = (
        "import os\n"
        "words = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print([words[f'Cap{name}'].strip('\\t\\n0') for name in ('Inh', 'Prm', 'Eff', 'Bnd', 'Amb')], "
        "words['NoNewPrivs'].strip())\n"
        "print(os.getuid(), os.stat('/workspace').st_uid)\n"
        "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\n"
        "print(l.unshare(0x10000000), ctypes.get_errno())"
    )
    assert sandbox.py(code).stdout == "['', '', '', '', ''] 1\n1000 1000\n-1 1\n"


def test_what_a_step_needs_is_there(face):
    with face(files={"a.txt": "1"}, tmpfs={"/tmp": "8m", "/scratch": "8m"}) as sandbox:
        result = sandbox.sh(
            "cat a.txt; echo x > /tmp/t; echo y > /scratch/t; echo z > /dev/shm/t;"
            " hostname; ls -ld /usr | cut -d' ' -f1; echo done > out.txt;"
            " git init -q repo 2>&1; python3 -c 'import pty; pty.openpty()'"
        )
        assert (result.stdout, result.code_stderr) == ("1stepbox\ndrwxr-xr-x\n", "")
        assert "out.txt" in {item.path for item in result.files}
