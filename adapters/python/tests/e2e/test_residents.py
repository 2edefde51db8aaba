"""Resident sessions: steps that enter one sandbox, what they leave running, and what ends with which."""

from __future__ import annotations

import threading
import time

import pytest
from evidence import changes, eventually
from standing import standing_engine

import stepbox


@pytest.fixture(scope="module", autouse=True)
def engine():
    with standing_engine() as engine:
        yield engine


@pytest.fixture
def resident(face):
    with face(resident=True) as opened:
        yield opened


@pytest.fixture
def kept(resident, marker):
    """A resident with a process of an earlier step in it that must live on."""
    assert resident.sh(f"exec -a kept-{marker.number} sleep 1000 & echo begun").success
    yield resident
    after = resident.sh("ps ax -o args")
    if has_branches(resident) or not after.runtime_notes:
        assert "kept" in after.stdout
        assert after.runtime_notes == []
    else:
        assert "was lost" in after.runtime_notes[0]


def has_branches(sandbox):
    """Whether the processes of one step can be told from those of another."""
    return sandbox.limits["pids"].enforced_by in ("cgroup1", "cgroup2")


def test_steps_share_tmp_shm_processes_and_the_pid_namespace(resident):
    first = resident.sh("echo a > /tmp/a; echo b > /dev/shm/b; readlink /proc/self/ns/pid; sleep 1000 & echo $! > pid")
    assert (first.success, first.start) == (True, "resident")
    second = resident.sh("cat /tmp/a /dev/shm/b; readlink /proc/self/ns/pid; kill $(cat pid) && echo killed")
    assert second.stdout == "a\nb\n" + first.stdout + "killed\n", second


def test_cwd_env_and_stdin_are_each_steps_own(resident):
    assert resident.sh("echo $PWD $X; cat", cwd="/tmp", env={"X": "1"}, stdin="in").stdout == "/tmp 1\nin"
    assert resident.sh("echo $PWD $X; cat").stdout == "/workspace\n"


def test_code_in_every_language_is_told_where_it_failed(resident):
    failed = resident.py("x = 1\nraise ValueError(x)")
    assert (failed.exit_code, failed.fault) == (1, None)
    assert "raise ValueError(x)" in failed.stderr
    assert "main.py" in failed.stderr
    assert resident.run_code("console.log(1)", language="javascript").stdout == "1\n"


def test_a_step_returns_when_its_own_process_ends_and_what_it_left_lives_on(resident, marker):
    begun = time.monotonic()
    left = resident.sh(f"(while sleep 0.05; do echo tick; done) & setsid -f sleep {marker.number}; echo done")
    assert time.monotonic() - begun < 2
    assert (left.success, left.stdout.splitlines()[-1]) == (True, "done")
    time.sleep(0.5)
    # The pipe of the one that writes on is read on: it has not been ended by that.
    seen = resident.sh("ps ax -o args").stdout
    assert marker.number in seen
    assert "sleep 0.05" in seen or "main.sh" in seen


def test_output_is_whole_and_each_steps_own_though_another_writes(resident):
    assert resident.sh("(while true; do echo other; sleep 0.01; done) & true").success
    for _ in range(3):
        written = resident.py("import sys; sys.stdout.write('x' * 3_000_000)")
        assert written.stdout_bytes == b"x" * 3_000_000


def test_failures_of_a_step_are_told_and_leave_the_sandbox_as_it_is(kept):
    assert kept.run(["no-such-program"]).fault.type == "exec_failed"
    assert kept.run(["true"], cwd="/nowhere").fault.type == "startup_failed"


HOSTILE = {
    "setsid": "setsid -f sleep {0}; (sleep {0} &); sleep {0}",
    "double fork": """import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execvp('sleep', ['sleep', '{0}'])
    os._exit(0)
time.sleep(1000)""",
    "stopped": "sleep {0} & kill -STOP $!; kill -STOP $$; sleep {0}",
    "ignores": "trap '' TERM INT HUP; sleep {0} & while true; do sleep {0}; done",
    "bomb": ": {0}; f() {{ f | f & }}; f; sleep 1000",
    "keeps forking": """import os
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
# {0}""",
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_step_that_takes_too_long_is_ended_with_all_that_it_started_and_nothing_else(face, marker, kind):
    code = HOSTILE[kind].format(marker.number)
    language = "python" if "import os" in code else "bash"
    with face(resident=True, pids=64) as resident:
        assert resident.sh("exec -a kept-alive sleep 1000 & true").success
        if kind == "keeps forking":
            # It is never the same process for long: the step's own waits beside it.
            started = (
                f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {code!r}])\ntime.sleep(100)"
            )
            assert resident.run_code(started, timeout_s=1.5).fault.type == "timeout"
        else:
            assert resident.run_code(code, language=language, timeout_s=1.5).fault.type == "timeout"
        # Dead when the call returns.
        assert marker.running() == []
        after = resident.sh("ps ax -o stat,args")
        if has_branches(resident):
            assert "kept-alive" in after.stdout
            assert after.runtime_notes == []
            assert len(after.stdout.splitlines()) <= 5, after.stdout
        else:
            assert "kept-alive" not in after.stdout
            assert "was lost" in after.runtime_notes[0]


def test_a_step_that_is_cancelled_is_ended_alone(kept, marker):
    if not has_branches(kept):
        pytest.skip("without cgroups the sandbox ends with it")
    seen = []

    def listen(piece):
        seen.append(piece)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError):
        kept.sh(f"echo begun; setsid -f sleep 9{marker.number}; sleep 9{marker.number}", on_stdout=listen)
    eventually(lambda: not any(f"9{marker.number}" in line for line in marker.running()))


ESCAPE = "import ctypes; ctypes.CDLL(None).mount(b'a', b'/tmp', b'tmpfs', 0, 0); print('not stopped')"


def test_a_try_to_break_out_ends_the_step_that_made_it_and_no_other(kept, marker):
    detached = f"import subprocess\nsubprocess.Popen(['sleep', '9{marker.number}'], start_new_session=True)"
    tried = kept.py(f"{detached}\n{ESCAPE}")
    assert (tried.fault.type, tried.fault.syscall, tried.stdout) == ("escape_blocked", "mount", "")
    assert not any(f"9{marker.number}" in line for line in marker.running())


def test_a_step_that_another_runs_beside_has_no_verdict_of_that(kept):
    results = []
    running = threading.Thread(
        target=lambda: results.append(stepbox.Sandbox.attach(kept.id).run_code("sleep 1.5; echo fine", "bash"))
    )
    running.start()
    time.sleep(0.5)
    assert kept.py(ESCAPE).fault.type == "escape_blocked"
    running.join()
    if has_branches(kept):
        assert (results[0].fault, results[0].stdout) == (None, "fine\n")
    else:
        # It cannot be told whose it was: it is that of the sandbox, which is all of theirs.
        assert results[0].fault.type == "escape_blocked"


def test_a_try_by_what_an_ended_step_left_is_told_in_a_note(face):
    with face(resident=True) as resident:
        assert resident.sh("exec -a kept-alive sleep 1000 & true").success
        assert resident.sh(f'(sleep 0.5; exec python3 -c "{ESCAPE}") & sleep 1111 & true').success
        time.sleep(1.5)
        later = resident.sh("ps ax -o args")
        assert later.fault is None
        if not has_branches(resident):
            assert "escape_blocked" in later.runtime_notes[0]
            return
        assert "an earlier step had left running tried mount" in later.runtime_notes[0]
        assert "kept-alive" in later.stdout
        assert "1111" not in later.stdout
        assert resident.run(["true"]).runtime_notes == []


def test_out_of_memory_ends_the_sandbox_which_is_told_once_and_made_anew(face):
    with face(resident=True, memory_mb=128) as resident:
        assert resident.sh("echo a > /tmp/a; echo b > b; sleep 1000 & true").success
        assert resident.py("x = bytearray(1 << 30)").fault.type == "oom"
        after = resident.sh("cat b; ls /tmp/a; pgrep -c sleep")
        assert after.stdout == "b\n0\n"
        assert len(after.runtime_notes) == 1
        assert "was lost" in after.runtime_notes[0]
        assert "oom" in after.runtime_notes[0]
        assert resident.run(["true"]).runtime_notes == []


def test_a_step_cannot_forge_the_verdict_of_another(kept):
    # One sandbox: a step can kill another's processes, and that shows as a death by that signal and by nobody's word.
    results = []
    other = threading.Thread(
        target=lambda: results.append(stepbox.Sandbox.attach(kept.id).run(["sleep", "777"], timeout_s=20))
    )
    other.start()
    time.sleep(0.5)
    assert kept.sh("pkill -KILL -f 'sleep 777'").success
    other.join()
    assert (results[0].signal, results[0].fault.type) == (9, "killed")


def test_init_cannot_be_ended_from_inside(kept):
    assert kept.sh("kill -KILL 1; kill -STOP 1; kill -TERM 1; echo still").stdout == "still\n"


def test_an_overlapping_step_is_marked_and_writes_between_steps_are_seen(resident):
    assert resident.sh("(sleep 0.6; echo late > late) & true").success
    time.sleep(1.2)
    # What was written between two steps is neither's.
    quiet = resident.run(["true"])
    assert changes(quiet) == []
    assert changes(resident.sh("echo now > now")) == ["now"]


def test_memory_of_one_step_is_refused_by_name(resident):
    with pytest.raises(stepbox.SandboxError, match="memory_mb: the steps of a resident session share"):
        resident.run(["true"], memory_mb=64)


def test_a_kernel_of_a_resident_session_has_a_sandbox_of_its_own(resident):
    assert resident.sh("echo a > /tmp/a").success
    kernel = resident.kernel()
    seen = resident._resolve(kernel.run_code("import os; print(os.path.exists('/tmp/a'))"))
    assert seen.stdout == "False\n"


def test_many_steps_at_once_are_all_answered(resident):
    results = []

    def run(number):
        with stepbox.Sandbox.attach(resident.id) as sandbox:
            results.append((number, sandbox.run(["echo", str(number)]).stdout))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(number, f"{number}\n") for number in range(20)]


def test_closing_ends_all_that_runs(face, marker):
    with face(resident=True) as resident:
        assert resident.sh(f"setsid -f sleep {marker.number}; sleep {marker.number} & true").success
        eventually(lambda: len(marker.running()) == 2)
    assert marker.running() == []


def test_a_resident_without_namespaces_is_refused():
    with pytest.raises(stepbox.SandboxError, match="resident"):
        stepbox.Sandbox(resident=True, isolation_mode="reduced")
