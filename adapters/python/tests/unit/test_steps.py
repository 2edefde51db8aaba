from __future__ import annotations

import json
import os

import pytest

import stepbox


def test_code_and_programs_come_back_as_results(face):
    with face() as sandbox:
        result = sandbox.run_code("print hello")
        assert (result.stdout, result.exit_code, result.fault, result.success) == ("hello\n", 0, None, True)
        assert sandbox.run(["print", "there"]).stdout == "there\n"
        assert sandbox.limits["memory"].enforced_by == "cgroup1"
        assert sandbox.isolation == ["seccomp"]


def test_what_happens_to_the_code_is_returned(face):
    with face() as sandbox:
        failed = sandbox.run_code("fail 3")
        assert (failed.exit_code, failed.fault, bool(failed)) == (3, None, False)
        stopped = sandbox.run_code("fault oom")
        assert (stopped.fault.type, stopped.exit_code, stopped.signal) == ("oom", 137, 9)
        assert stopped.stderr == "own\na note\n"
        blocked = sandbox.run_code("blocked")
        assert (blocked.fault.type, blocked.fault.syscall, blocked.fault.pid) == ("escape_blocked", "mount", 7)


def test_a_reply_that_carries_a_part_is_completed_unseen(face, engine_log):
    with face() as sandbox:
        result = sandbox.run(["big", "5000001", "1048577"])
        assert result.stdout_bytes == b"a" * 5_000_001
        assert result.stderr_bytes == b"b" * 1_048_577
        result = sandbox.run(["many", "12001"])
        assert [change.path for change in result.files] == [f"f{index}" for index in range(12_001)]
        assert len(engine_log.events("ReleaseStep")) == 2
        sandbox.run(["big", "1048576", "0"])
        assert len(engine_log.events("ReleaseStep")) == 2


def test_what_a_call_may_change_reaches_the_engine(face):
    with face(timeout_s=7) as sandbox:
        call = {"env": {"A": "1"}, "stdin": "in", "cwd": "sub", "memory_mb": 64, "timeout_s": 2.5}
        seen = json.loads(sandbox.run_code("echo", args=["x", b"y"], **call).stdout)
        assert {name: seen[name] for name in call} == call
        assert seen["args"] == ["x", "y"]
        assert seen["token"] == "Bearer fake-token"


def test_the_deadline_of_a_call_is_its_time_and_that_of_the_queue(face):
    with face(timeout_s=7) as sandbox:
        assert 41 <= json.loads(sandbox.run(["echo"]).stdout)["deadline"] <= 44
        assert 136 <= json.loads(sandbox.run(["echo"], timeout_s=102).stdout)["deadline"] <= 140


def test_a_step_that_is_listened_to_has_no_deadline_that_counts_the_listeners_time(face):
    with face(timeout_s=7) as sandbox:
        for run in (sandbox.run_code, lambda *words, **call: sandbox.run(list(words), **call)):
            for listener in ("on_stdout", "on_stderr"):
                seen = json.loads(run("echo", timeout_s=2, **{listener: lambda piece: None}).stdout)
                assert (seen["deadline"], seen["timeout_s"]) == (None, 2)


def test_output_is_told_as_it_comes(face):
    with face() as sandbox:
        out, err = [], []
        result = sandbox.run_code("print end", on_stdout=out.append, on_stderr=err.append)
        assert (out, err, result.stdout) == ([b"piece0", b"piece2"], [b"piece1"], "end\n")
        only = []
        assert sandbox.run(["print", "end"], on_stderr=only.append).success
        assert only == [b"piece1"]


def test_an_awaitable_listener_is_awaited():
    import asyncio

    heard = []

    async def listen(piece):
        await asyncio.sleep(0)
        heard.append(piece)

    async def main():
        async with stepbox.AsyncSandbox() as sandbox:
            await sandbox.run_code("print end", on_stdout=listen)

    asyncio.run(main())
    assert heard == [b"piece0", b"piece2"]


def test_a_listener_that_is_no_function_is_refused_and_nothing_runs(face, engine_log):
    said = ["must be a function that takes bytes, got str 'x'", "must be a function that takes bytes, got int 3"]
    with face() as sandbox:
        for call, what in ((sandbox.run, ["hang"]), (sandbox.run_code, "hang")):
            with pytest.raises(stepbox.SandboxError) as raised:
                call(what, on_stdout="x", on_stderr=3)
            violations = [(violation.field, violation.message) for violation in raised.value.violations]
            assert violations == [("on_stdout", said[0]), ("on_stderr", said[1])]
    assert engine_log.events("hanging") == []


def test_an_error_of_a_listener_ends_the_step_and_is_raised(face, engine_log):
    def fail(piece):
        raise RuntimeError("listener")

    with face() as sandbox:
        with pytest.raises(RuntimeError, match="listener"):
            sandbox.run_code("hang", on_stdout=fail)
        assert sandbox.run(["print", "next"]).success


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda sandbox: sandbox.run("ls -l"), "got str 'ls -l'; for a shell: run_code('ls -l', language=\"bash\")"),
        (lambda sandbox: sandbox.run([]), "names no program"),
        (lambda sandbox: sandbox.run([""]), "names no program"),
        (lambda sandbox: sandbox.run(["a\0b"]), "NUL"),
        (lambda sandbox: sandbox.run([1]), "must hold str, bytes or paths, got int 1"),
        (lambda sandbox: sandbox.run_code("a\0b"), "NUL"),
        (lambda sandbox: sandbox.run_code(b"print"), "code: must be a str, got bytes"),
        (lambda sandbox: sandbox.run_code("x", args="ab"), 'args: must be a list such as ["a", "b"]'),
        (lambda sandbox: sandbox.run_code("x", env={"A": 1}, timeout_s="3"), "timeout_s: must be a number"),
        (lambda sandbox: sandbox.run_code("x", memory_mb=1.5), "memory_mb: must be a whole number"),
        (lambda sandbox: sandbox.run_code("x", "cobol"), "language: unknown language cobol"),
        (lambda sandbox: sandbox.run_code("#" * (8 << 20)), "do not fit into a call of at most"),
        (lambda sandbox: sandbox.run(["cat"], stdin=b"x" * (9 << 20)), "use write_file and read it there"),
        (lambda sandbox: sandbox.run_code("x", stdin=3), "stdin: must be bytes or str"),
    ],
)
def test_a_wrong_call_is_refused_with_the_right_spelling(face, call, said):
    with face() as sandbox:
        with pytest.raises(stepbox.SandboxError) as raised:
            call(sandbox)
        assert said in str(raised.value)
        assert raised.value.violations


def test_an_engine_that_is_full_says_when_to_try_again(face):
    with face() as sandbox:
        with pytest.raises(stepbox.EngineError, match="all slots are in use") as raised:
            sandbox.run(["full"])
        assert (raised.value.code, raised.value.retry_after_s) == ("RESOURCE_EXHAUSTED", 1.5)


def test_run_code_alone_is_a_session_of_one_step(engine_log):
    assert stepbox.run_code("print once", memory_mb=64).stdout == "once\n"
    assert len(engine_log.events("CreateSession")) == len(engine_log.events("CloseSession")) == 1


def test_the_engine_gets_no_secret_of_the_callers_environment(monkeypatch, fresh_engine, face):
    monkeypatch.setenv("API_KEY", "secret")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    with face() as sandbox:
        seen = json.loads(sandbox.run(["echo"]).stdout)["environment"]
    assert "API_KEY" not in seen
    assert seen["XDG_CONFIG_HOME"] == "/somewhere"
    assert seen["PATH"] == os.environ["PATH"]
