"""The client and the engine together: death of either, cancelling, size, concurrency, paths, loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from evidence import Traces, changes, children, eventually, is_alive

import stepbox
from stepbox import _operations

HOLD = """
import sys, stepbox
with stepbox.Sandbox() as sandbox:
    print(sandbox._lease.session.engine.process.pid, flush=True)
    sandbox.run(["sleep", "{number}"])
"""


@contextlib.contextmanager
def hold(marker, **options):
    """A client that is in a step, and the pid of its engine."""
    command = [sys.executable, "-c", HOLD.format(number=marker.number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as client:
        try:
            engine = int(client.stdout.readline())
            eventually(lambda: any("sleep" in line and "stepbox" not in line for line in marker.running()))
            yield client, engine
        finally:
            client.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_client_that_is_killed_takes_everything_with_it(marker, number):
    with hold(marker, stderr=subprocess.DEVNULL) as (client, engine):
        client.send_signal(number)
        client.wait()
        eventually(lambda: not is_alive(engine) and marker.running() == [])


def test_an_engine_that_is_killed_in_a_step_leaves_nothing_and_is_told(face, marker):
    with face() as sandbox:
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(sandbox.sh, f"sleep {marker.number}")
            eventually(marker.running)
            traces = Traces(sandbox)
            os.kill(traces.pid, signal.SIGKILL)
            with pytest.raises(stepbox.SessionLost, match=r"engine is gone.*private workspace went with it") as lost:
                call.result()
        assert lost.value.workspace_survived is False
        eventually(lambda: marker.running() == [] and traces.left() == [])
        sandbox.open()
        assert sandbox.py("print(1)").stdout == "1\n"


@pytest.mark.parametrize("below", ["launcher", "realms"])
def test_what_makes_sandboxes_may_be_killed_and_the_next_sandbox_works(face, marker, below):
    with face() as sandbox:
        engine = sandbox._lease.session.engine.process.pid
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(sandbox.sh, f"sleep {marker.number}")
            eventually(marker.running)
            victims = children(engine)
            if below == "realms":
                victims = [realm for launcher in victims for realm in children(launcher)]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            with pytest.raises(stepbox.StepboxError):
                call.result()
        eventually(lambda: marker.running() == [])
        if below == "launcher":
            eventually(lambda: not is_alive(engine))
        with face() as another:
            assert another.run(["true"]).success


def test_the_engines_program_cannot_be_written_to_from_a_sandbox(face):
    # A script may name the program of the process that executes it as its interpreter.
    with face() as sandbox:
        engine = sandbox._lease.session.engine.process.pid
        sandbox.write_file("script", "#!/proc/self/exe\n", mode=0o755)
        sandbox.run(["./script"])
        [launcher] = children(engine)
        assert os.statvfs(f"/proc/{launcher}/exe").f_flag & os.ST_RDONLY
        assert not os.statvfs(f"/proc/{engine}/exe").f_flag & os.ST_RDONLY


def test_cancelling_ends_the_step_and_the_next_call_runs(marker):
    async def use():
        async with stepbox.AsyncSandbox() as sandbox:
            task = asyncio.create_task(sandbox.run_code(f"echo hi; sleep {marker.number}", "bash"))
            await asyncio.to_thread(eventually, marker.running)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: marker.running() == [])
            assert (await sandbox.run_code("print(1)")).stdout == "1\n"

    asyncio.run(use())


def test_cancelling_at_any_moment_is_harmless():
    async def use():
        async with stepbox.AsyncSandbox() as sandbox:
            for _ in range(30):
                task = asyncio.create_task(sandbox.run(["true"]))
                await asyncio.sleep(random.random() * 0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert (await sandbox.run_code("print(1)")).stdout == "1\n"

    asyncio.run(use())


def test_ctrl_c_ends_the_step_and_one_is_enough(marker):
    with hold(marker, stderr=subprocess.PIPE) as (client, _):
        client.send_signal(signal.SIGINT)
        _, error = client.communicate()
    assert client.returncode == -signal.SIGINT
    assert error.rstrip().endswith("KeyboardInterrupt")
    eventually(lambda: marker.running() == [])


def test_output_is_told_in_order_as_it_comes(face):
    with face() as sandbox:
        pieces = []
        result = sandbox.py(
            "for i in range(2000): print(i, flush=True)",
            on_stdout=pieces.append,
        )
        assert b"".join(pieces) == result.stdout_bytes
        assert result.stdout == "".join(f"{i}\n" for i in range(2000))


def test_a_slow_reader_changes_no_result(face):
    with face(timeout_s=60) as sandbox:
        heard = []

        def slowly(piece):
            heard.append(len(piece))
            time.sleep(0.001)

        result = sandbox.sh("head -c 20000000 /dev/zero | tr '\\0' a", on_stdout=slowly)
        assert len(result.stdout_bytes) == 20_000_000
        assert heard


def test_a_listener_that_takes_longer_than_the_step_may_loses_no_result(face, monkeypatch):
    # What the deadline of a call allows beyond the step's own time.
    monkeypatch.setattr(_operations, "QUEUE_S", 0.0)
    monkeypatch.setattr(_operations, "GRACE_S", 0.0)
    with face(timeout_s=3) as sandbox:
        heard = []

        def late(piece):
            if not heard:
                time.sleep(3.5)
            heard.append(piece)

        result = sandbox.sh("head -c 8000000 /dev/zero", on_stdout=late)
        assert (result.exit_code, result.fault, len(result.stdout_bytes)) == (0, None, 8_000_000)
        assert heard


@pytest.mark.parametrize("size", [4_194_303, 4_194_304, 4_194_305, 30_000_000])
def test_a_reply_may_be_of_any_size(sandbox, size):
    result = sandbox.sh(f"head -c {size} /dev/zero | tr '\\0' a")
    assert len(result.stdout_bytes) == size
    assert not result.truncated


def test_a_file_may_be_of_any_size(sandbox, tmp_path):
    data = os.urandom(20 << 20)
    sandbox.write_file("b", data)
    assert sandbox.read_file("b") == data
    sandbox.download("b", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == data
    sandbox.upload(tmp_path / "b", "c")
    assert sandbox.run(["cmp", "b", "c"]).exit_code == 0


def test_a_directory_that_cannot_be_read_hides_nothing_beside_it(sandbox):
    result = sandbox.sh("mkdir closed; touch closed/a open; chmod 300 closed")
    assert sandbox.list_files() == ["open"]
    assert "closed/a" in changes(result)
    sandbox.sh("chmod 700 closed")
    assert sandbox.list_files() == ["closed/a", "open"]


def test_a_long_list_of_files_fits(sandbox):
    result = sandbox.py("for i in range(8000): open('n%06d' % i + 'x' * 200, 'w').close()", timeout_s=60)
    assert result.files_truncated or len(changes(result)) == 8000
    assert len(sandbox.list_files()) == 8000


def test_concurrent_calls_in_one_session_do_not_mix():
    with stepbox.Sandbox() as sandbox, ThreadPoolExecutor(50) as pool:

        def call(index):
            return sandbox.run_code(f"import os; print({index}, os.environ['ID'])", env={"ID": str(index)})

        results = list(pool.map(call, range(100)))
        assert [result.stdout for result in results] == [f"{index} {index}\n" for index in range(100)]


def test_many_calls_leak_nothing():
    def descriptors(pid):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    def mounts(pid):
        return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()

    with stepbox.Sandbox() as sandbox:
        engine = sandbox._lease.session.engine.process.pid
        for _ in range(20):
            sandbox.run(["true"])
        # While the next sandbox is being made there are fewer.
        before = max(descriptors(engine) for _ in range(20) if time.sleep(0.01) is None), mounts(engine)
        for index in range(100):
            assert sandbox.run_code(f"print({index})").stdout == f"{index}\n"
            if index % 10 == 0:
                sandbox.run(["sleep", "60"], timeout_s=0.1)
                sandbox.run(["no_such_command_xyz"])
        # A slot more than before is let go after a while.
        eventually(lambda: descriptors(engine) <= before[0] + 2)
        assert mounts(engine) == before[1]


def test_a_low_limit_of_descriptors_is_no_limit_of_sandboxes():
    source = (
        "import stepbox\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with stepbox.Sandbox() as sandbox, ThreadPoolExecutor(40) as pool:\n"
        "    done = pool.map(lambda _: sandbox.run(['sh', '-c', 'sleep 1; ulimit -n']), range(40))\n"
        "    print({(result.exit_code, result.fault, int(result.stdout) > 256) for result in done})\n"
    )
    command = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "{(0, None, True)}\n", done.stderr


PATHS = ["../x", "/etc/passwd", "d/../../x", "", ".", "..", "/", "a\0b", "l", "root/etc/passwd", "up/passwd", "//etc/x"]
REASONS = {"invalid_path", "is_directory", "not_found", "permission_denied", "not_a_directory"}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leaves_the_workspace_is_refused(sandbox, path):
    sandbox.sh("ln -s /etc/passwd l; ln -s / root; ln -s ../../../../etc up; mkdir d")
    for call in (lambda: sandbox.read_file(path), lambda: sandbox.write_file(path, b"pwn")):
        with pytest.raises(stepbox.SandboxError) as raised:
            call()
        assert raised.value.reason in REASONS
    assert b"pwn" not in Path("/etc/passwd").read_bytes()


def test_a_path_below_workspace_may_be_absolute(sandbox):
    sandbox.write_file("/workspace/a/b", "x")
    assert sandbox.read_file("a/b") == b"x"
    assert sandbox.list_files() == ["a/b"]


# Names that the client and the engine must judge alike, though both have the rule.
JUDGED = ["a/b", "/workspace/a", "./a", "a//b", "a/./b", "..a", "a..", "é" * 127, "d/" * 2000 + "x"]
JUDGED += [
    "",
    ".",
    "a/",
    "a/.",
    "/",
    "/workspace",
    "/workspace/",
    "//workspace/a",
    "/workspacex",
    "/etc/x",
    "..",
    "../x",
]
JUDGED += ["a/../b", "/workspace/../b", "a\0b", "a" * 256, "é" * 128, "d/" * 2048 + "x"]


def test_first_files_are_refused_by_the_client_where_the_engine_would():
    def reason(path):
        with stepbox.Sandbox() as sandbox:
            try:
                sandbox.write_file(path, "x")
            except stepbox.SandboxError as error:
                return error.reason
        return None

    for path in JUDGED:
        refused = reason(path)
        assert refused in (None, "invalid_path", "is_directory"), path
        if refused:
            with pytest.raises(stepbox.SandboxError, match="files: "):
                stepbox.Sandbox(files={path: "x"})
        else:
            with stepbox.Sandbox(files={path: "x"}) as sandbox:
                assert sandbox.read_file(path) == b"x"


def test_a_link_within_the_workspace_is_followed(sandbox):
    sandbox.sh("mkdir real && echo x > real/f && ln -s real latest")
    assert sandbox.read_file("latest/f") == b"x\n"
    sandbox.remove("latest")
    assert sandbox.read_file("real/f") == b"x\n"


def test_what_is_no_file_is_neither_opened_nor_waited_for(sandbox):
    sandbox.sh(
        "mkfifo p; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; mkdir d; truncate -s 1T big;"
        " ln -s /dev/zero z; ln -s /proc/self/mem m"
    )
    for name in ("p", "s", "d", "big", "z", "m"):
        with pytest.raises(stepbox.SandboxError) as raised:
            sandbox.read_file(name)
        assert raised.value.reason
    with pytest.raises(IsADirectoryError):
        sandbox.read_file("d")
    assert sandbox.py("print(1)").stdout == "1\n"


NAMES = ["a\nb", "-rf", "x';touch pwned;'", "$(touch pwned)", "a" * 255, "d/" + "é" * 100, " lead", "tab\t", b"bad\xff"]


def test_any_name_goes_there_and_back(sandbox):
    for name in NAMES:
        sandbox.write_file(name, b"1")
        assert sandbox.read_file(name) == b"1"
    listed = sandbox.list_files()
    assert len(listed) == len(set(listed)) == len(NAMES)
    with pytest.raises(stepbox.SandboxError):
        sandbox.write_file("a" * 256, b"1")


def test_missing_files_are_pythons_too(sandbox):
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("missing")
    with pytest.raises(FileNotFoundError):
        sandbox.remove("missing")
    assert not sandbox.exists("missing")


def test_moving_replaces_only_when_told(sandbox):
    sandbox.write_file("a", "1")
    sandbox.write_file("b", "2")
    with pytest.raises(FileExistsError):
        sandbox.move("a", "b")
    sandbox.move("a", "b", replace=True)
    assert (sandbox.read_file("b"), sandbox.exists("a")) == (b"1", False)


def test_one_object_works_in_two_loops_and_the_synchronous_face_within_one():
    sandbox = stepbox.AsyncSandbox()

    async def use():
        await sandbox.open()
        return (await sandbox.run_code("print(1)")).stdout

    async def within():
        with stepbox.Sandbox() as inner:
            return inner.run_code("print(2)").stdout

    assert (asyncio.run(use()), asyncio.run(use()), asyncio.run(within())) == ("1\n", "1\n", "2\n")
    asyncio.run(sandbox.close())


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("raise ValueError", 1), ("import os; os._exit(4)", 4), ("import sys; sys.exit(7)", 7)],
)
def test_a_script_that_closes_nothing_leaves_nothing(ending, code):
    source = (
        "import stepbox\nsandbox = stepbox.Sandbox().open()\nsandbox.run_code('1')\n"
        f"print(sandbox._lease.session.engine.process.pid, flush=True)\n{ending}"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == code
    eventually(lambda: not is_alive(int(done.stdout)))


@pytest.mark.parametrize("stdin", ["pipe", "closed"])
def test_the_callers_stdin_is_neither_read_nor_needed(stdin):
    source = "import stepbox; print(stepbox.run_code('tty; cat; echo hi', 'bash').stdout, end='')"
    command = [sys.executable, "-c", source]
    if stdin == "closed":
        command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    # The end that the program reads stays open: whoever reads would wait.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.read() == "not a tty\nhi\n"
    assert program.returncode == 0


def test_a_thread_that_ends_does_not_take_the_engine_with_it():
    with ThreadPoolExecutor(1) as pool:
        sandbox = pool.submit(lambda: stepbox.Sandbox().open()).result()
    with sandbox:
        assert sandbox.run_code("print(1)").stdout == "1\n"


def test_another_client_on_the_socket_names_localhost_as_its_authority():
    with stepbox.Sandbox() as sandbox:
        address = sandbox._lease.session.engine.address
        token = address.token_file.read_text()

        def info(authority):
            with grpc.insecure_channel(address.target, [("grpc.default_authority", authority)]) as channel:
                call = channel.unary_unary("/stepbox.v1.Sandbox/GetInfo")
                return call(b"", metadata=[("authorization", f"Bearer {token}")], timeout=20)

        assert info("localhost")
        with pytest.raises(grpc.RpcError) as refused:
            info(address.target.removeprefix("unix:"))
        assert refused.value.code() == grpc.StatusCode.INTERNAL


def test_run_code_alone_is_enough():
    result = stepbox.run_code("print(sum(range(100)))", memory_mb=128)
    assert (result.stdout, result.success) == ("4950\n", True)


def test_a_caller_with_realtime_priority_gives_none_to_the_code():
    script = """
import os, stepbox
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
except PermissionError:
    print("none")
else:
    with stepbox.Sandbox() as sandbox:
        result = sandbox.run_code("import os; print(os.sched_getscheduler(0) == os.SCHED_OTHER)").check()
        print(result.stdout, end="")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if done.stdout == "none\n":
        # An ordinary user may have none.
        assert os.getuid() != 0
        return
    assert done.stdout == "True\n"
