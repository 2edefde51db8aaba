"""What is forked from a template is alone: nothing of it reaches the template, a sibling or a later step, nor back."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import textwrap
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from evidence import Traces, descendants, eventually, is_alive
from starts import FORKS, STARTS, started, warm
from test_forked_steps import TABLE

import stepbox

# How many forks must differ in what they draw.
DRAWS = int(os.environ.get("STEPBOX_TEST_DRAWS", "200"))


def engine_of(sandbox):
    return sandbox._lease.session.engine.process.pid


def interpreters(sandbox):
    """The numbers of the host of templates, and of what was forked from them and waits."""
    found = []
    for pid in descendants(engine_of(sandbox)):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[1:2] == [b"/run/stepbox/main.py"] and is_alive(pid):
            found.append(pid)
    return found


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def templates(sandbox):
    """Those that no other of them was forked from, and whose parent is no init of a sandbox."""
    found = interpreters(sandbox)
    return [
        pid
        for pid in found
        if parent(pid) not in found and any(parent(other) == pid for other in found if other != pid)
    ]


@pytest.fixture(params=FORKS)
def forked(request):
    with started(request.param) as found:
        yield found


# All that a program can learn of the place that it is in.
PLACE = [
    "modules",
    "modules that are packages",
    "paths",
    "flags",
    "attributes of sys",
    "switches",
    "streams",
    "locale",
    "builtins",
    "the environment",
    "limits",
    "who it is",
    "what the kernel says of it",
    "its program",
    "its descriptors",
    "processes",
    "threads",
    "mounts",
    "files that it has",
    "namespaces",
    "keys",
    "signals as they are at the start",
    "time zone",
    "warnings",
]
MORE = """
import hashlib, os, re, sys
maps = [line.split(None, 5) for line in open('/proc/self/maps')]
print(sorted({(m[1], m[5].strip()) for m in maps if m[5:] and m[5].startswith('/') and 'memfd' not in m[5]}))
for name, module in sorted(sys.modules.items()):
    if name != '__main__':
        print(name, [(n, type(v).__name__) for n, v in sorted(vars(module).items()) if n != '__warningregistry__'])
    file = getattr(module, '__file__', None)
    if file: print(file, hashlib.sha256(open(file, 'rb').read()).hexdigest())
for top in ('/tmp', '/var/tmp', os.path.expanduser('~')): print(os.listxattr(top))
print(open('/proc/sysvipc/shm').read(), open('/proc/sysvipc/sem').read(), open('/proc/sysvipc/msg').read())
print(open('/proc/net/unix').read().count(chr(10)), os.statvfs('/tmp').f_ffree, os.statvfs('/tmp').f_bfree)
print(os.statvfs('/dev/shm').f_bfree, os.sysconf('SC_NPROCESSORS_ONLN'), os.uname().nodename)
"""


def place():
    # Each in a scope of its own.
    parts = [f"exec({TABLE[name][0]!r}, {{'__name__': '__main__'}})" for name in PLACE]
    return "\n".join([*parts, textwrap.dedent(MORE)])


# Spoils all that it can reach.
VANDAL = r"""
import builtins, ctypes, gc, os, resource, signal, socket, sys, tempfile, threading, time, json, re, random

def attempt(call, *arguments):
    try: return call(*arguments)
    except BaseException: pass

libc = ctypes.CDLL(None, use_errno=True)
# Its own memory, in a child that this ends.
if os.fork() == 0:
    places = [line.split()[:2] for line in open('/proc/self/maps')]
    with open('/proc/self/mem', 'r+b', buffering=0) as memory:
        for span, rights in places:
            start, end = (int(half, 16) for half in span.split('-'))
            if 'w' in rights or 'x' in rights:
                try:
                    memory.seek(start); memory.write(b'\xcc' * min(end - start, 1 << 20))
                except (OSError, ValueError, OverflowError): pass
    os._exit(1)
attempt(os.wait)
# Segments, semaphores, queues, keys, names.
for kind in range(1, 20):
    libc.shmget(kind, 4096, 0o1777)
    libc.semget(kind, 4, 0o1777)
    libc.msgget(kind, 0o1777)
    libc.syscall(248, b'user', b'name%d' % kind, b'value', 5, -3)
write, kill = os.write, libc.kill
kept = [socket.socket(socket.AF_UNIX) for _ in range(5)]
for index, one in enumerate(kept): attempt(one.bind, '\0name%d' % index)
attempt(socket.sethostname, 'vandal')
# Files.
own = ['/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~')]
for top in (*own, '/run', '/run/stepbox', '/dev', '/proc/sys', '/usr', '/etc'):
    attempt(os.rmdir, top)
    for name in attempt(os.listdir, top) or ():
        attempt(os.unlink, f'{top}/{name}')
        attempt(os.rename, f'{top}/{name}', f'{top}/moved')
    for name in ('sitecustomize.py', 'usercustomize.py', 'json.py', 'main.py', '.pythonrc', 'x.pth'):
        attempt(lambda: open(f'{top}/{name}', 'w').write('raise SystemExit(77)'))
    attempt(os.symlink, '/etc/passwd', f'{top}/link')
    attempt(os.setxattr, top, 'user.kept', b'x' * 1000)
attempt(lambda: [open(f'/tmp/{n}', 'w') .close() for n in range(100_000)])
attempt(lambda: [open('/dev/shm/full', 'ab').write(b'x' * (1 << 20)) for _ in range(1024)])
for top in own: attempt(os.chmod, top, 0)
# Descriptors, threads, limits, dispositions.
held = []
attempt(lambda: [held.append(os.open('/dev/null', 0)) for _ in range(100_000)])
attempt(lambda: [threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(10_000)])
for number in range(1, 65): attempt(signal.signal, number, signal.SIG_IGN)
attempt(signal.pthread_sigmask, signal.SIG_BLOCK, range(1, 65))
for name in ('NOFILE', 'NPROC', 'FSIZE', 'CORE', 'MEMLOCK', 'SIGPENDING', 'MSGQUEUE', 'NICE', 'RTPRIO'):
    attempt(resource.setrlimit, getattr(resource, f'RLIMIT_{name}'), (1, 1))
os.umask(0o777); attempt(os.nice, 19); attempt(os.sched_setaffinity, 0, {0})
attempt(os.sched_setscheduler, 0, os.SCHED_IDLE, os.sched_param(0))
attempt(lambda: open('/proc/self/oom_score_adj', 'w').write('0'))
attempt(lambda: open('/proc/1/oom_score_adj', 'w').write('-1000'))
attempt(os.chdir, '/proc')
# The environment, and the interpreter.
os.environ.clear(); os.environ.update({'PYTHONPATH': '/evil', 'HOME': '/evil', 'LD_PRELOAD': '/evil.so'})
sys.path[:] = ['/evil']; sys.argv[:] = []; sys.meta_path.clear(); sys.path_hooks.clear()
def nothing(*arguments, **named): pass
for function in [f for f in gc.get_objects() if type(f).__name__ == 'function' and f is not attempt]:
    attempt(setattr, function, '__code__', nothing.__code__)
def spoil(scopes=[vars(module) for name, module in sys.modules.items() if name != '__main__']):
    for scope in scopes:
        for attribute in [*scope]: scope[attribute] = None
for _ in range(20):
    if attempt(os.fork) == 0:
        os.setsid()
        for pid in list(range(1, 5000)) + [-1]:
            for number in (9, 19, 15):
                if pid != os.getpid(): libc.kill(pid, number)
        while True: pass
write(1, b'spoilt\n')
SPOIL
"""


@pytest.mark.parametrize(
    "end", ["spoil()", "kill(-1, 9)", "ctypes.string_at(0)", "while True: held.append(bytearray(10 << 20))"]
)
def test_a_step_that_spoils_all_it_can_reach_changes_nothing_for_the_next(forked, end):
    before = forked.py(place())
    assert before.exit_code == 0, before.code_stderr
    spoilt = forked.py(VANDAL.replace("SPOIL", end), timeout_s=5)
    assert spoilt.stdout == "spoilt\n", (spoilt.code_stderr, spoilt.fault)
    after = forked.py(place())
    assert comparable(after) == comparable(before)


def comparable(result):
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", result.stdout)
    return text.splitlines(), result.code_stderr, result.exit_code


def test_the_place_of_a_forked_step_is_that_of_a_cold_one(forked):
    with started("cold") as cold:
        assert comparable(forked.py(place())) == comparable(cold.py(place()))


ALONE = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
me = os.getpid()
reached = [pid for pid in range(1, 70_000) if pid not in (1, me) and libc.kill(pid, 0) == 0]
print('reached', reached, sorted(int(p) for p in os.listdir('/proc') if p.isdigit()) == [1, me])
def attempt(name, call):
    try: call(); print(name, 'done')
    except OSError as error: print(name, error.strerror)
attempt('memory', lambda: open('/proc/1/mem', 'rb'))
attempt('environment', lambda: open('/proc/1/environ', 'rb').read())
attempt('descriptors', lambda: os.listdir('/proc/1/fd'))
attempt('root', lambda: os.listdir('/proc/1/root'))
attempt('maps', lambda: open('/proc/1/maps').read())
attempt('signal', lambda: os.kill(os.getppid(), 0))
for name in ('ptrace', 'process_vm_readv'):
    print(name, libc[name](16 if name == 'ptrace' else 1, 1, 0, 0, 0, 0))
print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))
print(os.path.exists('/proc/2') and me != 2, open('/proc/self/cgroup').read().count('stepbox'))
"""


def test_a_fork_reaches_no_other_process_as_a_cold_step_does_not(forked):
    with started("cold") as cold:
        expected = cold.py(ALONE)
    result = forked.py(ALONE)
    assert result.stdout == expected.stdout
    assert "reached [] True" in result.stdout


SCAN = """
import os
wanted = bytes.fromhex({wanted!r})
own = bytes.fromhex({own!r})
found = set()
with open('/proc/self/mem', 'rb', buffering=0) as memory:
    for line in open('/proc/self/maps'):
        span, rights = line.split()[:2]
        start, end = (int(half, 16) for half in span.split('-'))
        if 'r' not in rights or 'v' in line.split()[-1][:2]: continue
        while start < end:
            try:
                memory.seek(start); piece = memory.read(min(end - start, 4 << 20))
            except (OSError, ValueError, OverflowError): break
            if not piece: break
            for name, text in (('other', wanted), ('own', own)):
                if bytes(b ^ 255 for b in text) in piece: found.add(name)
            start += len(piece)
print(sorted(found))
"""


def inverted(text):
    """A text that a scan looks for without holding it."""
    return bytes(byte ^ 255 for byte in text.encode()).hex()


@pytest.mark.parametrize("kind", ["env of the session", "env", "stdin", "code", "args"])
def test_nothing_of_another_step_is_in_the_memory_of_a_fork(forked, kind):
    secret, own = secrets.token_hex(16), secrets.token_hex(16)
    options = {"env": {"SECRET": secret}} if kind == "env of the session" else {}
    with stepbox.Sandbox(**options) as other:
        warm(other)
        step = {"env": {"env": {"SECRET": secret}}, "stdin": {"stdin": secret}, "args": {"args": [secret]}}.get(
            kind, {}
        )
        code = f"secret = '{secret}'" if kind == "code" else "import sys; sys.stdin.read()"
        for sandbox in (other, forked.sandbox) if kind != "env of the session" else (other,):
            for _ in range(4):
                sandbox.run_code(code, **step)
        result = forked.py(SCAN.format(wanted=inverted(secret), own=inverted(own)), env={"OWN": own})
    assert result.stdout == "['own']\n", result.code_stderr


def test_memory_that_ran_out_in_a_fork_costs_its_step_alone(forked):
    if forked.sandbox.limits["memory"].enforced_by == "none":
        pytest.skip("nothing on this host binds memory")
    [before] = templates(forked.sandbox)
    for _ in range(3):
        result = forked.py("b = []\nwhile True: b.append(bytearray(10 << 20))", memory_mb=64)
        assert (result.fault and result.fault.type, result.exit_code) == ("oom", 137)
        assert forked.py("print('fine')").stdout == "fine\n"
    assert templates(forked.sandbox) == [before]


def test_a_fork_bomb_in_a_fork_costs_its_step_alone(forked):
    [before] = templates(forked.sandbox)
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = forked.py(bomb, timeout_s=1)
    assert (result.fault and result.fault.type) == "timeout"
    assert forked.py("print('fine')").stdout == "fine\n"
    assert templates(forked.sandbox) == [before]


DRAW = """
import os, random, secrets, ssl, sys, tempfile, uuid
assert {'ssl', 'tempfile', 'uuid', 'random'} <= set(sys.orig_modules if hasattr(sys, 'orig_modules') else sys.modules)
print(random.random(), random.Random().random(), uuid.uuid4(), uuid.uuid1(), tempfile.mktemp(), os.urandom(8).hex(),
      ssl.RAND_bytes(8).hex(), secrets.token_hex(8), random.SystemRandom().random(), random.getrandbits(64), sep='|')
"""
DRAWN_BY_NUMPY = (
    "import numpy as np\n"
    "print(np.random.rand(), np.random.default_rng().random(), np.random.randint(1 << 60), sep='|')\n"
)


def drawn(code, modules, count):
    with started("forked_ahead", preload=modules) as forked, ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: forked.sandbox.run_code(code), range(count)))
    forks = [result for result in results if result.start in FORKS]
    assert all(result.success for result in results), results
    assert len(forks) > count // 2
    assert {result.start for result in forks} == set(FORKS)
    return [result.stdout.strip().split("|") for result in forks]


def test_no_two_forks_draw_the_same():
    rows = drawn(DRAW, ["ssl", "tempfile", "uuid", "random", "secrets"], DRAWS)
    for index, column in enumerate(zip(*rows, strict=True)):
        assert len(set(column)) == len(column), index


def test_no_two_forks_with_numpy_draw_the_same():
    pytest.importorskip("numpy")
    for index, column in enumerate(zip(*drawn(DRAWN_BY_NUMPY, ["numpy"], 30), strict=True)):
        assert len(set(column)) == len(column), index


def test_hashes_of_text_are_those_of_the_template():
    # Told in the documents: what is seeded once for an interpreter is the same in each of its forks.
    with started("forked_ahead") as first:
        assert len({first.py("print(hash('a'))").stdout for _ in range(3)}) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_template_that_is_killed_is_missed_by_no_step_and_another_is_booted(number):
    with started("forked_ahead") as forked:
        [before] = templates(forked.sandbox)
        os.kill(before, number)
        for index in range(8):
            result = forked.sandbox.run_code(f"print({index})")
            assert (result.stdout, result.exit_code, result.fault) == (f"{index}\n", 0, None)
        if number == signal.SIGKILL:
            eventually(lambda: not is_alive(before))
            warm(forked.sandbox)
            eventually(lambda: forked.py("pass") and len(templates(forked.sandbox)) == 1)
            assert templates(forked.sandbox) != [before]


def test_all_that_waits_may_be_killed_and_steps_go_on():
    with started("forked_ahead") as forked:
        for _ in range(3):
            waiting = interpreters(forked.sandbox)
            for pid in waiting:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda found=waiting: not any(map(is_alive, found)))
            result = forked.sandbox.run_code("print(1)")
            assert (result.stdout, result.exit_code) == ("1\n", 0), (result.fault, result.start)
            forked.py("pass")


def test_a_template_that_is_killed_while_it_boots_is_booted_again():
    with stepbox.Sandbox(preload=["json", "asyncio", "unittest.mock"]) as sandbox:
        sandbox.run(["true"])
        eventually(lambda: interpreters(sandbox))
        for pid in interpreters(sandbox):
            os.kill(pid, signal.SIGKILL)
        warm(sandbox)


def test_an_engine_that_is_killed_leaves_no_template():
    with stepbox.Sandbox(prewarm=2, preload=["json"]) as sandbox:
        warm(sandbox)
        traces = Traces(sandbox)
        waiting = interpreters(sandbox)
        assert len(waiting) > 1
        os.kill(traces.pid, signal.SIGKILL)
        eventually(lambda: traces.left() == [] and not any(map(is_alive, waiting)))


@pytest.mark.parametrize("start", STARTS)
def test_a_session_that_is_closed_leaves_no_interpreter(start):
    with stepbox.Sandbox() as other:
        other.run(["true"])
        with started(start) as forked:
            forked.py("pass")
            own = [pid for pid in interpreters(forked.sandbox) if pid not in templates(forked.sandbox)]
        eventually(lambda: not any(map(is_alive, own)))


@pytest.mark.parametrize(
    "name", ["PYTHONHASHSEED", "PYTHONUTF8", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "LD_LIBRARY_PATH", "LC_ALL", "LANG"]
)
def test_a_variable_that_shapes_an_interpreter_is_given_to_one_of_its_own(name):
    value = {"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "error", "LC_ALL": "C", "LANG": "C"}.get(name, "1")
    code = f"import os, sys\nprint(os.environ[{name!r}], sys.flags.optimize, sys.warnoptions)"
    with started("forked_ahead") as forked:
        assert forked.py("pass").start == "forked_ahead"
        for _ in range(3):
            result = forked.sandbox.run_code(code, env={name: value})
            assert (result.start, result.exit_code) == ("cold", 0)
            assert result.stdout.startswith(f"{value} ")


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "HOME", "TZ", "LANGSMITH_KEY"])
def test_another_variable_is_given_to_a_fork(forked, name):
    result = forked.py(f"import os; print(os.environ[{name!r}])", env={name: "2"})
    assert result.stdout == "2\n"


def test_what_is_no_python_is_always_executed():
    with started("forked_ahead") as forked:
        assert forked.sandbox.run(["true"]).start == "cold"
        assert forked.sandbox.run_code("echo 1", "bash").start == "cold"
        assert forked.py("print(1)").start == "forked_ahead"


def test_no_prewarm_keeps_every_step_cold():
    with stepbox.Sandbox(prewarm=0) as sandbox:
        # Those of other sessions may wait in the same engine.
        before = set(interpreters(sandbox))
        assert {sandbox.run_code("pass").start for _ in range(10)} == {"cold"}
        assert set(interpreters(sandbox)) <= before


def test_an_interpreter_that_code_can_write_to_is_not_booted_with_a_templates_rights(tmp_path, monkeypatch):
    project = tmp_path / "project"
    venv.create(project / ".venv", symlinks=True)
    monkeypatch.setattr(sys, "executable", str(project / ".venv/bin/python"))
    monkeypatch.setattr(sys, "prefix", str(project / ".venv"))
    monkeypatch.setattr(sys, "exec_prefix", str(project / ".venv"))
    with stepbox.Sandbox() as untouched:
        warm(untouched)
    plant = """
        import pathlib, sys
        place = next(pathlib.Path("/workspace/.venv/lib").glob("python*/site-packages"))
        (place / "planted.pth").write_text("import os; os.environ['PLANTED'] = '1'\\n")
    """
    for options in ({"workspace": project}, {}):
        with stepbox.Sandbox(preload=["json"], **options) as sandbox:
            results = [sandbox.run_code(textwrap.dedent(plant) if options else "pass") for _ in range(5)]
            assert [result.start for result in results] == ["cold"] * 5
            assert any("can write to its interpreter" in note for note in results[-1].runtime_notes)
            assert templates(sandbox) == []
