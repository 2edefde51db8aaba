"""Sessions that outlive the client that made them: names, attaching, their end, and the end of the engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from evidence import descendants, eventually, is_alive
from standing import standing_engine

import stepbox
from stepbox._discovery import find_binary


@pytest.fixture(autouse=True)
def engine():
    with standing_engine() as engine:
        yield engine


def client(code):
    """Another process that uses the same standing engine."""
    return subprocess.Popen([sys.executable, "-c", f"import stepbox\n{code}"], stdout=subprocess.PIPE, text=True)


def said(code):
    with client(code) as process:
        return process.communicate()[0]


def test_a_session_is_found_by_its_name_and_by_its_id(face):
    with face(name="work", resident=True, labels={"of": "test"}) as first:
        assert not first.attached
        assert first.sh("echo a > a; echo t > /tmp/t; sleep 1000 & true").success
        with face(name="work", resident=True) as second:
            assert (second.attached, second.id) == (True, first.id)
            assert second.sh("cat a /tmp/t; pgrep -c sleep").stdout == "a\nt\n1\n"
        found = stepbox.Sandbox.attach(first.id)
        assert found.attached
        assert found.read_text("a") == "a\n"
        found.close()
        listed = stepbox.sessions()
        assert [(info.name, info.resident, info.labels, info.ttl_s) for info in listed] == [
            ("work", True, {"of": "test"}, 3600.0)
        ]
        assert asyncio.run(stepbox.sessions_async())[0].id == first.id
        first.destroy()
    assert stepbox.sessions() == []


def test_closing_a_named_session_only_lets_go_of_it(face):
    with face(name="stays") as first:
        first.write_file("a", "b")
    with face(name="stays") as again:
        assert again.attached
        assert again.read_text("a") == "b"
        again.destroy()
    with face(name="stays") as fresh:
        assert not fresh.attached
        assert not fresh.exists("a")


def test_another_posture_under_the_name_is_refused_by_what_differs(face):
    with face(name="strict", pids=100), pytest.raises(stepbox.SandboxError, match="another timeout_s, env"):
        stepbox.Sandbox(name="strict", pids=100, env={"A": "1"}, timeout_s=7).open()


def test_files_are_written_by_who_makes_the_session_only(face):
    with face(name="files", files={"a": "1"}) as first:
        first.write_file("a", "2")
        with face(name="files", files={"a": "3"}) as second:
            assert second.read_text("a") == "2"


def test_of_fifty_racers_one_makes_it_and_the_others_get_it(engine):
    code = "s = stepbox.Sandbox(name='race', resident=True).open(); print(s.id, s.attached)"
    racers = [client(code) for _ in range(8)]

    def race(_):
        sandbox = stepbox.Sandbox(name="race", resident=True).open()
        try:
            return sandbox.id, str(sandbox.attached)
        finally:
            sandbox.close()

    with ThreadPoolExecutor(42) as pool:
        found = list(pool.map(race, range(42)))
    for racer in racers:
        with racer:
            found.append(tuple(racer.communicate()[0].split()))
    assert len({session for session, _ in found}) == 1
    assert sorted(attached for _, attached in found) == ["False"] + ["True"] * 49
    assert len(stepbox.sessions()) == 1


def test_a_client_that_is_killed_leaves_its_session_to_others(marker):
    code = f"""
s = stepbox.Sandbox(name="left", resident=True).open()
s.run_code("setsid -f sleep {marker.number}; echo a > /tmp/a", "bash")
print("ready", flush=True)
s.run(["sleep", "1000"])
"""
    with client(code) as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait()
    sandbox = stepbox.Sandbox.attach("left")
    if sandbox.limits["pids"].enforced_by in ("cgroup1", "cgroup2"):
        # Its step ended with it, and nothing else.
        assert sandbox.run(["cat", "/tmp/a"]).stdout == "a\n"
        eventually(lambda: len(marker.running()) == 1)
    sandbox.destroy()
    eventually(lambda: marker.running() == [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_the_engine(engine, marker, number):
    sandbox = stepbox.Sandbox(name="doomed", resident=True).open()
    assert sandbox.run_code(f"setsid -f sleep {marker.number}; sleep {marker.number} & true", "bash").success
    pid = engine.pid
    family = descendants(pid)
    eventually(lambda: len(marker.running()) == 2)
    os.kill(pid, number)
    eventually(lambda: not is_alive(pid) and marker.running() == [])
    eventually(lambda: not any(is_alive(process) for process in family))
    with pytest.raises(stepbox.SessionLost):
        sandbox.run(["true"])
    # Another one is started in its place, whatever the last one left.
    with stepbox.Sandbox(name="doomed", resident=True) as fresh:
        assert not fresh.attached
        assert fresh.run(["echo", "1"]).stdout == "1\n"
        fresh.destroy()


def test_a_session_that_is_idle_for_too_long_is_closed(face, marker):
    with face(name="idle", resident=True, ttl_s=1.0) as sandbox:
        # What an ended step left running does not keep it, a step that runs does.
        assert sandbox.sh(f"setsid -f sleep {marker.number}; sleep 2").success
        for _ in range(3):
            time.sleep(0.5)
            assert sandbox.run(["true"]).success
        eventually(lambda: stepbox.sessions() == [])
        eventually(lambda: marker.running() == [])
        with pytest.raises(stepbox.SessionLost):
            sandbox.run(["true"])


def test_a_list_of_sessions_keeps_none_of_them(face):
    with face(name="looked-at", ttl_s=1.0):
        eventually(lambda: stepbox.sessions() == [])


def test_a_lost_session_is_told_and_opened_anew_by_its_name(face):
    with face(name="gone") as sandbox:
        stepbox.Sandbox.attach("gone").destroy()
        with pytest.raises(stepbox.SessionLost):
            sandbox.run(["true"])
    with pytest.raises(stepbox.SessionLost, match="no session 'gone' lives"):
        stepbox.Sandbox.attach("gone")


def test_looking_for_a_session_starts_no_engine(engine):
    assert stepbox.sessions() == []
    with pytest.raises(stepbox.SessionLost):
        stepbox.Sandbox.attach("anything")
    assert engine.pid is None


def test_an_engine_of_another_version_is_told(monkeypatch):
    with stepbox.Sandbox(name="version") as sandbox:
        monkeypatch.setattr("stepbox._launch.__version__", "0.0.0")
        with pytest.raises(stepbox.EngineError, match=r"the standing engine at .* has version"):
            stepbox.sessions()
        monkeypatch.undo()
        sandbox.destroy()


def test_its_socket_and_token_are_the_users_alone(engine):
    with stepbox.Sandbox(name="closed") as sandbox:
        places = [engine.directory, *engine.directory.glob("standing-*")]
        assert len(places) == 3
        assert all(place.stat().st_mode & 0o077 == 0 for place in places)
        sandbox.destroy()


def test_a_directory_that_others_can_write_to_is_refused(engine):
    engine.directory.mkdir(mode=0o777)
    engine.directory.chmod(0o777)
    with pytest.raises(stepbox.EngineError, match="is not a directory of this user's alone"):
        stepbox.Sandbox(name="refused")
    engine.directory.chmod(0o700)


def command(*words, stdin=""):
    binary = find_binary(os.environ)
    return subprocess.run([binary, "session", *words], input=stdin, capture_output=True, text=True, check=False)


def test_the_command_line_lists_uses_and_removes_sessions():
    assert json.loads(command("ls", "--json").stdout) == []
    missing = command("rm", "nothing")
    assert (missing.returncode, "no standing engine runs" in missing.stderr) == (125, True)
    with stepbox.Sandbox(name="shown", resident=True, labels={"a": "b"}) as sandbox:
        (listed,) = json.loads(command("ls", "--json").stdout)
        assert (listed["session_id"], listed["name"], listed["labels"]) == (sandbox.id, "shown", {"a": "b"})
        assert sandbox.id in command("ls").stdout
        ran = command("attach", "shown", "--", "sh", "-c", "cat; echo e >&2; echo t > /tmp/t; exit 3", stdin="in")
        assert (ran.returncode, ran.stdout, ran.stderr) == (3, "in", "e\n")
        assert command("attach", sandbox.id, stdin="cat /tmp/t\n").stdout == "t\n"
        assert command("rm", "shown").returncode == 0
        assert "no session" in command("attach", "shown", "--", "true").stderr
