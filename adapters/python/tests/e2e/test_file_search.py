"""Finding files and lines in a workspace, and replacing text there."""

from __future__ import annotations

import os

import pytest

import stepbox


def lines(found):
    return [(match.path, match.line_number, match.line) for match in found]


def test_files_are_found_by_name(sandbox):
    for path in ("a.py", "d/b.py", "d/e/c.txt", ".git/config", b"bad\xff.py"):
        sandbox.write_file(path, "x")
    sandbox.sh("ln -s / out; ln -s a.py link.py; mkdir empty")
    bad = os.fsdecode(b"bad\xff.py")
    assert sandbox.glob("*.py") == ["a.py", bad, "link.py"]
    assert sandbox.glob("**/*.py", files_only=True) == ["a.py", bad, "d/b.py"]
    assert sandbox.glob("*", "d") == ["d/b.py", "d/e"]
    assert sandbox.glob("**/*.{txt,py}", "d") == ["d/b.py", "d/e/c.txt"]
    assert sandbox.glob(".git/*") == [".git/config"]
    assert sandbox.glob("*/") == [".git", "d", "empty"]
    assert sandbox.glob("out/**") == []
    assert sandbox.glob("/workspace/d/*") == ["d/b.py", "d/e"]
    assert [entry.kind for entry in sandbox.list_dir()] == ["dir", "file", "file", "dir", "dir", "symlink", "symlink"]
    with pytest.raises(NotADirectoryError):
        sandbox.glob("*", "a.py")
    with pytest.raises(FileNotFoundError):
        sandbox.glob("*", "none")
    with pytest.raises(ValueError, match="escapes"):
        sandbox.glob("*", "out")


def test_lines_are_found(sandbox):
    sandbox.write_file("a.py", "import os\nprint(1)\n")
    sandbox.write_file("d/b.py", b"import sys\r\nIMPORT\r\nbad\xff import")
    sandbox.write_file("binary", b"import\0")
    found = sandbox.grep("^import")
    assert lines(found) == [("a.py", 1, "import os"), ("d/b.py", 1, "import sys")]
    assert (found.truncated, found.binary_files) == (False, 1)
    assert lines(sandbox.grep("import$", "d", ignore_case=True)) == [
        ("d/b.py", 2, "IMPORT"),
        ("d/b.py", 3, "bad\ufffd import"),
    ]
    assert lines(sandbox.grep("print(", literal=True, glob="*.py")) == [("a.py", 2, "print(1)")]
    assert lines(sandbox.grep("import", "a.py")) == [("a.py", 1, "import os")]
    assert sandbox.grep("import", glob="d/*", max_count=1).truncated
    assert sandbox.grep("nowhere") == []


@pytest.mark.parametrize(
    ("call", "field", "position"),
    [
        (lambda sandbox: sandbox.glob("a["), "pattern", "character 2"),
        (lambda sandbox: sandbox.glob("../*"), "pattern", "character 1"),
        (lambda sandbox: sandbox.glob(""), "pattern", "empty"),
        (lambda sandbox: sandbox.grep("a("), "pattern", "character 2"),
        (lambda sandbox: sandbox.grep("(a{1000}){1000}"), "pattern", "memory"),
        (lambda sandbox: sandbox.grep("a", glob="{b"), "glob", "character 1"),
        (lambda sandbox: sandbox.edit_file("f", "", "b"), "old_text", "empty"),
        (lambda sandbox: sandbox.edit_file("f", "b", "b"), "new_text", "same"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field_and_position(sandbox, call, field, position):
    with pytest.raises(stepbox.SandboxError) as raised:
        call(sandbox)
    (violation,) = raised.value.violations
    assert violation.field == field
    assert position in violation.message


def test_text_is_replaced_and_the_file_stays_what_it_was(sandbox):
    sandbox.write_file("f", "a\r\nb\r\nb", mode=0o755)
    edit = sandbox.edit_file("f", "a\r\n", "x\r\n")
    assert (edit.replacements, edit.diff_reason) == (1, None)
    assert edit.diff.startswith("--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n-a\r\n+x\r\n")
    with pytest.raises(ValueError, match="2 times") as raised:
        sandbox.edit_file("f", "b", "c")
    assert (raised.value.reason, raised.value.count) == ("several_matches", 2)
    with pytest.raises(ValueError, match="CRLF") as raised:
        sandbox.edit_file("f", "x\nb", "c")
    assert raised.value.reason == "no_match"
    assert sandbox.edit_file("f", "b", "c", replace_all=True).replacements == 2
    assert sandbox.read_file("f") == b"x\r\nc\r\nc"
    assert sandbox.stat("f").mode == 0o755
    assert sandbox.sh("stat -c %U:%a f; cat f | wc -c").stdout == "user:755\n7\n"
    with pytest.raises(FileNotFoundError):
        sandbox.edit_file("none", "a", "b")
    # What a caller changed is no change of the next step's.
    assert sandbox.run(["true"]).files == []


def test_a_full_workspace_refuses_an_edit_whole(face):
    with face(workspace_max_bytes=1 << 20) as sandbox:
        sandbox.write_file("f", "x" * 1000 + "END")
        with pytest.raises(stepbox.SandboxError) as raised:
            sandbox.edit_file("f", "END", "y" * (2 << 20))
        assert raised.value.reason == "no_space"
        assert sandbox.read_text("f") == "x" * 1000 + "END"
        assert sandbox.list_files() == ["f"]


def test_a_search_does_not_keep_steps_waiting_and_hostile_trees_have_bounds(sandbox):
    sandbox.py(
        """
import os
os.mkfifo("fifo"); os.symlink("loop", "loop")
with open("hole", "wb") as f: f.truncate(1 << 40)
with open("long", "w") as f: f.write("a" * (8 << 20))
deep = "d"
for _ in range(500):
    deep += "/d"
os.makedirs(deep)
"""
    )
    found = sandbox.grep("(a+)+$")
    assert lines(found)[0][:2] == ("long", 1)
    assert (len(found[0].line), found.binary_files) == (4096, 1)
    assert len(sandbox.glob("**/d")) == 501
    assert sandbox.run(["true"]).success
