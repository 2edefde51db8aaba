from __future__ import annotations

import dataclasses

import pytest

from stepbox import ExecutionResult, FileChange, Limit, SandboxError, SandboxFault, Usage
from stepbox import _convert as convert
from stepbox._pb import sandbox_pb2 as pb


def test_success_is_exit_0_and_no_fault():
    assert ExecutionResult(exit_code=0)
    assert not ExecutionResult(exit_code=1)
    assert not ExecutionResult(exit_code=0, fault=SandboxFault("killed", "by whom is not known"))


def test_bytes_that_are_no_text_are_kept_as_bytes_and_shown_as_replacement_characters():
    result = ExecutionResult(stdout_bytes=b"a\xffb")
    assert result.stdout_bytes == b"a\xffb"
    assert result.stdout == "a\ufffdb"


def test_stderr_is_the_codes_own_then_the_notes():
    result = ExecutionResult(code_stderr_bytes=b"own", runtime_notes=["one", "two"])
    assert result.stderr == "own\none\ntwo\n"
    assert result.code_stderr == "own"
    assert ExecutionResult(code_stderr_bytes=b"own").stderr == "own"


def test_the_marked_text_says_how_much_was_cut_and_where():
    result = ExecutionResult(
        stdout_bytes=b"headtail", stdout_head_bytes=4, stdout_total_bytes=108, truncated_stdout=True
    )
    assert result.marked_stdout == "head\n[100 bytes cut]\ntail"
    assert result.stdout == "headtail"
    assert result.truncated


def test_a_repr_is_never_longer_than_500_characters():
    huge = b"\xff\x00" * 100_000
    assert len(repr(ExecutionResult(stdout_bytes=huge, code_stderr_bytes=huge, exit_code=1))) <= 500


def test_check_gives_the_result_back_or_raises_with_it():
    good = ExecutionResult()
    assert good.check() is good
    bad = ExecutionResult(exit_code=1, code_stderr_bytes=b"Traceback\nValueError: no\n")
    with pytest.raises(SandboxError, match="exit code 1: ValueError: no") as raised:
        bad.check()
    assert raised.value.result is bad
    with pytest.raises(SandboxError, match="oom: the facts"):
        ExecutionResult(exit_code=137, fault=SandboxFault("oom", "the facts")).check()


def test_a_result_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ExecutionResult().exit_code = 3


def test_every_fact_of_the_wire_is_in_the_result():
    message = pb.StepResult(
        step_id="s1",
        runtime_notes=["a note"],
        exit_code=137,
        signal=9,
        duration_us=2500,
        fault=pb.Fault(type=pb.FAULT_TYPE_ESCAPE_BLOCKED, message="m", syscall="bpf", syscall_args=[1], pid=3),
        files_truncated=True,
        files_shared=True,
        files_tracked=True,
        usage=pb.Usage(cpu_ms=0, startup_us=1500),
        limits=[pb.Limit(resource=pb.RESOURCE_PIDS, max=9, enforced_by=pb.ENFORCED_BY_CGROUP2)],
        isolation=["seccomp"],
        image_digest="sha256:x",
    )
    message.stdout.truncated, message.stdout.total_bytes, message.stdout.head_bytes = True, 9, 1
    change = pb.FileChange(
        path=b"n\xff",
        change=pb.CHANGE_KIND_RENAMED,
        kind=pb.FILE_KIND_SYMLINK,
        size=4,
        mode=0o777,
        old_path=b"o",
        host_risk="leaves the workspace",
        diff_reason="binary",
    )
    result = convert.result(message, b"ab", b"c", [change])
    assert result == ExecutionResult(
        stdout_bytes=b"ab",
        code_stderr_bytes=b"c",
        exit_code=137,
        signal=9,
        duration_ms=2.5,
        fault=SandboxFault("escape_blocked", "m", syscall="bpf", syscall_args=(1,), pid=3),
        files=[
            FileChange(
                path="n\udcff",
                change="renamed",
                kind="symlink",
                size=4,
                mode=0o777,
                old_path="o",
                path_bytes=b"n\xff",
                host_risk="leaves the workspace",
                diff_reason="binary",
            )
        ],
        runtime_notes=["a note"],
        truncated_stdout=True,
        usage=Usage(cpu_ms=0, startup_ms=1.5),
        limits={"pids": Limit("pids", 9, "cgroup2")},
        isolation=["seccomp"],
        image_digest="sha256:x",
        step_id="s1",
        files_shared=True,
        files_truncated=True,
        stdout_total_bytes=9,
        stdout_head_bytes=1,
    )


def test_what_the_engine_does_not_know_is_none():
    usage = convert.usage(pb.Usage())
    assert set(dataclasses.asdict(usage).values()) == {None}
    assert convert.limits([pb.Limit(resource=pb.RESOURCE_CPU)])["cpu"].max is None


def test_a_fault_that_a_newer_engine_knows_is_told_not_hidden():
    message = pb.Fault(message="new")
    message.type = 99
    assert convert.fault(message).type == "unknown_99"
