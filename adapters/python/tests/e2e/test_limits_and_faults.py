"""Limits bind, and what the sandbox did to the code is told by a fault that the code can neither make nor hide."""

from __future__ import annotations

import platform

import pytest

import stepbox


def binding(sandbox, resource):
    limit = sandbox.limits.get(resource)
    if limit is None or limit.enforced_by == "none":
        pytest.skip(f"nothing on this host binds {resource}")


@pytest.fixture(params=["main", "child"])
def eater(request):
    """Code that uses memory without end, in the main process or in a child."""
    eat = "b = []\nwhile True: b.append(bytearray(10 << 20))"
    if request.param == "main":
        return eat
    return f"import os\nif os.fork() == 0:\n    exec({eat!r})\nos.wait()\nprint('after')"


def test_running_out_of_memory_is_a_fault_and_the_next_call_is_fine(face, eater):
    with face(memory_mb=128, timeout_s=60) as sandbox:
        binding(sandbox, "memory")
        result = sandbox.py(eater)
        assert (result.fault and result.fault.type, result.exit_code) == ("oom", 137)
        assert "after" not in result.stdout
        assert sandbox.py("print('fine')").stdout == "fine\n"


def test_reserving_address_space_is_not_using_memory(face):
    with face(memory_mb=128) as sandbox:
        result = sandbox.py("import mmap\nm = mmap.mmap(-1, 8 << 30)\nm[0] = 1\nprint(len(m) >> 30)")
        assert (result.stdout, result.fault) == ("8\n", None)


def test_the_page_cache_is_not_used_memory(face):
    with face(memory_mb=64, timeout_s=120) as sandbox:
        result = sandbox.sh("dd if=/dev/zero of=big bs=1M count=200 2>/dev/null && cksum big | wc -l; rm big")
        assert (result.stdout, result.fault) == ("1\n", None)


def test_a_deadline_keeps_what_was_printed(face):
    with face(timeout_s=1) as sandbox:
        result = sandbox.py("import time\nfor i in range(3): print(i, flush=True)\ntime.sleep(600)")
        assert (result.fault.type, result.exit_code, result.stdout) == ("timeout", 137, "0\n1\n2\n")
        assert result.duration_ms >= 1000
        assert sandbox.py("print(1)", timeout_s=20).stdout == "1\n"


def test_a_deadline_ends_the_whole_tree_whatever_signals_say(sandbox, marker):
    code = (
        "import os, signal, sys, time\n"
        "for s in range(1, 32):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "for leave in (False, True):\n"
        "    if os.fork() == 0:\n"
        "        if leave: os.setsid()\n"
        f"        if os.fork() == 0: os.execvp('sh', ['sh', '-c', 'while :; do :; done #{marker.number}'])\n"
        "        os.execvp('sleep', ['sleep', '%s'])\n"
        "print('on', flush=True)\nwhile True: time.sleep(1)"
    ) % marker.number
    result = sandbox.py(code, timeout_s=2)
    assert marker.running() == []
    assert (result.fault.type, result.exit_code, result.stdout) == ("timeout", 137, "on\n")


def test_a_stopped_tree_is_ended_by_the_deadline(sandbox):
    result = sandbox.sh("echo on; kill -STOP 0; kill -STOP $$; echo never", timeout_s=2)
    assert (result.fault.type, result.stdout) == ("timeout", "on\n")


def test_a_fork_bomb_meets_its_limit_and_leaves_nothing(face, marker):
    with face(pids=32, timeout_s=3) as sandbox:
        binding(sandbox, "pids")
        result = sandbox.py(
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", args=[marker.number]
        )
        assert marker.running() == []
        assert result.fault.type == "timeout"
        assert sandbox.py("print(1)", timeout_s=30).stdout == "1\n"


def test_orphans_are_reaped(face):
    with face(pids=64) as sandbox:
        result = sandbox.py(
            "import os, pathlib\n"
            "def states():\n"
            "    for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
            "        try: yield stat.read_text().rpartition(')')[2].split()[0]\n"
            "        except OSError: pass\n"
            "for _ in range(300):\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        os.fork()\n"
            "        os._exit(0)\n"
            "    os.waitpid(child, 0)\n"
            "while 'Z' in states(): pass\n"
            "print('reaped')"
        )
        assert (result.stdout, result.code_stderr, result.fault) == ("reaped\n", "", None)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_kept_to_its_limit_and_the_other_stream_is_whole(face, stream):
    with face(timeout_s=2, max_output_bytes=1 << 20) as sandbox:
        to, other = (1, 2) if stream == "stdout" else (2, 1)
        result = sandbox.sh(f"echo whole >&{other}; yes 0123456789 >&{to}")
        kept = {"stdout": result.stdout_bytes, "stderr": result.stderr_bytes}
        assert result.fault.type == "timeout"
        assert len(kept.pop(stream)) == 1 << 20
        assert kept.popitem()[1] == b"whole\n"
        assert result.truncated
        assert getattr(result, f"truncated_{stream}")


@pytest.mark.parametrize(
    ("argv", "exit_code"),
    [(["no_such_command_xyz"], 127), (["/no/such/path"], 127), (["/etc/passwd"], 126), (["/tmp"], 126)],
)
def test_a_program_that_cannot_be_executed_is_a_fault_that_names_it(sandbox, argv, exit_code):
    result = sandbox.run(argv)
    if result.fault.type == "exec_failed":
        assert argv[0] in result.fault.message
        assert result.fault.path == argv[0]
    assert (result.fault.type, result.exit_code in (126, 127)) == ("exec_failed", True)
    if argv[0] != "/etc/passwd":
        assert result.exit_code == exit_code


def test_a_script_without_permission_is_a_fault_and_a_shells_own_127_is_not(sandbox):
    sandbox.write_file("s.sh", "#!/bin/sh\necho ran\n")
    assert sandbox.run(["./s.sh"]).exit_code == 126
    assert sandbox.run(["./s.sh"]).fault.type == "exec_failed"
    shell = sandbox.sh("no_such_command_xyz")
    assert (shell.exit_code, shell.fault) == (127, None)


def test_a_wrong_directory_is_told_and_nothing_runs(sandbox):
    result = sandbox.run(["touch", "/workspace/ran"], cwd="/nope")
    assert (result.fault.type, result.exit_code) == ("startup_failed", 125)
    assert "/nope" in result.fault.message
    assert not sandbox.exists("ran")


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("import ctypes; print('x', flush=True); ctypes.string_at(0)", 11),
        ("import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGTERM)", 15),
        ("import os; print('x', flush=True); os.abort()", 6),
    ],
)
def test_a_death_by_its_own_signal_is_no_fault_and_leaves_no_core(sandbox, code, number):
    result = sandbox.py(code)
    assert (result.exit_code, result.signal, result.fault) == (128 + number, number, None)
    assert (result.stdout, result.files) == ("x\n", [])


def test_a_kill_by_its_own_hand_is_told_as_killed(sandbox):
    result = sandbox.sh("echo on; kill -KILL $$")
    assert (result.fault and result.fault.type, result.exit_code) == ("killed", 137)


@pytest.mark.parametrize("number", [31, 9])
def test_no_signal_to_itself_makes_a_blocked_escape_or_oom(sandbox, number):
    result = sandbox.sh(f"kill -{number} $$")
    assert result.exit_code == 128 + number
    assert result.fault is None or result.fault.type == "killed"


BLOCKED = "import ctypes; l = ctypes.CDLL(None); print('on', flush=True); l.syscall({number}, 0, 0, 0, 0, 0)"


@pytest.mark.parametrize(("name", "number"), [("mount", 165), ("pivot_root", 155), ("bpf", 321), ("setns", 308)])
def test_a_blocked_call_is_named_in_the_fault(sandbox, name, number):
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    result = sandbox.py(BLOCKED.format(number=number))
    assert (result.fault and result.fault.type, result.exit_code) == ("escape_blocked", 159)
    assert (result.fault.syscall, result.stdout) == (name, "on\n")


def test_a_name_that_is_not_text_does_not_hide_the_process_from_the_fault(sandbox):
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    named = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe')\n" + BLOCKED.format(number=165)
    result = sandbox.py(named)
    assert (result.fault and result.fault.type, result.stdout) == ("escape_blocked", "on\n")
    assert result.fault.pid > 0


# `attempt` prints what a function of libc returns and its errno.
ATTEMPT = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
NEW_USER_NAMESPACE, OWN_FILES, TRACE_ME = 0x10000000, 0x400, 0
def attempt(name, *arguments):
    ctypes.set_errno(0)
    print(name, getattr(libc, name)(*arguments), ctypes.get_errno())
def flood():
    if os.fork() == 0:
        while True: libc.unshare(NEW_USER_NAMESPACE)
"""


def test_pid_1_of_a_sandbox_has_no_capability_and_is_filtered_as_the_code_is(sandbox):
    status = "print(*(line for line in open('/proc/%s/status') if line.startswith(('Cap', 'Seccomp', 'NoNew'))))"
    init, code = sandbox.py(status % 1), sandbox.py(status % "self")
    words = init.stdout.split()
    assert words == code.stdout.split()
    sets = dict(zip(words[::2], words[1::2], strict=True))
    assert {int(sets[name], 16) for name in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:")} == {0}
    assert (sets["NoNewPrivs:"], sets["Seccomp:"], sets["Seccomp_filters:"]) == ("1", "2", "2")


def test_pid_1_of_a_sandbox_is_not_the_codes_to_slow_down(sandbox):
    result = sandbox.py(
        "import os, resource\n"
        "def tell(call, *arguments):\n"
        "    try: call(*arguments); print('done')\n"
        "    except OSError as error: print(error.strerror)\n"
        "idle = os.sched_param(0)\n"
        "for pid in (1, 0):\n"
        "    tell(os.setpriority, os.PRIO_PROCESS, pid, 5)\n"
        "    tell(os.sched_setscheduler, pid, os.SCHED_IDLE, idle)\n"
        "    tell(os.sched_setaffinity, pid, os.sched_getaffinity(0))\n"
        "    tell(resource.prlimit, pid, resource.RLIMIT_CPU, (100, 100))\n"
        "tell(os.setpriority, os.PRIO_USER, 0, 5)\n"
    )
    refused = "Operation not permitted"
    assert result.stdout.splitlines() == [refused] * 4 + ["done"] * 4 + [refused]


def test_the_file_of_the_code_cannot_be_changed_by_the_code(sandbox):
    result = sandbox.py(
        "import os\n"
        "for path in (__file__, os.path.dirname(__file__) + '/more.py', os.path.expanduser('~/own.py')):\n"
        "    try: open(path, 'w').close(); print('written')\n"
        "    except OSError as error: print(error.strerror)\n"
        "try: os.chmod(__file__, 0o777)\n"
        "except OSError as error: print(error.strerror)\n"
    )
    assert result.stdout.splitlines() == ["Read-only file system"] * 2 + ["written", "Read-only file system"]


def test_a_refused_call_is_counted_and_the_code_goes_on(sandbox):
    result = sandbox.py(
        ATTEMPT + "attempt('unshare', OWN_FILES)\n"
        "attempt('ptrace', TRACE_ME, 0, 0, 0)\n"
        "attempt('process_vm_readv', os.getpid(), 0, 0, 0, 0, 0)\n"
        "attempt('process_vm_writev', os.getpid(), 0, 0, 0, 0, 0)\n"
        "attempt('unshare', NEW_USER_NAMESPACE)\n"
    )
    assert result.stdout.splitlines() == [
        "unshare 0 0",
        "ptrace -1 1",
        "process_vm_readv -1 1",
        "process_vm_writev -1 1",
        "unshare -1 1",
    ]
    assert (result.exit_code, result.fault, result.usage.denied_syscalls) == (0, None, 4)
    twin = sandbox.py(ATTEMPT + "attempt('unshare', OWN_FILES)")
    assert (twin.stdout, twin.usage.denied_syscalls) == ("unshare 0 0\n", 0)


def test_many_refused_calls_are_all_counted_and_hold_up_no_output(sandbox):
    result = sandbox.py(
        ATTEMPT + "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        for n in range(2500): libc.unshare(NEW_USER_NAMESPACE)\n"
        "        os._exit(0)\n"
        "os.write(1, b'x' * 300_000)\n"
        "for _ in range(4): os.wait()\n"
    )
    assert (result.exit_code, result.fault, len(result.stdout)) == (0, None, 300_000)
    assert result.usage.denied_syscalls == 10_000


def test_a_flood_of_refused_calls_delays_neither_the_end_nor_the_deadline(face):
    with face() as sandbox:
        ended = sandbox.py(ATTEMPT + "for _ in range(8): flood()\nprint('on')")
        assert (ended.stdout, ended.exit_code, ended.fault) == ("on\n", 0, None)
        stopped = sandbox.py(ATTEMPT + "for _ in range(8): flood()\nos.wait()", timeout_s=1)
        assert (stopped.fault and stopped.fault.type) == "timeout"
        assert stopped.usage.denied_syscalls > 0


def test_an_escape_after_refused_calls_and_among_them_is_still_one(sandbox):
    result = sandbox.py(ATTEMPT + "for _ in range(3): libc.unshare(NEW_USER_NAMESPACE)\nlibc.umount2(b'/', 0)")
    assert (result.fault and result.fault.type, result.exit_code) == ("escape_blocked", 159)
    assert (result.fault.syscall, result.usage.denied_syscalls) == ("umount2", 3)
    result = sandbox.py(ATTEMPT + "for _ in range(8): flood()\nlibc.umount2(b'/', 0)")
    assert (result.fault and result.fault.type, result.fault and result.fault.syscall) == ("escape_blocked", "umount2")


def test_nothing_that_code_says_makes_a_verdict(sandbox):
    code = (
        "import os, sys\n"
        'text = b\'stepbox: fault oom: out of memory\\n{"fault": {"type": "timeout"}}\\n\'\n'
        "for fd in range(3, 256):\n"
        "    try: os.write(fd, text)\n    except OSError: pass\n"
        "os.write(1, text); os.write(2, text); sys.exit(125)"
    )
    result = sandbox.py(code)
    assert (result.exit_code, result.fault, result.runtime_notes) == (125, None, [])
    assert result.stdout == result.code_stderr


def test_network_is_off_quickly_and_loopback_is_on(sandbox):
    result = sandbox.py(
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print('loopback')\n"
        "try: socket.create_connection(('1.1.1.1', 80), 20)\nexcept OSError as e: print(e.errno)"
    )
    assert (result.stdout, result.fault) == ("loopback\n101\n", None)


def test_limits_say_by_what_they_are_held(sandbox):
    limits = sandbox.py("1").limits
    assert limits["memory"].max == 512 << 20
    assert limits["pids"].max == 256
    assert {limit.resource for limit in limits.values()} >= {"memory", "pids", "cpu"}


def test_usage_is_told_where_the_kernel_counts(face):
    with face() as sandbox:
        usage = sandbox.py("b = bytearray(100 << 20)").usage
        assert usage.peak_memory_bytes is None or usage.peak_memory_bytes > 100 << 20
        assert usage.oom_kills in (None, 0)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"memory_mb": 1}, "memory_mb"),
        ({"pids": 1}, "pids"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"cpus": 0}, "cpus"),
        ({"tmpfs": {"/a": "64"}}, "tmpfs"),
        ({"tmpfs": {"/a": "0"}}, "tmpfs"),
        ({"tmpfs": {"/proc": "1m"}}, "tmpfs"),
        ({"tmpfs": {"/a": "9g"}}, "tmpfs"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": {"A": "a\0b"}}, "env"),
        ({"image": ""}, "image"),
    ],
)
def test_a_refused_option_is_named(options, field):
    with pytest.raises(stepbox.SandboxError) as raised:
        stepbox.Sandbox(**options)
    assert any(violation.field.startswith(field) for violation in raised.value.violations)


def test_all_refused_options_are_named_together():
    with pytest.raises(stepbox.SandboxError) as raised:
        stepbox.Sandbox(memory_mb=1, pids=1, mounts={"/etc": "/x"})
    fields = {violation.field.split("[")[0].split(".")[0] for violation in raised.value.violations}
    assert {"memory_mb", "pids", "mounts"} <= fields
