from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import stepbox
from stepbox import _options
from stepbox._pb import sandbox_pb2 as pb


def spec_of(**options):
    spec, violations = _options.build_spec(options, same_host=True)
    assert violations == []
    return spec


def mistake(**options):
    _, violations = _options.build_spec(options, same_host=True)
    (violation,) = violations
    assert violation.field in options
    return violation.message


@pytest.mark.parametrize("kind", [stepbox.Sandbox, stepbox.AsyncSandbox])
def test_an_unknown_option_is_refused_with_the_right_ones(kind):
    with pytest.raises(TypeError, match=r"no option 'memory'; did you mean 'memory_mb'.*tmpfs") as raised:
        kind(memory=256)
    assert kind.__name__ in str(raised.value)
    with pytest.raises(TypeError):
        kind("python:3.12-slim")


def test_an_option_left_out_is_left_out_of_the_spec():
    spec = _options.build_spec({}, same_host=False)[0]
    assert spec == pb.SandboxSpec()


def test_none_for_a_limit_is_uncapped_said_out_loud():
    spec = spec_of(memory_mb=None, pids=None, workspace_max_bytes=None)
    assert spec.memory_mb.uncapped
    assert spec.pids.uncapped
    assert spec.workspace_max_bytes.uncapped
    assert spec_of(memory_mb=128).memory_mb.max == 128


def test_an_empty_collection_is_not_the_same_as_none():
    spec = spec_of(tmpfs={}, cap_drop=(), egress_allow=[], protect=())
    assert (spec.tmpfs_set, spec.cap_drop_set, spec.egress_allow_set, spec.protect_set) == (True,) * 4
    spec = spec_of(tmpfs=None, egress_allow=None)
    assert (spec.tmpfs_set, spec.egress_allow_set) == (False, False)


def test_mounts_and_tmpfs_travel_as_they_are_written():
    spec = spec_of(mounts={"/in": ("/box/in", "ro"), Path("/out"): "/box/out"}, tmpfs={"/scratch": "1g"})
    assert list(spec.mounts) == [
        pb.Mount(source=b"/in", target=b"/box/in", read_only=True),
        pb.Mount(source=b"/out", target=b"/box/out"),
    ]
    assert list(spec.tmpfs) == [pb.Tmpfs(target=b"/scratch", size="1g")]


def test_a_relative_workspace_is_the_callers_and_a_relative_mount_is_the_engines_to_refuse(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert spec_of(workspace="ws").workspace == str(tmp_path / "ws").encode()
    assert spec_of(mounts={"in": "/box"}).mounts[0].source == b"in"


def test_the_network_is_a_word_on_the_wire():
    assert spec_of(network=True).network == pb.NETWORK_HOST
    assert spec_of(network=False).network == pb.NETWORK_NONE
    assert spec_of(network="internet").network == pb.NETWORK_INTERNET


def test_the_callers_interpreter_is_sent_for_the_host_image_alone():
    spec = spec_of()
    assert spec.interpreter.executable == os.path.abspath(sys.executable).encode()  # noqa: PTH100 - it resolves no link
    assert sys.prefix.encode() in spec.interpreter.prefixes
    assert sys.base_prefix.encode() in spec.interpreter.prefixes
    assert not spec_of(image="python:3.12-slim").HasField("interpreter")
    assert not _options.build_spec({}, same_host=False)[0].HasField("interpreter")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory_mb": "256"}, "must be a whole number, or None for no cap, got str '256'"),
        ({"memory_mb": True}, "must be a whole number"),
        ({"pids": -1}, "must be a whole number from 0, got -1"),
        ({"pids": 2**64}, "must be a whole number from 0 to 18446744073709551615, got 18446744073709551616"),
        ({"pids": 10**5000}, "got one that is too long to be written"),
        ({"user": 10**5000}, "got one that is too long to be written"),
        ({"cpus": "2"}, "must be a number, got str '2'"),
        ({"timeout_s": None}, "must be a finite number of seconds above 0, got None"),
        ({"network": "yes"}, 'must be True, False, "none", "host" or "internet"'),
        ({"egress_allow": "pypi.org"}, 'must be a list of str such as ["a", "b"], got str \'pypi.org\''),
        ({"mounts": ["/a:/b"]}, 'must be {"/host/dir": "/box/dir"} or {"/host/dir": ("/box/dir", "ro")}'),
        ({"mounts": {"/a": ("/b", "read")}}, 'the mode of \'/a\' must be "ro" or "rw"'),
        ({"mounts": {"/a": ("/b",)}}, 'must be {"/host/dir": "/box/dir"}'),
        ({"mounts": {"/a": "/b:ro"}}, 'the mode is apart: {\'/a\': ("/b", "ro")}'),
        ({"tmpfs": "64m"}, 'must be {"/path": "64m"}, with a unit of k, m or g, got str'),
        ({"tmpfs": ["/a"]}, 'must be {"/path": "64m"}'),
        ({"tmpfs": {"/a": 64}}, 'must be {"/path": "64m"}, with a unit of k, m or g, got \'/a\': int 64'),
        ({"tmpfs": {"/a": True}}, 'must be {"/path": "64m"}'),
        ({"env": ["A=1"]}, 'must be a mapping such as {"NAME": "value"}'),
        ({"env": {"A": 1}}, 'must map str to str such as {"NAME": "1"}, got \'A\': int 1'),
        ({"env": {"A": "\udcff"}}, "must be text that UTF-8 can hold"),
        ({"deps_readonly": 1}, "must be True or False, got int 1"),
        ({"security_profile": "strict"}, "must be 'default' or 'untrusted'"),
        ({"cap_drop": "ALL"}, "must be a list of str"),
        ({"workspace": 3}, "must be a path, got int 3"),
        ({"workspace": ""}, "an empty path"),
        ({"user": 1.5}, "must be a name or a uid"),
        ({"prewarm": 2**32}, "must be at most"),
        ({"image": ""}, "must not be empty"),
        ({"image": None}, "the name of an image is needed"),
    ],
)
def test_a_wrong_shape_is_refused_with_the_right_spelling(options, said):
    assert said in mistake(**options)


def test_a_long_value_is_not_repeated_in_full():
    assert len(mistake(env="x" * 10_000)) < 200


def test_mistakes_of_shape_and_of_value_are_reported_together():
    with pytest.raises(stepbox.MountRefused) as raised:
        stepbox.Sandbox(memory_mb=1, env="A", mounts={"relative": "/box"}, files=["a"])
    assert {violation.field for violation in raised.value.violations} == {
        "memory_mb",
        "env",
        "mounts[0].source",
        "files",
    }
    with pytest.raises(stepbox.SandboxError) as raised:
        stepbox.Sandbox(env="A", cpus="2")
    assert [violation.field for violation in raised.value.violations] == ["env", "cpus"]


def test_a_refused_workspace_is_a_refused_mount():
    with pytest.raises(stepbox.MountRefused, match="workspace"):
        stepbox.Sandbox(workspace="/etc")


def test_the_asynchronous_face_checks_when_it_is_entered():
    import asyncio

    async def enter():
        async with stepbox.AsyncSandbox(memory_mb=1, env="A"):
            raise AssertionError("entered")

    with pytest.raises(stepbox.SandboxError) as raised:
        asyncio.run(enter())
    assert {violation.field for violation in raised.value.violations} == {"memory_mb", "env"}
