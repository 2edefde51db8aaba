"""The same events however the process of a step was started: verdicts, limits, output and the end are the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from evidence import changes, descendants, eventually
from starts import FORKS, STARTS, started, warm
from test_events_in_every_language import EVENTS, PYTHON, code_of, judge, options_of

import stepbox


@pytest.fixture(scope="module", params=STARTS)
def begun(request):
    with started(request.param) as found:
        yield found


def binding(sandbox, resource):
    limit = sandbox.limits.get(resource)
    if limit is None or limit.enforced_by == "none":
        pytest.skip(f"nothing on this host binds {resource}")


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_has_the_same_verdict_however_the_step_was_started(begun, event):
    code = "print('on', flush=True)\n" + code_of(PYTHON, event)
    judge(begun.py(code, **options_of(begun.sandbox, event)), event)
    assert begun.py("print('fine')").stdout == "fine\n"


def test_usage_is_the_steps_own_and_not_the_templates(begun):
    idle = begun.py("pass").usage
    busy = begun.py("b = bytearray(100 << 20)\nfor _ in range(3_000_000): pass").usage
    assert idle.startup_ms is not None
    assert idle.queue_ms is not None
    if idle.cpu_ms is not None:
        assert busy.cpu_ms > idle.cpu_ms
    if busy.peak_memory_bytes is not None:
        assert busy.peak_memory_bytes > 100 << 20
        assert idle.peak_memory_bytes < 100 << 20


@pytest.mark.parametrize("start", STARTS)
def test_a_fork_bomb_meets_its_limit_however_it_was_started(start, marker):
    with started(start, pids=32) as begun:
        binding(begun.sandbox, "pids")
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        result = begun.py(bomb, args=[marker.number], timeout_s=2)
        assert (result.fault and result.fault.type, result.exit_code) == ("timeout", 137)
        assert marker.running() == []


@pytest.mark.parametrize("start", STARTS)
def test_as_many_tasks_are_allowed_however_a_step_was_started(start):
    count = (
        "import os, signal\nn = 0\n"
        "try:\n    while True:\n        if os.fork() == 0: signal.pause()\n        n += 1\n"
        "except OSError: print(n)"
    )
    with started(start, pids=24) as begun, started("cold", pids=24) as cold:
        binding(begun.sandbox, "pids")
        assert begun.py(count).stdout == cold.py(count).stdout


@pytest.mark.parametrize("start", STARTS)
def test_a_cap_on_cores_is_seen_and_cannot_be_widened(start):
    with started(start, cpus=1) as begun:
        code = (
            "import os\nprint(len(os.sched_getaffinity(0)))\n"
            "try: os.sched_setaffinity(0, range(64))\nexcept OSError: pass\n"
            "print(len(os.sched_getaffinity(0)))"
        )
        first, last = begun.py(code).stdout.split()
        assert first == "1"
        if begun.sandbox.limits["cpu"].enforced_by == "throttle":
            assert last == "1"


def test_output_past_the_cap_is_cut_alike(begun):
    with started(begun.start, max_output_bytes=1000) as capped:
        result = capped.py("import sys; sys.stdout.write('a' * 5000 + 'END'); sys.stderr.write('whole')")
        assert (len(result.stdout_bytes), result.stdout_total_bytes, result.code_stderr) == (1000, 5003, "whole")
        assert result.stdout.endswith("END")
        assert result.truncated_stdout
        assert not result.truncated_stderr


def test_output_is_told_as_it_comes(begun):
    pieces = []
    result = begun.py("for i in range(500): print(i, flush=True)", on_stdout=pieces.append)
    assert (
        b"".join(pieces)[-len(result.stdout_bytes) :]
        == result.stdout_bytes
        == b"".join(b"%d\n" % i for i in range(500))
    )


def test_files_are_the_sandboxs_users_and_are_told(begun):
    result = begun.py(
        "import os\nopen('a', 'w').write('x'); os.makedirs('d/e'); os.chmod('a', 0o640); os.symlink('a', 'l')"
    )
    assert changes(result) == ["a", "d", "d/e", "l"]
    begun.empty()
    result = begun.py(
        "import os\nprint({os.stat(p).st_uid for p in ('.', 'a', 'd')}); os.remove('a'); open('l2', 'w').close()",
        prepare=lambda sandbox: sandbox.run(["sh", "-c", "mkdir -p d; echo x > a"]),
    )
    assert result.stdout == "{1000}\n"
    assert sorted((change.path, change.change) for change in result.files) == [("a", "deleted"), ("l2", "created")]
    begun.empty()


def test_code_with_a_nul_is_refused_or_told_alike(begun):
    def outcome(sandbox):
        try:
            result = sandbox.run_code("print(1)\0")
        except stepbox.SandboxError as error:
            return type(error), error.reason, str(error)
        return result.exit_code, result.stdout, result.code_stderr

    with started("cold") as cold:
        assert outcome(begun.sandbox) == outcome(cold.sandbox)


@pytest.mark.parametrize("cwd", ["/nope", "/etc/passwd"])
def test_a_directory_that_cannot_be_entered_is_told_alike(begun, cwd):
    begun.prime(0.02)
    result = begun.sandbox.run_code("print('never')", cwd=cwd)
    assert (result.fault and result.fault.type, result.exit_code, result.start) == ("startup_failed", 125, None)
    assert cwd in result.fault.message
    assert result.stdout == ""


def test_a_step_that_is_cancelled_is_ended_and_the_next_runs(begun, marker):
    async def use():
        async with stepbox.AsyncSandbox(**({"prewarm": 0} if begun.start == "cold" else {})) as sandbox:
            for _ in range(40):
                if (await sandbox.run_code("pass")).start == begun.start:
                    break
                await asyncio.sleep(0.01)
            code = f"import os; os.execvp('sleep', ['sleep', '{marker.number}'])"
            task = asyncio.create_task(sandbox.run_code(code))
            await asyncio.to_thread(eventually, marker.running)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: marker.running() == [])
            assert (await sandbox.run_code("print(1)")).stdout == "1\n"

    asyncio.run(use())


def test_a_step_that_is_killed_from_outside_is_told_as_killed(begun, marker):
    with ThreadPoolExecutor(1) as pool:
        code = (
            "import ctypes, time\nprint('on', flush=True)\n"
            f"ctypes.CDLL(None).prctl(15, b'{marker.number}')\ntime.sleep(60)"
        )
        call = pool.submit(begun.py, code)
        engine = begun.sandbox._lease.session.engine.process.pid
        # A step that was started in another way is run anew.
        while not call.done():
            for pid in descendants(engine):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == marker.number:
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        result = call.result()
    assert (result.fault and result.fault.type, result.exit_code, result.stdout) == ("killed", 137, "on\n")


def test_steps_of_all_starts_run_at_once_and_do_not_mix():
    with stepbox.Sandbox() as sandbox, ThreadPoolExecutor(16) as pool:
        warm(sandbox, FORKS)

        def call(index):
            code = (
                f"import os, sys; open('f{index}', 'w').close()\n"
                f"print({index}, os.environ['ID'], sys.stdin.read()); sys.exit({index})"
            )
            return sandbox.run_code(code, env={"ID": str(index)}, stdin=str(index))

        results = list(pool.map(call, range(60)))
    for index, result in enumerate(results):
        assert (result.stdout, result.exit_code, result.fault) == (f"{index} {index} {index}\n", index, None)
    assert {result.start for result in results} & set(FORKS)


def test_a_module_that_customizes_an_interpreter_is_obeyed(begun):
    begun.sandbox.write_file("sitecustomize.py", "import sys\nsys.customized = True\n")
    code = "import sys\nprint(getattr(sys, 'customized', False), 'sitecustomize' in sys.modules)"
    assert begun.sandbox.run_code(code).stdout == "True True\n"
    begun.sandbox.write_file("sitecustomize.py", "1/0\n")
    begun.prime(0.02)
    broken = begun.sandbox.run_code("print('on')")
    begun.empty()
    assert (broken.stdout, broken.exit_code) == ("on\n", 0)
    assert "Error in sitecustomize; set PYTHONVERBOSE for traceback:" in broken.code_stderr
