"""`security_profile="untrusted"`: each denial beside what it leaves, in whatever way code runs."""

from __future__ import annotations

import os
import shutil
import socket
import textwrap

import pytest
from evidence import eventually
from postures import WAYS, running

import stepbox

UNTRUSTED = {"security_profile": "untrusted"}

# Executes what lies in each place that code can write to, by itself and through the loader.
EXECUTE = """
    import os, shutil, subprocess
    loader = [w for w in open('/proc/self/maps').read().split() if '/ld-' in w][0]
    for place in ['/workspace', '/tmp', '/dev/shm', '/var/cache/user', os.environ['HOME'], os.environ['TMPDIR']]:
        program = shutil.copy('/bin/true', place + '/program')
        try:
            direct = subprocess.run([program]).returncode
        except PermissionError:
            direct = 'denied'
        print(direct, subprocess.run([loader, program], stderr=subprocess.DEVNULL).returncode)
"""


@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_code_can_write_is_executed(way):
    with running(way, **UNTRUSTED) as (_, py):
        result = py(EXECUTE)
        assert result.success, result.stderr
        assert result.stdout == "denied 127\n" * 6
        # The twin: programs of the image, and code for an interpreter of the image.
        result = py("""
            import subprocess
            open('script', 'w').write('echo $((6 * 7))')
            print(subprocess.run(['sh', 'script'], capture_output=True, text=True).stdout)
        """)
        assert result.stdout == "42\n\n", result.stderr


def test_other_code_executes_what_it_writes():
    with stepbox.Sandbox() as sandbox:
        assert sandbox.run_code(textwrap.dedent(EXECUTE)).stdout == "0 0\n" * 6


@pytest.mark.parametrize("way", WAYS)
def test_a_library_that_code_wrote_is_not_loaded(way):
    code = """
        import ctypes, shutil
        library = [w for w in open('/proc/self/maps').read().split() if '/libc.so' in w or '/libc-' in w][0]
        copy = shutil.copy(library, '/workspace/library.so')
        print(ctypes.CDLL(library).getpid() > 0)
        ctypes.CDLL(copy)
    """
    with running(way, **UNTRUSTED) as (_, py):
        result = py(code)
        assert result.stdout == "True\n"
        assert "failed to map segment" in result.stderr


def test_a_mount_is_executable_when_it_is_read_only(tmp_path):
    program = shutil.copy("/bin/true", tmp_path / "program")
    (tmp_path / "writable").mkdir()
    shutil.copy(program, tmp_path / "writable")
    mounts = {str(tmp_path / "program"): ("/opt/program", "ro"), str(tmp_path / "writable"): ("/opt/writable", "rw")}
    with stepbox.Sandbox(mounts=mounts, **UNTRUSTED) as sandbox:
        assert sandbox.run(["/opt/program"]).exit_code == 0
        assert sandbox.run(["/opt/writable/program"]).exit_code == 126


def test_what_is_protected_in_a_workspace_is_not_executed_either(tmp_path):
    (tmp_path / ".git/hooks").mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / ".git/hooks/pre-commit")
    with stepbox.Sandbox(workspace=tmp_path, **UNTRUSTED) as sandbox:
        assert sandbox.run(["/workspace/.git/hooks/pre-commit"]).exit_code == 126


@pytest.mark.parametrize("way", WAYS)
def test_memory_by_descriptor_is_never_executed(way):
    code = """
        import os
        try:
            os.memfd_create('usual')
        except PermissionError:
            print('denied')
        sealed = os.memfd_create('sealed', 0x1 | 0x8)
        os.write(sealed, open('/bin/true', 'rb').read())
        try:
            os.execve(sealed, ['true'], {})
        except PermissionError:
            print('denied', os.fstat(sealed).st_size > 0)
    """
    with running(way, **UNTRUSTED) as (_, py):
        assert py(code).stdout == "denied\ndenied True\n"


@pytest.mark.parametrize("way", WAYS)
def test_local_sockets_are_pairs_and_nothing_else(way):
    code = """
        import errno, socket
        for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET]:
            try:
                socket.socket(socket.AF_UNIX, kind)
            except OSError as error:
                print(errno.errorcode[error.errno])
        try:
            socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError as error:
            print(errno.errorcode[error.errno])
        one, other = socket.socketpair()
        one.send(b'paired')
        print(other.recv(10))
        with socket.create_server(('127.0.0.1', 0)) as server, socket.create_connection(server.getsockname()):
            print('loopback')
    """
    with running(way, **UNTRUSTED) as (_, py):
        result = py(code)
        assert result.stdout == "EAFNOSUPPORT\n" * 4 + "b'paired'\nloopback\n", result.stderr


def test_a_socket_of_the_host_in_a_workspace_is_out_of_reach(tmp_path):
    reach = """
        import socket
        with socket.socket(socket.AF_UNIX) as reached:
            reached.connect('socket')
            reached.send(b'usual')
    """
    try_a_pair = """
        import errno, socket
        for kind in [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]:
            try:
                socket.socketpair(socket.AF_UNIX, kind)[0].connect('socket')
            except OSError as error:
                print(errno.errorcode[error.errno])
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        (tmp_path / "socket").chmod(0o777)
        server.settimeout(20)
        options = {"workspace": tmp_path, "allow_sockets": True}
        with stepbox.Sandbox(**options, **UNTRUSTED) as sandbox:
            assert "Address family not supported" in sandbox.run_code(textwrap.dedent(reach)).stderr
            assert sandbox.run_code(textwrap.dedent(try_a_pair)).stdout == "EISCONN\nEPROTOTYPE\n"
        with stepbox.Sandbox(**options) as sandbox:
            assert sandbox.run_code(textwrap.dedent(reach)).success
        # The first that came is the other's.
        with server.accept()[0] as heard:
            assert heard.recv(9) == b"usual"


# By number, of x86_64 and aarch64: none of these is a probe of a libc.
MISSING = {
    "io_uring_setup": (425, 425),
    "perf_event_open": (298, 241),
    "kcmp": (312, 272),
    "syscall 1000": (1000, 1000),
}


def missing(name):
    number = MISSING[name][os.uname().machine != "x86_64"]
    return f"import ctypes; print(ctypes.CDLL(None).syscall({number}, 0, 0, 0, 0, 0))"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MISSING)
def test_a_call_that_is_missing_ends_the_step(way, name):
    with running(way, **UNTRUSTED) as (_, py):
        result = py(missing(name))
        assert (result.fault.type, result.exit_code, result.stdout) == ("escape_blocked", 159, "")
        assert name in result.fault.message
        # The next one is as the first: the sandbox was stopped, not the session.
        assert py("print('alive')").stdout == "alive\n"


@pytest.mark.parametrize("name", MISSING)
def test_the_same_call_falls_back_by_default(name):
    with stepbox.Sandbox() as sandbox:
        assert sandbox.run_code(missing(name)).success


@pytest.mark.parametrize("way", WAYS)
def test_reading_another_process_is_refused_and_counted(way):
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.ptrace(0, 0, 0, 0), ctypes.get_errno())
        print(libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0), ctypes.get_errno())
    """
    with running(way, **UNTRUSTED) as (_, py):
        result = py(code)
        assert result.stdout == "-1 1\n-1 1\n"
        assert result.usage.denied_syscalls == 2


@pytest.mark.parametrize("way", WAYS)
def test_proc_shows_the_own_processes_and_nothing_else(way):
    code = """
        import os, subprocess
        shown = sorted(os.listdir('/proc'))
        print([name for name in shown if not name.isdigit()])
        print('1' in shown, str(os.getpid()) in shown, os.path.exists('/proc/sys'), os.path.exists('/proc/meminfo'))
        other = subprocess.Popen(['sleep', '60'])
        print(open(f'/proc/{other.pid}/comm').read() != '', os.path.exists('/proc/1/status'))
        other.kill()
    """
    with running(way, **UNTRUSTED) as (_, py):
        result = py(code)
        assert result.stdout == "['self', 'thread-self']\nFalse True False False\nTrue False\n", result.stderr


def test_proc_of_other_code_shows_init():
    with stepbox.Sandbox() as sandbox:
        result = sandbox.run_code("import os; print(os.path.exists('/proc/1/status'), os.path.exists('/proc/meminfo'))")
        assert result.stdout == "True True\n"


@pytest.mark.parametrize("way", WAYS)
def test_the_code_has_one_id_and_it_is_the_only_one(way):
    code = "print(open('/proc/self/uid_map').read().split()[::2], open('/proc/self/gid_map').read().split()[::2])"
    with running(way, **UNTRUSTED) as (_, py):
        assert py(code).stdout == "['1000', '1'] ['1000', '1']\n"


def test_ordinary_programs_run():
    code = """
        import asyncio, concurrent.futures, json, multiprocessing, sqlite3, ssl, subprocess, tempfile, threading
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            print(sum(pool.map(abs, range(-5, 0))))
        with multiprocessing.get_context('fork').Pool(2) as pool:
            print(pool.map(abs, [-1, 2]))
        async def hear():
            process = await asyncio.create_subprocess_exec('echo', 'heard', stdout=subprocess.PIPE)
            return (await process.communicate())[0]
        print(asyncio.run(hear()))
        with sqlite3.connect('base') as base:
            print(base.execute('select 6 * 7').fetchone())
        with tempfile.NamedTemporaryFile() as file:
            print(file.write(b'x'))
    """
    with stepbox.Sandbox(**UNTRUSTED) as sandbox:
        result = sandbox.run_code(textwrap.dedent(code))
        assert result.stdout == "15\n[1, 2]\nb'heard\\n'\n(42,)\n1\n", result.stderr
        result = sandbox.run_code("for n in 1 2; do echo $n | cat; done; ls / | wc -l; cat <(id -un)", "bash")
        assert result.success, result.stderr
        assert result.stdout.endswith("user\n")


def test_node_runs():
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    with stepbox.Sandbox(**UNTRUSTED) as sandbox:
        code = "const p = require('child_process'); console.log(p.execSync('echo heard').toString())"
        assert sandbox.run_code(code, "javascript").stdout == "heard\n\n"


def test_what_takes_away_the_profile_is_refused_with_both_names():
    against = {"cap_drop": (), "network": True, "deps_readonly": False}
    for option, value in against.items():
        with pytest.raises(stepbox.SandboxError, match=option) as refused:
            stepbox.Sandbox(**{option: value}, **UNTRUSTED)
        assert 'security_profile="untrusted"' in str(refused.value)
    # The twins: the same said the other way round.
    stepbox.Sandbox(cap_drop=("ALL",), network=False, deps_readonly=True, image="host", **UNTRUSTED)


def test_the_result_says_what_is_in_force():
    with stepbox.Sandbox(**UNTRUSTED) as sandbox:
        layers = sandbox.run(["true"]).isolation
        for layer in ["profile: untrusted", "exec: nothing that the code can write", "unix sockets: pairs only"]:
            assert layer in layers
    with stepbox.Sandbox() as sandbox:
        assert not any("untrusted" in layer for layer in sandbox.run(["true"]).isolation)


def test_no_two_sessions_have_a_template_together():
    """What forks of one template have in common, the seed of string hashes, is not in common here."""
    code = "print(hash('stepbox'))"
    seeds = []
    for _ in range(2):
        with running("forked_ahead", **UNTRUSTED) as (_, py):
            seeds.append(py(code).stdout)
            assert py(code).stdout == seeds[-1]
    assert seeds[0] != seeds[1]


def test_a_session_of_the_other_profile_gets_none_of_its_sandboxes():
    """Slots are made ahead for the session to come: never for one of another posture."""
    local = "import socket; socket.socket(socket.AF_UNIX); print('made')"
    for _ in range(3):
        with stepbox.Sandbox(**UNTRUSTED) as strict, stepbox.Sandbox() as usual:
            assert usual.run_code(local).stdout == "made\n"
            assert strict.run_code(local).exit_code == 1
            eventually(lambda usual=usual: usual.run_code(local).start != "cold")
            assert usual.run_code(local).stdout == "made\n"
            assert strict.run_code(local).exit_code == 1


@pytest.mark.parametrize("way", WAYS)
def test_limits_bind(way):
    """Where no cgroup counts memory, the engine looks at what `/proc` does not show the code."""
    with running(way, memory_mb=96, **UNTRUSTED) as (_, py):
        assert py("kept = [b'x' * (1 << 20) for _ in range(400)]").fault.type == "oom"
        hidden = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); kept = [b'x' * (1 << 20) for _ in range(400)]"
        assert py(hidden).fault.type == "oom"
        assert py("print(len(bytes(1 << 20)))").stdout == "1048576\n"


def test_shared_memory_counts():
    code = """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        for _ in range(40):
            segment = libc.shmget(0, 10 << 20, 0o1600)
            ctypes.memset(ctypes.c_void_p(libc.shmat(segment, None, 0)), 1, 10 << 20)
        print('all')
    """
    with stepbox.Sandbox(memory_mb=96, **UNTRUSTED) as sandbox:
        assert sandbox.run_code(textwrap.dedent(code)).fault.type == "oom"
        assert sandbox.run_code(textwrap.dedent(code).replace("range(40)", "range(2)")).stdout == "all\n"
