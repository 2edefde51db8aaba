"""Sandboxes without namespaces: what is left keeps code to its own files and processes; results say what is missing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import stepbox

# What no cgroup keeps is kept by nothing here, and these tests run where there are none too.
REDUCED = {"isolation_mode": "reduced", "enforce_limits": False}


def _reason():
    """Why this host cannot, or nothing."""
    try:
        with stepbox.Sandbox(**REDUCED) as sandbox:
            sandbox.run(["true"])
    except stepbox.EngineError as error:
        return str(error)
    return None


@pytest.fixture(scope="module", autouse=True)
def _reduced():
    if reason := _reason():
        if os.environ.get("STEPBOX_TEST_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(f"no reduced isolation: {reason}")


@pytest.fixture
def sandbox():
    with stepbox.Sandbox(**REDUCED) as opened:
        yield opened


@pytest.fixture
def outside(tmp_path):
    """A file of the caller's that no code is to touch."""
    path = tmp_path / "outside" / "secret"
    path.parent.mkdir()
    path.write_text("secret")
    path.chmod(0o640)
    before = path.stat()
    yield path
    after = path.stat()
    assert path.read_text() == "secret"
    assert (before.st_mode, before.st_mtime_ns, before.st_uid, before.st_nlink) == (
        after.st_mode,
        after.st_mtime_ns,
        after.st_uid,
        after.st_nlink,
    )
    assert [beside.name for beside in path.parent.iterdir()] == ["secret"]


@pytest.fixture
def victim():
    """A process of the caller's that no code is to touch."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "an-argument"])
    before = os.sched_getaffinity(process.pid), os.getpriority(os.PRIO_PROCESS, process.pid)
    yield process.pid
    assert process.poll() is None
    assert (os.sched_getaffinity(process.pid), os.getpriority(os.PRIO_PROCESS, process.pid)) == before
    process.kill()
    process.wait()


def processes(word):
    """Those of the host that bear a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def gone(word):
    for _ in range(100):
        if not processes(word):
            return True
        time.sleep(0.02)
    return False


def test_a_step_runs_and_its_result_says_what_is_missing(sandbox):
    done = sandbox.run_code("print(1); open('f', 'w').write('x')")
    assert (done.exit_code, done.stdout, done.fault, done.start) == (0, "1\n", None, "cold")
    assert [(change.path, change.change) for change in done.files] == [("f", "created")]
    assert done.isolation[0] == "reduced: no namespaces"
    assert sum(layer.startswith("missing: ") for layer in done.isolation) >= 5
    assert "isolation is reduced" in done.runtime_notes[0]


def test_files_are_written_and_read_by_the_caller_and_kept_between_steps(sandbox):
    sandbox.write_file("in/a.txt", "hello")
    assert sandbox.run_code("print(open('in/a.txt').read()); open('b', 'w').write('2')").stdout == "hello\n"
    assert sandbox.read_text("b") == "2"
    assert sandbox.run_code("print(open('b').read())").stdout == "2\n"


def test_home_and_temporary_files_of_a_step_are_gone_after_it(sandbox):
    write = (
        "import os\n"
        "for place in (os.environ['HOME'], os.environ['TMPDIR']):\n"
        "    open(place + '/left', 'w').write('x'); print(os.listdir(place))\n"
    )
    for _ in range(3):
        assert sandbox.run_code(write).stdout == "['left']\n['left']\n"


def test_a_given_workspace_is_where_it_is_and_its_files_are_the_callers(tmp_path):
    with stepbox.Sandbox(workspace=tmp_path, **REDUCED) as sandbox:
        done = sandbox.run_code("import os; open('f', 'w').write('x'); print(os.getcwd())")
    assert done.stdout == f"{tmp_path}\n"
    assert (tmp_path / "f").stat().st_uid == os.getuid()


def refusable(act):
    return f"try:\n    {act}\n    print('done')\nexcept OSError: print('refused')\n"


FILES = {
    "read": "open(path).read()",
    "write": "open(path, 'a')",
    "truncate": "os.truncate(path, 0)",
    "remove": "os.unlink(path)",
    "move": "os.rename(path, 'stolen')",
    "link": "os.link(path, 'stolen')",
    "replace": "open('mine', 'w').close(); os.rename('mine', path)",
    "make beside": "open(path + '2', 'w')",
    "make a directory beside": "os.mkdir(path + '2')",
    "list beside": "os.listdir(os.path.dirname(path))",
    "execute": "os.posix_spawn(path, [path], {})",
    "change the mode": "os.chmod(path, 0o777)",
    "change the owner": "os.chown(path, os.getuid(), os.getgid())",
    "change the time": "os.utime(path)",
    "set an attribute": "os.setxattr(path, 'user.a', b'x')",
    "read through a link": "os.symlink(path, 'link'); open('link').read()",
    "read by a descriptor of its directory": (
        "fd = os.open(os.path.dirname(path), os.O_PATH); open(os.open(os.path.basename(path), os.O_RDONLY, dir_fd=fd))"
    ),
    "keep its readers out": "import fcntl; fcntl.fcntl(open('own', 'w'), fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    "list the root": "os.listdir('/')",
    "list the directory above": "os.listdir('..')",
    "write beside the workspace": "open('../new', 'w')",
    "change its own file": "open(__file__, 'w')",
    "make a file beside its own": "open(os.path.dirname(__file__) + '/new', 'w')",
    "write to shared memory with a name": "open('/dev/shm/new', 'w')",
    "open a terminal": "os.open('/dev/ptmx', os.O_RDWR)",
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_not_the_codes_cannot_be_reached(sandbox, outside, what):
    code = f"import os\npath = {str(outside)!r}\n{refusable(FILES[what])}"
    assert sandbox.run_code(code).stdout == "refused\n"
    twin = (
        "import os\n"
        "open('own', 'w').write('x'); print(open('own').read())\n"
        "os.mkdir('d'); os.rename('own', 'd/b'); os.link('d/b', 'c'); os.truncate('c', 0)\n"
        "os.unlink('d/b'); os.rmdir('d')\n"
        "os.symlink('c', 'l'); print(open('l').read(), os.listdir('.'))\n"
    )
    assert sandbox.run_code(twin).fault is None


PROCESSES = {
    "ask for": "os.kill(pid, 0)",
    "end": "os.kill(pid, 9)",
    "end its group": "os.killpg(os.getpgid(pid), 9)",
    "end by a descriptor": "signal.pidfd_send_signal(os.pidfd_open(pid), 9)",
    "stop init": "os.kill(os.getppid(), 19)",
    "end init": "os.kill(os.getppid(), 15)",
    "read the arguments": "open(f'/proc/{pid}/cmdline').read()",
    "read the environment": "open(f'/proc/{pid}/environ').read()",
    "open the memory": "open(f'/proc/{pid}/mem', 'rb')",
    "list processes": "os.listdir('/proc')",
    "change limits": "resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))",
    "change processors": "os.sched_setaffinity(pid, {0})",
    "change the priority": "os.setpriority(os.PRIO_PROCESS, pid, 19)",
    "trace": "call(LIBC.ptrace(16, pid, 0, 0))",
    "read memory": "call(LIBC.process_vm_readv(pid, None, 0, None, 0, 0)); raise OSError",
    "reach the network": "socket.socket(socket.AF_INET)",
    "reach the network by version 6": "socket.socket(socket.AF_INET6)",
    "reach services by a socket's name": "socket.socket(socket.AF_UNIX)",
    "reach the kernel's sockets": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "have shared memory": "call(LIBC.shmget(1, 4096, 0o1600))",
    "have a queue": "call(LIBC.msgget(1, 0o1600))",
    "have semaphores": "call(LIBC.semget(1, 1, 0o1600))",
    "watch files": "call(LIBC.inotify_init1(0))",
}
PRELUDE = (
    "import ctypes, os, resource, signal, socket\n"
    "LIBC = ctypes.CDLL(None, use_errno=True)\n"
    "def call(result):\n"
    "    if result < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
)


@pytest.mark.parametrize("what", PROCESSES)
def test_a_process_that_is_not_the_codes_cannot_be_reached(sandbox, victim, what):
    code = f"{PRELUDE}pid = {victim}\n{refusable(PROCESSES[what])}"
    assert sandbox.run_code(code).stdout == "refused\n"


def test_what_the_code_starts_is_its_to_signal_and_to_talk_to(sandbox):
    code = (
        "import os, signal, socket, resource\n"
        "a, b = socket.socketpair()\n"
        "pid = os.fork()\n"
        "if pid == 0: b.send(b'x'); signal.pause()\n"
        "print(a.recv(1)); os.kill(pid, 15); print(os.wait()[1])\n"
        "os.sched_setaffinity(0, os.sched_getaffinity(0)); resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n"
    )
    done = sandbox.run_code(code)
    assert (done.stdout, done.fault) == ("b'x'\n15\n", None), done


def test_a_signal_to_everybody_reaches_the_codes_processes_alone(sandbox, victim):
    code = "import os, signal\nsignal.signal(15, signal.SIG_IGN)\nos.kill(-1, 15)\nprint('alive')"
    assert sandbox.run_code(code).stdout == "alive\n"
    assert sandbox.run_code("print(1)").stdout == "1\n"


DAEMONS = (
    "import os, sys, time\n"
    "for _ in range(5):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        sleep = [sys.executable, '-c', 'import time; time.sleep(600)', WORD]\n"
    "        if os.fork() == 0: os.execv(sys.executable, sleep)\n"
    "        os._exit(0)\n"
    "    os.wait()\n"
    "time.sleep(0.5)\n"
)


def test_what_the_code_leaves_running_ends_with_the_step(sandbox):
    word = f"left-by-{os.getpid()}"
    done = sandbox.run_code(f"WORD = {word!r}\n{DAEMONS}print('through')")
    assert (done.exit_code, done.stdout, done.fault) == (0, "through\n", None)
    assert processes(word) == []


def test_past_its_deadline_everything_ends_whatever_it_ignores(sandbox):
    word = f"stubborn-of-{os.getpid()}"
    code = (
        f"WORD = {word!r}\n{DAEMONS}"
        "import signal\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    done = sandbox.run_code(code, timeout_s=5)
    assert (done.exit_code, done.fault.type, done.stdout) == (137, "timeout", "up\n")
    assert processes(word) == []


def test_a_fork_bomb_is_ended_whole(sandbox):
    if sandbox.limits["pids"].enforced_by == "none":
        # Where nothing keeps it, it is refused by name unless the caller says that it need not bind.
        with pytest.raises(stepbox.SandboxError, match="pids"):
            stepbox.Sandbox(**{**REDUCED, "memory_mb": None, "pids": 50, "enforce_limits": True})
        return
    code = "import os\nprint('go', flush=True)\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with stepbox.Sandbox(**{**REDUCED, "pids": 50}) as small:
        done = small.run_code(code, timeout_s=2)
        assert (done.fault.type, done.stdout) == ("timeout", "go\n")
        assert small.run_code("print(1)").stdout == "1\n"


def test_verdicts_are_those_of_other_sandboxes(sandbox):
    killed = sandbox.run_code("import os; os.kill(os.getpid(), 9)")
    assert (killed.exit_code, killed.fault.type) == (137, "killed")
    assert sandbox.run_code("raise SystemExit(7)").exit_code == 7
    missing = sandbox.run(["/no/such/program"])
    assert (missing.exit_code, missing.fault.type) == (127, "exec_failed")
    escape = sandbox.run_code("import ctypes; ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None)")
    assert (escape.fault.type, escape.fault.syscall) == ("escape_blocked", "mount")
    if sandbox.limits["memory"].enforced_by != "none":
        assert sandbox.run_code("x = bytearray(600 << 20)", memory_mb=64).fault.type == "oom"
    assert sandbox.run_code("print(1)").stdout == "1\n"


def test_the_end_of_the_engine_ends_what_runs():
    word = f"outlives-{os.getpid()}"
    binary = stepbox._discovery.find_binary(os.environ)
    code = (
        f"WORD = {word!r}\n{DAEMONS}print(os.getcwd(), flush=True)\n"
        "import itertools\n"
        "for number in itertools.count(): open(f'f{number % 5000}', 'w').close()\n"
    )
    engine = subprocess.Popen(
        [binary, "run", "--isolation", "reduced", "--no-enforce-limits", "-c", code], stdout=subprocess.PIPE
    )
    place = engine.stdout.readline().decode().strip()
    assert Path(place).is_dir()
    assert processes(word)
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    assert gone(word)
    for _ in range(100):
        if not Path(place).exists():
            break
        time.sleep(0.02)
    assert not Path(place).exists()


def test_a_session_that_is_closed_under_a_step_leaves_nothing():
    word = f"closed-under-{os.getpid()}"
    code = (
        f"WORD = {word!r}\n{DAEMONS}"
        "import itertools\n"
        "print(os.getcwd(), flush=True)\n"
        "for number in itertools.count(): open(f'f{number % 5000}', 'w').close()\n"
    )
    sandbox = stepbox.Sandbox(**REDUCED)
    sandbox.open()
    places = []

    def close(chunk):
        places.append(os.fsdecode(chunk).strip())
        threading.Thread(target=sandbox.close).start()

    with contextlib.suppress(stepbox.StepboxError):
        assert not sandbox.run_code(code, on_stdout=close).success
    assert gone(word)
    sandbox.close()
    assert places
    for _ in range(100):
        if not Path(places[0]).parent.exists():
            break
        time.sleep(0.02)
    assert not Path(places[0]).parent.exists()


def test_the_death_of_init_alone_ends_what_it_started(sandbox):
    word = f"orphan-{os.getpid()}"
    code = f"WORD = {word!r}\n{DAEMONS}print(os.getppid(), flush=True)\ntime.sleep(600)"

    def end_init(chunk):
        os.kill(int(chunk), signal.SIGKILL)

    done = sandbox.run_code(code, on_stdout=end_init)
    assert not done.success
    assert gone(word)
    assert sandbox.run_code("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    "option",
    [
        {"mounts": {"/usr/share": "/data"}},
        {"tmpfs": {"/scratch": "1m"}},
        {"security_profile": "untrusted"},
        {"cap_drop": ()},
        {"user": "7"},
        {"protect": ["x"]},
        {"preload": ["json"]},
    ],
)
def test_what_takes_a_namespace_is_refused_by_name(option):
    with pytest.raises(stepbox.StepboxError, match=r"isolation_mode=.reduced. has no namespace"):
        stepbox.Sandbox(**REDUCED, **option).open()


def test_a_kernel_is_refused_by_name(sandbox):
    with pytest.raises(stepbox.StepboxError, match=r"isolation_mode=.reduced."), sandbox.kernel() as kernel:
        kernel.run_code("1")


def test_it_is_never_chosen_by_itself():
    with stepbox.Sandbox(**REDUCED) as reduced:
        assert "reduced: no namespaces" in reduced.run_code("1").isolation
        full = stepbox.Sandbox(enforce_limits=False)
        try:
            full.open()
            layers = full.run_code("1").isolation
        except stepbox.EngineError as error:
            # What there is instead is told, and not taken.
            layers = ["isolation_mode" in str(error)]
        finally:
            full.close()
        assert layers
        assert "reduced: no namespaces" not in layers
