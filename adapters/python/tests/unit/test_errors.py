from __future__ import annotations

import errno

import pytest

from stepbox import EngineError, MountRefused, SandboxError, SessionLost
from stepbox._pb import status_pb2
from stepbox._status import classify


def details(**messages):
    status = status_pb2.Status()
    for name, message in messages.items():
        status.details.add(type_url=f"type.googleapis.com/google.rpc.{name}", value=message.SerializeToString())
    return status.SerializeToString()


def violations(*fields):
    bad = status_pb2.BadRequest()
    for field in fields:
        bad.field_violations.add(field=field, description="is wrong")
    return bad


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", SandboxError),
        ("FAILED_PRECONDITION", SandboxError),
        ("ALREADY_EXISTS", SandboxError),
        ("NOT_FOUND", SessionLost),
        ("RESOURCE_EXHAUSTED", EngineError),
        ("UNAVAILABLE", EngineError),
        ("DEADLINE_EXCEEDED", EngineError),
        ("UNAUTHENTICATED", EngineError),
        ("UNIMPLEMENTED", EngineError),
        ("INTERNAL", EngineError),
        ("CANCELLED", EngineError),
    ],
)
def test_each_code_has_its_class(code, kind):
    error = classify(code, "the text", b"")
    assert type(error) is kind
    assert "the text" in str(error)
    if isinstance(error, EngineError):
        assert error.code == code


def test_all_violations_are_in_one_error():
    error = classify("INVALID_ARGUMENT", "", details(BadRequest=violations("pids", "cpus")))
    assert type(error) is SandboxError
    assert [violation.field for violation in error.violations] == ["pids", "cpus"]
    assert str(error) == "pids: is wrong; cpus: is wrong"


def test_a_refused_mount_has_a_class_of_its_own():
    refused = status_pb2.ErrorInfo(reason="MOUNT_REFUSED")
    error = classify("INVALID_ARGUMENT", "bad", details(ErrorInfo=refused, BadRequest=violations("pids", "mounts")))
    assert type(error) is MountRefused
    assert len(error.violations) == 2


def test_a_step_that_is_no_longer_kept_is_not_a_lost_session():
    gone = status_pb2.ErrorInfo(reason="NO_STEP")
    assert type(classify("NOT_FOUND", "no step", details(ErrorInfo=gone))) is EngineError


def test_what_mends_the_host_is_told_once():
    lacking = status_pb2.ErrorInfo(reason="HOST_LACKS", metadata={"mend": "sysctl -w x=1"})
    assert str(classify("FAILED_PRECONDITION", "x is off", details(ErrorInfo=lacking))) == "x is off; sysctl -w x=1"
    assert str(classify("FAILED_PRECONDITION", "run sysctl -w x=1", details(ErrorInfo=lacking))) == "run sysctl -w x=1"


@pytest.mark.parametrize(
    ("reason", "builtin", "number"),
    [
        ("not_found", FileNotFoundError, errno.ENOENT),
        ("is_directory", IsADirectoryError, errno.EISDIR),
        ("not_a_directory", NotADirectoryError, errno.ENOTDIR),
        ("permission_denied", PermissionError, errno.EACCES),
        ("exists", FileExistsError, errno.EEXIST),
        ("too_large", OSError, errno.EFBIG),
        ("not_a_file", OSError, errno.EINVAL),
        ("no_space", OSError, errno.ENOSPC),
        ("other", OSError, errno.EIO),
        ("invalid_path", ValueError, None),
    ],
)
@pytest.mark.parametrize("code", ["NOT_FOUND", "INVALID_ARGUMENT", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"])
def test_a_file_error_is_ours_and_the_builtin_of_the_same_meaning(code, reason, builtin, number):
    error = classify(code, "the text", details(ErrorInfo=status_pb2.ErrorInfo(reason=reason)))
    assert isinstance(error, SandboxError)
    assert isinstance(error, builtin)
    assert error.reason == reason
    assert str(error) == "the text"
    assert getattr(error, "errno", None) == number


def test_a_kernel_that_could_not_start_bears_its_fault_and_one_that_is_not_there_is_no_lost_session():
    failed = status_pb2.ErrorInfo(reason="KERNEL_NOT_STARTED", metadata={"fault": "oom", "fault_message": "too much"})
    error = classify("FAILED_PRECONDITION", "the text", details(ErrorInfo=failed))
    assert (type(error), error.reason, str(error.fault)) == (SandboxError, "KERNEL_NOT_STARTED", "oom: too much")
    gone = classify("NOT_FOUND", "no kernel", details(ErrorInfo=status_pb2.ErrorInfo(reason="NO_KERNEL")))
    assert (type(gone), gone.reason, gone.fault) == (SandboxError, "NO_KERNEL", None)


def test_when_to_try_again_is_told():
    retry = status_pb2.RetryInfo()
    retry.retry_delay.seconds, retry.retry_delay.nanos = 1, 500_000_000
    assert classify("RESOURCE_EXHAUSTED", "full", details(RetryInfo=retry)).retry_after_s == 1.5
    assert classify("RESOURCE_EXHAUSTED", "full", b"").retry_after_s is None


def test_details_that_cannot_be_read_hide_nothing():
    error = classify("INVALID_ARGUMENT", "the text", b"\xff\xff\xff")
    assert type(error) is SandboxError
    assert str(error) == "the text"
