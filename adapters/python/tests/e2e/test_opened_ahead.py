"""A session that was opened before it was asked for is a session like any other."""

from __future__ import annotations

import time

import pytest

import stepbox

LOOK = """
import json, os, sys
print(json.dumps({
    "env": dict(os.environ),
    "cwd": os.getcwd(),
    "files": {place: sorted(os.listdir(place)) for place in ("/workspace", "/tmp", os.environ["HOME"], "/opt/stepbox")},
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "argv": sys.argv,
    "modules": len(sys.modules),
}, sort_keys=True))
"""


def until_ahead(attempt, limit_s=60):
    """Opens sessions until one was ready before it was asked for: its first step needs no start of an interpreter."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        result = attempt()
        if result.start == "forked_ahead":
            return result
        time.sleep(0.3)
    pytest.fail("no session was opened ahead")


def first_step(code, **options):
    with stepbox.Sandbox(**options) as sandbox:
        return sandbox.run_code(code)


def test_a_session_opened_ahead_shows_what_one_opened_on_demand_shows():
    on_demand = first_step(LOOK, env={"UNIQUE": "to this session"})
    options = {"env": {"UNIQUE": "to this session"}}
    ahead = until_ahead(lambda: first_step(LOOK, **options))
    assert on_demand.start != "forked_ahead"
    assert ahead.stdout == on_demand.stdout
    assert ahead.files == on_demand.files == []


def test_a_session_opened_ahead_has_the_names_and_the_time_of_its_own_request():
    def attempt():
        with stepbox.Sandbox(env={"A": "1"}, labels={"try": str(time.monotonic_ns())}) as sandbox:
            return sandbox.run_code("open('kept.txt', 'w').write('x')")

    result = until_ahead(attempt)
    assert [(change.path, change.change) for change in result.files] == [("kept.txt", "created")]


def test_what_one_session_left_is_not_in_the_next_one_that_was_opened_ahead():
    def attempt():
        with stepbox.Sandbox(env={"B": "1"}) as sandbox:
            seen = sandbox.run_code("import os; print(os.listdir('/workspace'), os.path.exists('/tmp/left'))")
            sandbox.run(["sh", "-c", "touch /workspace/left /tmp/left ~/left"])
            return seen

    assert until_ahead(attempt).stdout == "[] False\n"


def test_a_session_of_other_options_is_not_the_one_that_waits():
    until_ahead(lambda: first_step("print(1)", env={"C": "1"}))
    time.sleep(0.3)
    other = first_step("import os; print(os.environ['C'])", env={"C": "2"})
    assert other.stdout == "2\n"
    limited = first_step("print(len(bytearray(100 << 20)))", env={"C": "1"}, memory_mb=64)
    assert limited.fault is not None
    assert limited.fault.type == "oom"


def test_files_of_a_session_that_was_opened_ahead_are_there_and_not_reported_as_changed():
    def attempt():
        with stepbox.Sandbox(env={"D": "1"}, files={"given.txt": "hello"}) as sandbox:
            return sandbox.run_code("print(open('given.txt').read())")

    result = until_ahead(attempt)
    assert (result.stdout, result.files) == ("hello\n", [])
