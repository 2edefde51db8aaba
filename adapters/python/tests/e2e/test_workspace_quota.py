"""The limits of a workspace bind on every path, and how far code can get past them is what the documents say."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest
from evidence import eventually
from faces import Opened
from starts import STARTS, started

import stepbox

MIB = 1 << 20
# What docs/notes.md says that code gets past a watched limit by: what it writes while the workspace is not looked at.
# The writers below write 1 MiB in 10 ms at most; a look at 50,000 files on a busy machine takes a second.
OVERSHOOT = 256 * MIB
OVERSHOOT_FILES = 20_000
# In what a writer waits for its end. Where the kernel refuses it does not wait.
FILL = (
    "import os, time\n"
    "with open(os.path.expandvars({path!r}), 'wb', buffering=0) as f:\n"
    "    try:\n"
    "        for _ in range({count}):\n"
    "            if f.write(bytes(1 << 20)) < 1 << 20: f.write(bytes(1 << 20))\n"
    "            time.sleep(0.01)\n"
    "    except OSError as error: print(error.errno)\n"
    "    else: time.sleep(60)\n"
)
FILL_FILES = (
    "import time\n"
    "try:\n"
    "    for n in range({count}):\n"
    "        open(f'{path}{{n}}', 'w').close()\n"
    "        if n % 10 == 0: time.sleep(0.01)\n"
    "except OSError as error: print(error.errno)\n"
    "else: time.sleep(60)\n"
)
ENOSPC = 28


def kept_by(sandbox, resource="workspace"):
    return sandbox.limits[resource].enforced_by


def ends_full(sandbox, result):
    """The kernel tells the code, or the watcher ends it."""
    assert result.limits["workspace"].enforced_by == kept_by(sandbox)
    if kept_by(sandbox) == "sized_filesystem":
        assert (result.stdout, result.exit_code, result.fault) == (f"{ENOSPC}\n", 0, None)
    else:
        assert kept_by(sandbox) == "watchdog"
        assert (result.exit_code, result.fault and result.fault.type) == (137, "workspace_full")
        assert "limit of" in result.fault.message


def refused_for_room(write):
    with pytest.raises(stepbox.SandboxError) as refused:
        write()
    assert isinstance(refused.value, OSError)
    assert refused.value.errno == ENOSPC


def held(sandbox, path="."):
    """Its own directories are in it, which are nobody's to pay for."""
    out = sandbox.run(["du", "-s", "--block-size=1", path]).stdout
    return int(out.split()[0])


def count(sandbox):
    return int(sandbox.run(["sh", "-c", "find . -mindepth 1 | wc -l"]).stdout)


@contextlib.contextmanager
def opened(start, **options):
    """What runs code in one of the ways in which its process comes to be, and the sandbox that it is in."""
    if start == "kernel":
        with stepbox.Sandbox(**options) as sandbox:
            yield sandbox, lambda code: run_in_kernel(sandbox, code)
    else:
        with started(start, **options) as begun:
            yield begun.sandbox, begun.py


def run_in_kernel(sandbox, code):
    with sandbox.kernel() as kernel:
        return kernel.run_code(code, timeout_s=60)


@pytest.mark.parametrize("start", [*STARTS, "kernel"])
@pytest.mark.parametrize("path", ["fill", "$HOME/fill", "$XDG_CACHE_HOME/fill", "$TMPDIR/fill"])
def test_bytes_are_limited_wherever_they_stay_on_disk(start, path):
    with opened(start, workspace_max_bytes=20 * MIB, timeout_s=120) as (sandbox, run):
        ends_full(sandbox, run(FILL.format(path=path, count=2000)))
        assert held(sandbox) <= 20 * MIB + (MIB if kept_by(sandbox) == "sized_filesystem" else OVERSHOOT)
        # What makes room can run, and then there is room.
        assert sandbox.run(["sh", "-c", f"rm -f {path}"]).fault is None
        after = sandbox.run(["sh", "-c", "echo ok > y && cat y"])
        assert (after.stdout, after.fault) == ("ok\n", None)


@pytest.mark.parametrize("start", [*STARTS, "kernel"])
def test_files_are_limited_exactly_by_a_file_system_and_soon_by_the_watcher(start):
    with opened(start, workspace_max_files=10, timeout_s=120) as (sandbox, run):
        ends_full(sandbox, run(FILL_FILES.format(path="f", count=100_000)))
        made = count(sandbox)
        if kept_by(sandbox) == "sized_filesystem":
            assert made == 10
        else:
            assert 10 < made <= 10 + OVERSHOOT_FILES
        assert sandbox.run(["sh", "-c", "rm -f f*; echo ok > y; cat y"]).stdout == "ok\n"


@pytest.mark.parametrize("many", [10, 50_000])
def test_a_workspace_of_many_files_gets_no_further_past_its_limits(many):
    with stepbox.Sandbox(workspace_max_files=many + 5, workspace_max_bytes=1 << 30, timeout_s=300) as sandbox:
        made = sandbox.run_code(f"for n in range({many}): open(f'g{{n}}', 'w').close()\nprint('made')")
        assert (made.stdout, made.fault) == ("made\n", None)
        ends_full(sandbox, sandbox.run_code(FILL_FILES.format(path="f", count=100_000)))
        over = count(sandbox) - many - 5
        assert over == 0 if kept_by(sandbox) == "sized_filesystem" else 0 < over <= OVERSHOOT_FILES
        assert sandbox.run(["sh", "-c", "rm -f f*"]).fault is None
        ends_full(sandbox, sandbox.run_code(FILL.format(path="fill", count=4000)))
        exact = kept_by(sandbox) == "sized_filesystem"
        assert held(sandbox) <= (1 << 30) + (16 * MIB if exact else OVERSHOOT)


def test_what_a_caller_writes_counts_and_is_refused_by_its_reason(face, tmp_path):
    big = tmp_path / "big"
    big.write_bytes(bytes(3 * MIB))
    with face(workspace_max_bytes=4 * MIB, workspace_max_files=4) as sandbox:
        sandbox.write_file("a", bytes(2 * MIB))
        for write in (lambda: sandbox.write_file("b", bytes(3 * MIB)), lambda: sandbox.upload(big, "b")):
            refused_for_room(write)
        assert sandbox.list_files() == ["a"], "nothing is left of what did not fit"
        for name in ("c", "d"):
            sandbox.write_file(name, b"x")
        sandbox.make_dir("e")
        for write in (lambda: sandbox.write_file("f", b"x"), lambda: sandbox.make_dir("g")):
            refused_for_room(write)
        sandbox.remove("a")
        sandbox.write_file("b", bytes(3 * MIB))


def test_a_private_workspace_has_a_limit_and_none_is_said_out_loud():
    with stepbox.Sandbox() as sandbox:
        limit = sandbox.limits["workspace"]
        assert 0 < limit.max <= 10 << 30
        assert limit.enforced_by in ("sized_filesystem", "watchdog")
        assert sandbox.limits["workspace_files"].max is None
    with stepbox.Sandbox(workspace_max_bytes=None) as sandbox:
        limit = sandbox.limits["workspace"]
        assert (limit.max, limit.enforced_by) == (None, "none")


def test_a_file_system_of_its_own_shows_its_size_and_says_when_it_is_full():
    with stepbox.Sandbox(workspace_max_bytes=50 * MIB) as sandbox:
        if kept_by(sandbox) != "sized_filesystem":
            if os.getuid() == 0:
                pytest.skip("no file system of its own can be made on this host")
            assert kept_by(sandbox) == "watchdog"
            return
        free = sandbox.run(["df", "--output=avail", "-B1", "/workspace"]).stdout.split()[1]
        assert 50 * MIB <= int(free) <= 51 * MIB
        full = sandbox.run(["sh", "-c", "head -c 60M /dev/zero > f"])
        assert full.fault is None
        assert "No space left" in full.code_stderr
        assert any("at its limit" in note for note in full.runtime_notes)
        assert not sandbox.run(["rm", "f"]).runtime_notes
        shown = sandbox.run(["cat", "/proc/self/mountinfo"]).stdout
        assert sandbox.id not in shown
        assert "volume" not in shown


def test_a_given_workspace_is_watched_and_what_is_in_it_counts(tmp_path):
    for n in range(3):
        (tmp_path / f"mine{n}").write_bytes(bytes(MIB))
    with stepbox.Sandbox(workspace=tmp_path, workspace_max_bytes=20 * MIB, timeout_s=120) as sandbox:
        assert kept_by(sandbox) == "watchdog"
        result = sandbox.run_code(FILL.format(path="fill", count=2000))
        assert (result.exit_code, result.fault and result.fault.type) == (137, "workspace_full")
        assert sandbox.run(["rm", "fill"]).fault is None
        sandbox.write_file("fits", bytes(10 * MIB))
        refused_for_room(lambda: sandbox.write_file("too-much", bytes(10 * MIB)))
    assert (tmp_path / "mine0").stat().st_size == MIB
    with stepbox.Sandbox(workspace=tmp_path) as sandbox:
        assert sandbox.limits["workspace"].max is None


def test_files_that_have_several_names_or_holes_count_for_what_they_take(tmp_path):
    with stepbox.Sandbox(workspace=tmp_path, workspace_max_bytes=20 * MIB, timeout_s=60) as sandbox:
        result = sandbox.run_code(
            "import os, time\n"
            "open('a', 'wb').write(bytes(8 << 20))\n"
            "for n in range(9): os.link('a', f'l{n}')\n"
            "open('hole', 'wb').truncate(1 << 30)\n"
            "time.sleep(1)\nprint('on')"
        )
        assert (result.stdout, result.fault) == ("on\n", None)


def test_directories_that_are_too_deep_to_be_counted_end_the_step(tmp_path):
    with stepbox.Sandbox(workspace=tmp_path, workspace_max_bytes=20 * MIB, timeout_s=60) as sandbox:
        result = sandbox.run_code(
            "import os, time\nfor n in range(30):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\ntime.sleep(60)"
        )
        assert result.fault.type == "workspace_full"
        assert "deep" in result.fault.message


@pytest.mark.parametrize("value", [0, 1, 65535])
def test_a_limit_too_small_to_hold_anything_is_refused_by_its_name(value):
    with pytest.raises(stepbox.SandboxError) as refused:
        stepbox.Sandbox(workspace_max_bytes=value)
    assert "workspace_max_bytes" in str(refused.value)
    with pytest.raises(stepbox.SandboxError):
        stepbox.Sandbox(workspace_max_files=0)


def volumes():
    """The devices of images that nobody names any more."""
    if os.geteuid() != 0:
        return set()
    lines = subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout.splitlines()
    return {line for line in lines if "/volume-" in line}


def test_sessions_do_not_see_each_others_file_systems_and_leave_none():
    with stepbox.Sandbox(workspace_max_bytes=None):
        before = volumes()
        # Unlike each other: none like them is opened ahead.
        sizes = (MIB, 2 * MIB)
        with (
            stepbox.Sandbox(workspace_max_bytes=sizes[0]) as one,
            stepbox.Sandbox(workspace_max_bytes=sizes[1]) as other,
        ):
            one.write_file("secret", b"x")
            assert other.list_files() == []
            assert one.id not in other.run(["cat", "/proc/self/mountinfo"]).stdout
        eventually(lambda: volumes() <= before)


def test_a_kernel_that_fills_the_workspace_ends_with_the_cell(face):
    with face(workspace_max_bytes=20 * MIB, timeout_s=120) as sandbox:
        kernel = Opened(sandbox.kernel(), sandbox._resolve)
        kernel.py("x = 1")
        result = kernel.py(FILL.format(path="fill", count=2000))
        if kept_by(sandbox) == "sized_filesystem":
            assert kernel.py("print(x)").stdout == "1\n", "the kernel is the code's own to go on with"
        else:
            assert result.fault.type == "workspace_full"
            with pytest.raises(stepbox.StepboxError, match="workspace_full"):
                kernel.py("x")
        kernel.close()


def test_a_file_without_a_name_counts_while_it_is_open():
    code = (
        "import os, time\n"
        "f = open('f', 'wb', buffering=0)\nos.unlink('f')\n"
        "try:\n"
        "    for _ in range(2000):\n"
        "        f.write(bytes(1 << 20))\n"
        "        time.sleep(0.01)\n"
        "except OSError as error: print(error.errno)\n"
        "else: time.sleep(60)\n"
    )
    with stepbox.Sandbox(workspace_max_bytes=20 * MIB, timeout_s=120) as sandbox:
        ends_full(sandbox, sandbox.run_code(code))
        assert sandbox.run(["sh", "-c", "echo ok > y && cat y"]).stdout == "ok\n"
