from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stepbox
from stepbox import _launch
from stepbox._engine import start_engine
from stepbox._shared import SharedEngine


def run_script(source, **options):
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, **options)


def own_words(stderr):
    """What a program said, without what gRPC tells of its own threads at a fork."""
    return [line for line in stderr.splitlines() if "fork_posix.cc" not in line]


def is_alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


# ---- start ----


def test_an_engine_is_started_apart_from_the_callers_terminal_and_told_its_parent(fresh_engine, engine_log, face):
    with face():
        (serving,) = engine_log.events("serving")
    assert serving["argv"] == ["serve", "--parent-pid", str(os.getpid())]
    assert serving["stdin"].startswith("pipe:")
    assert serving["sid"] != os.getsid(0)


def test_one_engine_serves_all_sandboxes_and_threads(fresh_engine, engine_log):
    def use(index):
        with stepbox.Sandbox() as sandbox:
            return sandbox.run(["print", str(index)]).stdout

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, range(24))) == [f"{index}\n" for index in range(24)]
    assert len(engine_log.events("serving")) == 1


def test_a_thread_that_ends_does_not_take_the_engine_with_it(fresh_engine, engine_log):
    sandboxes = []
    thread = threading.Thread(target=lambda: sandboxes.append(stepbox.Sandbox().open()))
    thread.start()
    thread.join()
    with sandboxes[0] as sandbox:
        assert sandbox.run(["print", "x"]).success
    assert len(engine_log.events("serving")) == 1


def test_an_engine_that_cannot_start_says_why(fresh_engine, monkeypatch):
    monkeypatch.setenv("STEPBOX_FAKE_FAIL", "user namespaces are off: sysctl -w user.max_user_namespaces=1000")
    with pytest.raises(stepbox.EngineError, match=r"could not start: it ended with status 3\nuser namespaces are off"):
        stepbox.Sandbox()


@pytest.mark.parametrize("line", ["hello", "{}", "[1]", '{"endpoint": 1, "pid": 2, "version": "0"}'])
def test_what_is_no_engine_is_told_so(fresh_engine, monkeypatch, line):
    monkeypatch.setenv("STEPBOX_FAKE_LINE", line)
    with pytest.raises(stepbox.EngineError):
        stepbox.Sandbox()


def test_an_engine_that_is_silent_is_not_waited_for_without_end(fresh_engine, monkeypatch, tmp_path):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setenv("STEPBOX_BIN", str(silent))
    monkeypatch.setattr(_launch, "READY_S", 0.2)
    with pytest.raises(stepbox.EngineError, match=r"was not ready within 0\.2 s"):
        stepbox.Sandbox()


def test_an_engine_of_another_version_is_refused_naming_both(fresh_engine, monkeypatch):
    monkeypatch.setenv("STEPBOX_FAKE_VERSION", "9.9.9")
    with pytest.raises(stepbox.EngineError, match=r"version 9\.9\.9, this client has version " + _launch.__version__):
        stepbox.Sandbox()


def test_elsewhere_than_on_linux_one_sentence_says_what_is_needed(fresh_engine, monkeypatch):
    monkeypatch.setattr(_launch.sys, "platform", "darwin")
    with pytest.raises(stepbox.EngineError, match="needs Linux: use WSL2"):
        stepbox.Sandbox()


# ---- attaching ----


@pytest.fixture
def address(fresh_engine):
    with stepbox.Sandbox() as sandbox:
        yield sandbox._lease.session.engine.address


def test_an_address_attaches_to_an_engine_that_runs(address, monkeypatch, engine_log):
    before = len(engine_log.events("serving"))
    monkeypatch.setenv("STEPBOX_ADDRESS", address.target)
    engine = start_engine(os.environ)
    assert (engine.process, engine.same_host) == (None, True)
    engine.stop()
    assert len(engine_log.events("serving")) == before


def test_what_an_attached_program_leaves_open_is_closed_at_its_end(address, monkeypatch, engine_log):
    monkeypatch.setenv("STEPBOX_ADDRESS", address.target)
    done = run_script("import stepbox; kept = stepbox.Sandbox().open(); print(kept.id)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in [event["id"] for event in engine_log.events("CloseSession")]


def test_a_wrong_token_is_refused(address, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("wrong")
    monkeypatch.setenv("STEPBOX_ADDRESS", address.target)
    monkeypatch.setenv("STEPBOX_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(stepbox.EngineError, match="refused the token"):
        start_engine(os.environ)


def test_an_address_where_nobody_listens_is_an_error(monkeypatch, tmp_path, fresh_engine):
    monkeypatch.setenv("STEPBOX_ADDRESS", f"unix:{tmp_path}/none.sock")
    with pytest.raises(stepbox.EngineError, match=f"the engine at unix:{tmp_path}/none.sock: "):
        stepbox.Sandbox()


# ---- open and closed ----


def test_a_sandbox_that_is_not_open_refuses_calls(face):
    with face() as sandbox:
        assert sandbox.id
        sandbox.close()
        assert sandbox.id is None
        for call in (lambda: sandbox.run(["true"]), lambda: sandbox.run_code("x"), lambda: sandbox.read_file("x")):
            with pytest.raises(stepbox.SandboxError, match="is not open"):
                call()


def test_opening_twice_is_one_session_and_after_closing_another(face, engine_log):
    with face() as sandbox:
        first = sandbox.id
        sandbox.open()
        assert sandbox.id == first
        sandbox.close()
        sandbox.open()
        assert sandbox.id != first
    assert len(engine_log.events("CreateSession")) == 2


def test_a_sandbox_that_is_forgotten_is_closed(engine_log):
    sandbox = stepbox.Sandbox().open()
    session = sandbox.id
    del sandbox
    gc.collect()
    assert engine_log.wait_for("CloseSession")["id"] == session


# ---- death ----


@pytest.mark.parametrize("given", [False, True])
def test_a_session_whose_engine_died_is_lost_and_a_new_one_is_made_on_demand(
    face, fresh_engine, engine_log, tmp_path, given
):
    options = {"workspace": str(tmp_path)} if given else {}
    with face(**options) as sandbox:
        first = sandbox.id
        with pytest.raises(stepbox.SessionLost, match="engine is gone") as raised:
            sandbox.run(["die"])
        assert raised.value.workspace_survived is given
        assert "last words" in str(raised.value)
        with pytest.raises(stepbox.SessionLost):
            sandbox.run(["print", "x"])
        with pytest.raises(stepbox.SessionLost):
            sandbox.read_file("x")
        sandbox.open()
        assert sandbox.id != first
        assert sandbox.run(["print", "again"]).stdout == "again\n"
    assert len(engine_log.events("serving")) == 2


def test_closing_after_the_engine_died_is_no_trouble(face, fresh_engine):
    with face() as sandbox, pytest.raises(stepbox.SessionLost):
        sandbox.run(["die"])


def test_a_session_that_the_engine_no_longer_has_is_lost(face):
    with face() as sandbox:
        from stepbox import _operations

        session = sandbox.sandbox._lease.session
        session.engine.drive(_operations.close_session(session))
        with pytest.raises(stepbox.SessionLost, match="no session"):
            sandbox.run(["print", "x"])


# ---- sharing and its end ----


def test_the_engine_stays_for_a_while_after_the_last_and_then_goes(fresh_engine):
    shared = SharedEngine(lambda: start_engine(os.environ), linger_s=0.2)
    engine = shared.acquire()
    assert shared.acquire() is engine
    shared.release(engine)
    assert not engine.has_ended()
    shared.release(engine)
    assert shared.acquire() is engine
    shared.release(engine)
    assert engine.process.has_ended(within_s=20)
    again = shared.acquire()
    assert again is not engine
    shared.stop()
    assert again.process.has_ended()


@pytest.mark.parametrize("ending", ["pass", "raise ValueError('mine')", "import sys; sys.exit(7)", "sandbox.close()"])
def test_a_program_that_ends_without_closing_leaves_nothing_and_keeps_its_own_status(ending, engine_log):
    done = run_script(f"import stepbox\nsandbox = stepbox.Sandbox().open()\n{ending}")
    assert done.returncode == {"p": 0, "r": 1, "i": 7, "s": 0}[ending[0]]
    assert done.stderr.splitlines()[-1:] == (["ValueError: mine"] if done.returncode == 1 else [])
    assert engine_log.wait_for("stopped")
    assert not is_alive(engine_log.events("serving")[0]["pid"])


def test_a_program_that_is_killed_takes_the_engine_with_it(engine_log):
    done = run_script("import os, signal, stepbox\nstepbox.Sandbox().open()\nos.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    assert engine_log.wait_for("stopped")


# ---- fork ----


FORK = """
import os, sys, stepbox
sandbox = stepbox.Sandbox().open()
assert sandbox.run(["print", "parent"]).success
child = os.fork()
if child == 0:
    try:
        sandbox.run(["print", "x"])
    except stepbox.SessionLost as lost:
        print("lost:", "forked from" in str(lost), flush=True)
    with stepbox.Sandbox() as own:
        print(own.run(["print", "child"]).stdout, end="", flush=True)
    {reuse}
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sandbox.run(["print", "still"]).stdout, end="")
sandbox.close()
"""


@pytest.mark.parametrize(
    "reuse", ["pass", "sandbox.close()", "del sandbox", "assert sandbox.open().run(['print']).success"]
)
def test_a_forked_child_has_an_engine_of_its_own_and_leaves_the_parents_alone(reuse, engine_log):
    # Newer interpreters warn of any fork in a process with threads, gRPC's among them.
    done = run_script(FORK.format(reuse=reuse), env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"})
    assert (done.stdout, own_words(done.stderr), done.returncode) == ("lost: True\nchild\nstill\n", [], 0)
    assert len({event["pid"] for event in engine_log.events("serving")}) == 2
    assert len(engine_log.events("stopped")) == 2


def test_the_asynchronous_face_works_in_a_child_of_a_process_that_used_it(engine_log):
    source = """
import asyncio, os, stepbox
heard = []
async def use(word):
    async with stepbox.AsyncSandbox() as sandbox:
        task = asyncio.create_task(sandbox.run(["hang"]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await sandbox.write_file("f", b"x" * 3_000_000)
        async def listen(piece):
            heard.append(piece)
        await sandbox.run(["print", word], on_stdout=listen)
        try:
            await sandbox.read_file("missing")
        except FileNotFoundError:
            pass
        return (await sandbox.run(["print", word])).stdout + str(len(await sandbox.read_file("f"))), heard
print(asyncio.run(use("parent")), flush=True)
child = os.fork()
if child == 0:
    heard.clear()
    print(asyncio.run(use("child")), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = run_script(source)
    heard = [b"piece0", b"piece2"]
    assert done.stdout.splitlines() == [str((f"{word}\n3000000", heard)) for word in ("parent", "child")], done.stderr


def test_processes_of_multiprocessing_each_have_an_engine(engine_log):
    source = """
import multiprocessing, stepbox
def work(index):
    return stepbox.run_code(f"print {index}").stdout
if __name__ == "__main__":
    stepbox.run_code("print 0")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(4)))
        pool.close()
        pool.join()
"""
    done = run_script(source, env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"})
    assert (done.stdout, own_words(done.stderr)) == ("['0\\n', '1\\n', '2\\n', '3\\n']\n", [])


# ---- event loops ----


def test_one_object_works_in_two_event_loops(recwarn):
    sandbox = stepbox.AsyncSandbox()

    async def use():
        await sandbox.open()
        return (await sandbox.run(["print", "x"])).stdout, sandbox.id

    first, second = asyncio.run(use()), asyncio.run(use())
    assert first == second
    asyncio.run(sandbox.close())
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_event_loops_in_threads_do_not_disturb_one_another(capfd):
    async def use(index):
        async with stepbox.AsyncSandbox() as sandbox:
            results = await asyncio.gather(*(sandbox.run(["print", f"{index}-{step}"]) for step in range(10)))
            return [result.stdout for result in results]

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda index: asyncio.run(use(index)), range(8)))
    assert outputs == [[f"{index}-{step}\n" for step in range(10)] for index in range(8)]
    assert capfd.readouterr().err == ""


def test_the_synchronous_face_works_inside_a_running_loop():
    async def use():
        with stepbox.Sandbox() as sandbox:
            return sandbox.run(["print", "x"]).stdout

    assert asyncio.run(use()) == "x\n"


# ---- cancelling ----


@pytest.mark.parametrize("streamed", [False, True])
def test_cancelling_the_task_cancels_the_step(engine_log, streamed):
    async def use():
        async with stepbox.AsyncSandbox() as sandbox:
            listener = {"on_stdout": lambda piece: None} if streamed else {}
            task = asyncio.create_task(sandbox.run(["hang"], **listener))
            await asyncio.to_thread(engine_log.wait_for, "hanging")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(engine_log.wait_for, "cancelled")
            assert (await sandbox.run(["print", "next"])).stdout == "next\n"

    asyncio.run(use())


@pytest.mark.parametrize("listener", ["", ", on_stdout=len"])
def test_ctrl_c_cancels_the_step_and_ends_the_program_as_ever(engine_log, listener):
    source = f"import stepbox\nwith stepbox.Sandbox() as sandbox:\n    sandbox.run(['hang']{listener})\n"
    with subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True) as program:
        try:
            engine_log.wait_for("hanging")
            program.send_signal(signal.SIGINT)
            _, error = program.communicate(timeout=30)
        finally:
            program.kill()
    assert program.returncode == -signal.SIGINT
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert engine_log.wait_for("cancelled")
    assert engine_log.wait_for("stopped")


def wait_for_the_main_thread_to_wait():
    """Until its call is begun: an interrupt that meets gRPC before that makes it forget the call (`docs/notes.md`)."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        frame = sys._current_frames()[threading.main_thread().ident]
        # gRPC has the call in this variable once it is begun, and takes no signal before it waits.
        if frame.f_code.co_name == "_blocking" and "call" in frame.f_locals:
            return
        time.sleep(0.001)
    raise AssertionError("the main thread waits for no call")


def test_ctrl_c_cancels_the_step_though_its_traceback_is_kept(engine_log):
    def interrupt():
        engine_log.wait_for("hanging")
        wait_for_the_main_thread_to_wait()
        os.kill(os.getpid(), signal.SIGINT)

    with stepbox.Sandbox() as sandbox:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt) as kept:
            sandbox.run(["hang"])
        engine_log.wait_for("cancelled")
        assert kept.value.__traceback__ is not None
        assert sandbox.run(["print", "next"]).success


def test_options_that_are_refused_hold_no_engine(fresh_engine):
    kept = []
    for make in (
        lambda: stepbox.Sandbox(memory_mb=1),
        lambda: asyncio.run(stepbox.AsyncSandbox(memory_mb=1).__aenter__()),
    ):
        with pytest.raises(stepbox.SandboxError) as raised:
            make()
        kept.append(raised.value)
    assert fresh_engine._users == 0
