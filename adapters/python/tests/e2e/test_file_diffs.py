"""What changed in the text of files: with the result of each step, of what the engine saw before."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def change(result, path):
    (found,) = [item for item in result.files if item.path == path]
    return found


def test_each_kind_of_change_has_its_diff_or_the_reason(sandbox):
    sandbox.write_file("text", "a\nb\n")
    sandbox.write_file("crlf", "a\r\nb\r\n")
    sandbox.write_file("end", "a")
    sandbox.write_file("moved", "a\n")
    sandbox.write_file("moved and changed", "a\n")
    sandbox.write_file("gone", "a\n")
    sandbox.write_file("mode", "a\n")
    result = sandbox.py(
        """
import os
open("text", "w").write("a\\nc\\n")
open("crlf", "wb").write(b"a\\r\\nc\\r\\n")
open("end", "w").write("b")
os.rename("moved", "here")
os.rename("moved and changed", "there")
open("there", "a").write("b\\n")
os.remove("gone")
os.chmod("mode", 0o600)
open("new", "w").write("x\\n")
open("binary", "wb").write(b"\\0")
open("large", "w").write("x" * 70000)
open(b"bad\\xff", "w").write("x\\n")
os.mkdir("dir")
"""
    )
    assert result.success, result
    header = "--- a/{0}\n+++ b/{0}\n"
    assert change(result, "text").diff == header.format("text") + "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert change(result, "crlf").diff == header.format("crlf") + "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"
    mark = "\\ No newline at end of file\n"
    assert change(result, "end").diff == header.format("end") + f"@@ -1 +1 @@\n-a\n{mark}+b\n{mark}"
    assert change(result, "here").diff is None
    assert change(result, "here").diff_reason == "same_content"
    assert change(result, "there").diff == "--- a/moved and changed\t\n+++ b/there\n@@ -1 +1,2 @@\n a\n+b\n"
    assert change(result, "gone").diff == "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
    assert change(result, "mode").diff_reason == "same_content"
    assert change(result, "new").diff == "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
    assert change(result, "binary").diff_reason == "binary"
    assert change(result, "large").diff_reason == "too_large"
    bad = os.fsdecode(b"bad\xff")
    assert change(result, bad).diff == '--- /dev/null\n+++ "b/bad\\377"\n@@ -0,0 +1 @@\n+x\n'
    assert (change(result, "dir").diff, change(result, "dir").diff_reason) == (None, None)


def test_what_one_step_left_the_next_is_compared_with(sandbox):
    sandbox.py("open('f', 'w').write('0\\n')")
    for nth in range(1, 15):
        # Size and mtime stay.
        result = sandbox.py(
            f"""
import os
s = os.stat("f")
f = open("f", "r+"); f.write("{nth % 10}\\n"); f.close()
os.utime("f", ns=(s.st_atime_ns, s.st_mtime_ns))
"""
        )
        assert change(result, "f").diff.endswith(f"-{(nth - 1) % 10}\n+{nth % 10}\n")
        assert sandbox.run(["true"]).files == []


def test_cells_and_edits_are_compared_too(sandbox):
    sandbox.write_file("f", "a\n")
    kernel = sandbox.kernel()
    result = sandbox._resolve(kernel.run_code("open('g', 'w').write('x\\n')"))
    assert change(result, "g").diff.endswith("+x\n")
    edit = sandbox.edit_file("f", "a", "b")
    assert edit.diff == "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
    result = sandbox.sh("echo c > f")
    assert change(result, "f").diff.endswith("-b\n+c\n")


def test_a_given_workspace_is_known_from_its_first_step_on(face, tmp_path):
    workspace = tmp_path / "ws"
    (workspace / "src").mkdir(parents=True)
    for nth in range(20):
        (workspace / "src" / f"m{nth}.py").write_text(f"x = {nth}\n")
    (workspace / "data.bin").write_bytes(b"\0" * 100)
    workspace.chmod(0o755)
    with face(workspace=str(workspace)) as sandbox:
        result = sandbox.py("open('src/m3.py', 'a').write('y = 1\\n'); open('data.bin', 'ab').write(b'x')")
        assert change(result, "src/m3.py").diff.endswith(" x = 3\n+y = 1\n")
        assert change(result, "data.bin").diff_reason == "binary"
        # What its owner writes between two steps is what the next is compared with.
        (workspace / "src" / "m4.py").write_text("mine = 1\n")
        result = sandbox.py("open('src/m4.py', 'w').write('theirs = 1\\n')")
        assert change(result, "src/m4.py").diff.endswith("-mine = 1\n+theirs = 1\n")


@pytest.mark.skipif(shutil.which("patch") is None and shutil.which("git") is None, reason="no patch, no git")
def test_the_diffs_of_a_step_make_the_one_state_of_the_other(sandbox, tmp_path):
    files = {
        "changed": "".join(f"line {nth}\n" for nth in range(100)),
        "no end": "a\nb",
        "crlf": "a\r\nb\r\n",
        "gone": "x\n",
    }
    for name, text in files.items():
        sandbox.write_file(name, text)
        (tmp_path / name).write_bytes(text.encode())
    result = sandbox.py(
        """
import os
lines = open("changed").read().splitlines(True)
lines[3] = "other\\n"; del lines[50]; lines.append("more")
open("changed", "w").write("".join(lines))
open("no end", "a").write("c\\nd")
open("crlf", "ab").write(b"c\\r\\n")
os.remove("gone")
open("new", "w").write("é\\n")
"""
    )
    diffs = "".join(item.diff for item in result.files)
    tool = ["git", "apply", "-"] if shutil.which("git") else ["patch", "--binary", "-p1"]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(tool, input=diffs.encode(), cwd=tmp_path, check=True, env=environment)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(sandbox.list_files())
    for entry in tmp_path.iterdir():
        assert entry.read_bytes() == sandbox.read_file(entry.name)


def test_without_diffs_there_are_none(face):
    with face(file_diffs=False) as sandbox:
        sandbox.write_file("f", "a\n")
        found = change(sandbox.sh("echo b > f"), "f")
        assert (found.change, found.diff, found.diff_reason) == ("modified", None, None)
    with face(track_files=False) as sandbox:
        assert sandbox.sh("echo b > f").files == []


def test_code_cannot_make_a_diff_large_or_slow_or_read_what_is_not_its_own(sandbox):
    sandbox.py(
        """
import os, random
random.seed(1)
open("hostile", "w").write("".join(random.choice("ab") + "\\n" for _ in range(32000)))
for nth in range(40):
    open(f"f{nth}", "w").write("x\\n" * 32000)
"""
    )
    result = sandbox.py(
        """
import os, random
random.seed(2)
open("hostile", "w").write("".join(random.choice("ab") + "\\n" for _ in range(32000)))
for nth in range(40):
    open(f"f{nth}", "w").write("y\\n" * 32000)
os.symlink("/etc/passwd", "l"); os.mkfifo("p")
for nth in range(3000):
    open(f"n{nth}", "w").write("x")
"""
    )
    assert result.success
    assert sum(len(item.diff or "") for item in result.files) <= 1 << 20
    assert all(len(item.diff or "") <= 64 << 10 for item in result.files)
    assert "too_many" in {item.diff_reason for item in result.files}
    assert change(result, "l").diff is None
    assert change(result, "p").diff is None


def test_a_file_swapped_while_the_keeper_looks_shows_nothing_of_the_host(face):
    with face() as sandbox:
        # A process of a kernel lives on while the steps beside it are looked at.
        kernel = sandbox.kernel()
        code = """
import os, threading
def swap():
    while True:
        for make in (
            lambda: open("f", "w").write("mine\\n"),
            lambda: os.symlink("/etc/passwd", "f"),
            lambda: os.mkfifo("f"),
        ):
            try:
                make()
                os.remove("f")
            except OSError:
                pass
threading.Thread(target=swap, daemon=True).start()
"""
        sandbox._resolve(kernel.run_code(code))
        for nth in range(15):
            result = sandbox.sh(f"echo {nth} > other")
            assert change(result, "other").diff is not None
            for item in result.files:
                assert "root" not in (item.diff or "")


def test_a_step_that_changed_nothing_is_not_read_for(face, tmp_path):
    with face() as sandbox:
        sandbox.py("for n in range(2000): open(f'f{n}', 'w').write('x')")
        for _ in range(3):
            assert sandbox.run(["true"]).files == []
        result = sandbox.py("open('f1999', 'w').write('y')")
        assert [item.path for item in result.files] == ["f1999"]
