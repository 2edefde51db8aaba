from __future__ import annotations

from pathlib import Path

import pytest

from stepbox import EngineError
from stepbox import _discovery as discovery


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No engine in any place but those that a test makes."""
    scripts, build = tmp_path / "scripts", tmp_path / "target" / "debug" / "stepbox"
    monkeypatch.setattr(discovery, "_script_directories", lambda: [scripts])
    monkeypatch.setattr(discovery, "_checkout_builds", lambda: [build])
    return tmp_path


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_first_place_that_has_it_wins(nowhere):
    environment = {"PATH": str(nowhere / "bin")}
    build = program(nowhere / "target" / "debug" / "stepbox")
    assert discovery.find_binary(environment) == build
    on_path = program(nowhere / "bin" / "stepbox")
    assert discovery.find_binary(environment) == on_path
    script = program(nowhere / "scripts" / "stepbox")
    assert discovery.find_binary(environment) == script
    named = program(nowhere / "elsewhere")
    assert discovery.find_binary({**environment, "STEPBOX_BIN": str(named)}) == named


@pytest.mark.parametrize("value", ["", "/nonexistent", "/tmp", "/dev/null"])
def test_a_wrong_STEPBOX_BIN_is_an_error_and_never_passed_over(nowhere, value):
    program(nowhere / "scripts" / "stepbox")
    with pytest.raises(EngineError, match="STEPBOX_BIN names no executable file"):
        discovery.find_binary({"STEPBOX_BIN": value, "PATH": ""})


def test_when_it_is_nowhere_every_place_is_named(nowhere):
    with pytest.raises(EngineError) as raised:
        discovery.find_binary({"PATH": f"{nowhere}/a:{nowhere}/b"})
    for place in ("scripts/stepbox", "a/stepbox", "b/stepbox", "target/debug/stepbox"):
        assert str(nowhere / place) in str(raised.value)
    assert "STEPBOX_BIN" in str(raised.value)


def test_the_checkout_is_one_of_the_places():
    builds = discovery._checkout_builds()
    assert [path.parts[-3:] for path in builds] == [("target", name, "stepbox") for name in ("release", "debug")]


def test_an_address_names_a_socket_or_a_port():
    assert discovery.find_address({}) is None
    assert discovery.find_address({"STEPBOX_ADDRESS": ""}) is None
    unix = discovery.find_address({"STEPBOX_ADDRESS": "unix:/run/x/engine.sock"})
    assert (unix.target, unix.token_file, unix.is_unix) == ("unix:/run/x/engine.sock", Path("/run/x/token"), True)
    assert discovery.address_of("unix:///run/x/s", None).target == "unix:/run/x/s"
    assert discovery.address_of("/run/x/s", "/t").token_file == Path("/t")
    tcp = discovery.find_address({"STEPBOX_ADDRESS": "127.0.0.1:50051", "STEPBOX_TOKEN_FILE": "/t"})
    assert (tcp.target, tcp.token_file, tcp.is_unix) == ("127.0.0.1:50051", Path("/t"), False)


@pytest.mark.parametrize("value", ["localhost", "unix:relative", "http://localhost:1", ":1", "host:port"])
def test_a_wrong_address_is_refused_with_the_right_spelling(value):
    with pytest.raises(EngineError, match="must be unix:/absolute/path or host:port"):
        discovery.find_address({"STEPBOX_ADDRESS": value})
