"""Modules that a session has imported ahead: a bad one is named and left out, and no call waits for any."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from starts import started

import stepbox

MODULES = {
    "good": "found = True",
    "threaded": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "talking": "import sys\nprint('imported')\nprint('imported', file=sys.stderr)",
    "leaving": "import sys\nsys.exit(3)",
    "gone": "import os\nos._exit(3)",
    "asking": "import sys\nread = sys.stdin.read()",
    "broken": "1/0",
    "misspelt": "x = = 1",
    "slow": "import time\ntime.sleep(5)",
    "sharing": "import mmap\nshared = mmap.mmap(-1, 4096)",
    "keeping": "file = open(__file__)",
    "forking": "import os, time\nif not os.fork():\n    time.sleep(600)",
    "looking": (
        "import os, platform, resource, subprocess\n"
        "def lines(*names):\n"
        "    status = subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True).stdout\n"
        "    return [line for line in status.splitlines() if line.startswith(names)]\n"
        "names = {platform.node(), os.uname().nodename}\n"
        "limits = [resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]\n"
        "rights = lines('CapInh', 'CapPrm', 'CapEff', 'CapAmb')"
    ),
    "writing": (
        "import os\nopen('/tmp/left', 'w').write('left')\nos.chdir('/tmp'); os.environ['LEFT'] = 'left'; os.umask(0)"
    ),
}

SESSION = """
import json, sys, time
import stepbox

preload, code, limit = json.loads(sys.argv[1])
with stepbox.Sandbox(preload=preload) as sandbox:
    told = lambda result: [result.start, result.stdout, result.code_stderr, result.exit_code, result.runtime_notes]
    begun = time.monotonic()
    first = told(sandbox.run_code(code))
    waited = time.monotonic() - begun
    until = time.monotonic() + limit
    while True:
        last = told(sandbox.run_code(code))
        if last[0] == "forked_ahead" or time.monotonic() > until:
            break
        time.sleep(0.02)
    print(json.dumps([first, last, waited]))
"""


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    """An environment whose interpreter has modules of these tests."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    [packages] = (place / "lib").glob("python*/site-packages")
    for name, source in MODULES.items():
        (packages / f"{name}.py").write_text(source)
    # The client is seen by the caller alone.
    seen = [str(Path(sys.modules["stepbox"].__file__).parents[1]), *site.getsitepackages()]
    (packages / "client.pth").write_text("".join(f"{path}\n" for path in seen))
    return place / "bin" / "python"


def session(interpreter, preload, code, limit=30):
    command = [interpreter, "-c", SESSION, json.dumps([preload, code, limit])]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_preloaded_is_there_and_not_imported_again(interpreter):
    code = "import sys\nprint('good' in sys.modules, 'json' in sys.modules)\nimport good; print(good.found)"
    first, last, _ = session(interpreter, ["good", "json"], code)
    assert first[3:] == [0, []]
    assert last == ["forked_ahead", "True True\nTrue\n", "", 0, []]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "ModuleNotFoundError: No module named 'missing'"),
        ("threaded", "threads"),
        ("leaving", "SystemExit: 3"),
        ("broken", "ZeroDivisionError"),
        ("misspelt", "SyntaxError"),
        ("good.none", "ModuleNotFoundError"),
        ("sharing", "shares memory"),
        ("keeping", "keeps a file open"),
        ("forking", "starts a process"),
    ],
)
def test_a_module_that_cannot_be_preloaded_is_named_and_the_others_are_there(interpreter, name, reason):
    code = "import sys\nprint('json' in sys.modules, 'good' in sys.modules)"
    _, (start, stdout, stderr, exit_code, notes), _ = session(interpreter, ["json", name, "good"], code)
    assert (start, stdout, stderr, exit_code) == ("forked_ahead", "True True\n", "", 0)
    [note] = notes
    assert note.startswith(f"preload: {name} ")
    assert reason in note


def test_more_than_one_bad_module_is_named(interpreter):
    names = ["missing", "good", "broken", "threaded"]
    _, (start, _, _, _, notes), _ = session(interpreter, names, "pass")
    assert start == "forked_ahead"
    assert [note.split()[1] for note in notes] == ["missing", "broken", "threaded"]


def test_a_module_that_ends_the_interpreter_leaves_steps_cold_and_says_so(interpreter):
    _, (start, stdout, _, exit_code, notes), _ = session(interpreter, ["gone"], "print(1)", limit=2)
    assert (start, stdout, exit_code) == ("cold", "1\n", 0)
    assert [note.startswith("preload: ") for note in notes] == [True]


def test_what_a_module_prints_and_reads_at_its_import_is_no_part_of_a_step(interpreter):
    code = "import sys, talking, asking\nprint(repr(asking.read), sys.stdin.read())"
    _, last, _ = session(interpreter, ["talking", "asking"], code)
    assert last == ["forked_ahead", "'' \n", "", 0, []]


def test_what_a_module_does_to_the_process_at_its_import_does_not_reach_a_step(interpreter):
    code = "import os\nprint(os.getcwd(), os.listdir('/tmp') == ['x'] , os.environ.get('LEFT'), oct(os.umask(0)))"
    _, last, _ = session(interpreter, ["writing"], code)
    assert last == ["forked_ahead", "/workspace False None 0o22\n", "", 0, []]


def test_a_module_learns_at_its_import_what_a_step_learns(interpreter):
    code = (
        "import looking, os, resource\n"
        "print(looking.names == {os.uname().nodename} == {'stepbox'})\n"
        "limits = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)\n"
        "print(looking.limits == [resource.getrlimit(limit) for limit in limits])\n"
        "print([line.split()[1].strip('0') for line in looking.rights])"
    )
    _, last, _ = session(interpreter, ["looking"], code)
    assert last == ["forked_ahead", "True\nTrue\n['', '', '', '']\n", "", 0, []]


def test_the_key_of_multiprocessing_is_fresh_in_each_step(interpreter):
    code = "import multiprocessing\nprint(multiprocessing.current_process().authkey.hex())"
    first, last, _ = session(interpreter, ["multiprocessing"], code)
    assert len(last[1]) == 65
    assert first[1] != last[1]


def test_a_preloaded_step_may_have_as_many_tasks_as_any_other(interpreter):
    """A large interpreter's memory is held by a process of the engine's, which is not the code's to pay for."""
    code = """
import os, pandas, signal
children = []
try:
    while len(children) < 64:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except OSError:
    pass
print(1 + len(children))
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print('no child')
"""
    pytest.importorskip("pandas")
    with started("cold", pids=20) as cold, started("forked_ahead", pids=20, preload=["pandas"]) as forked:
        if cold.sandbox.limits["pids"].enforced_by == "none":
            pytest.skip("nothing on this host binds tasks")
        told = [(result.stdout, result.fault) for result in (cold.py(code), forked.py(code))]
    assert told[0] == told[1]
    assert told[0][0].endswith("no child\n")


def test_a_call_does_not_wait_for_a_slow_preload(interpreter):
    first, last, waited = session(interpreter, ["slow"], "import sys\nprint('slow' in sys.modules)")
    assert first == ["cold", "False\n", "", 0, []]
    assert waited < 4
    assert last == ["forked_ahead", "True\n", "", 0, []]


def test_a_preloaded_numpy_computes_as_one_that_is_imported():
    pytest.importorskip("numpy")
    code = "import numpy as np\nprint(float((np.ones((300, 300)) @ np.ones((300, 300)))[0, 0]), np.arange(3).tolist())"
    with started("forked_ahead", preload=["numpy"]) as sandbox:
        result = sandbox.py(code)
        assert (result.stdout, result.code_stderr, result.runtime_notes) == ("300.0 [0, 1, 2]\n", "", [])


def test_what_is_no_name_of_a_module_is_refused():
    with pytest.raises(stepbox.SandboxError, match="preload"):
        stepbox.Sandbox(preload=["bad name"])
