from __future__ import annotations

import pytest

import stepbox


def test_files_are_found_by_name_and_a_wrong_pattern_is_told(face, engine_log):
    with face(files={"a.py": "x", "d/b.py": "y"}) as sandbox:
        assert sandbox.glob("*.py", "d", files_only=True) == ["a.py", "d/b.py"]
        (asked,) = engine_log.events("GlobFiles")
        assert (asked["pattern"], asked["path"], asked["files_only"]) == ("*.py", "d", True)
        with pytest.raises(stepbox.SandboxError) as raised:
            sandbox.glob("[")
        assert raised.value.violations[0].field == "pattern"
        with pytest.raises(stepbox.SandboxError, match="name a directory") as raised:
            sandbox.glob("**")
        assert raised.value.reason == "too_large"
        assert [entry.path for entry in sandbox.list_dir()] == ["a.py", "d/b.py"]


def test_lines_are_found_with_what_was_left_out(face, engine_log):
    with face(files={"a": "one\ntwo\n", "b": b"two\xff\n"}) as sandbox:
        found = sandbox.grep("two", glob="*", literal=True, ignore_case=True, max_count=7)
        assert [(match.path, match.line_number, match.line) for match in found] == [
            ("a", 2, "two"),
            ("b", 1, "two\ufffd"),
        ]
        assert found[1].line_bytes == b"two\xff"
        assert (found.truncated, found.binary_files) == (True, 2)
        (asked,) = engine_log.events("GrepFiles")
        assert (asked["glob"], asked["literal"], asked["ignore_case"], asked["max_count"]) == ("*", True, True, 7)


def test_an_edit_says_what_it_did_and_why_it_did_not(face):
    with face(files={"f": "a b a\n"}) as sandbox:
        edit = sandbox.edit_file("f", "b", "c")
        assert (edit.path, edit.replacements, edit.diff_reason) == ("f", 1, None)
        assert edit.diff.startswith("--- a")
        with pytest.raises(ValueError, match="several") as raised:
            sandbox.edit_file("f", "a", "x")
        assert (raised.value.reason, raised.value.count) == ("several_matches", 2)
        assert sandbox.edit_file("f", "a", b"x", replace_all=True).replacements == 2
        with pytest.raises(stepbox.SandboxError) as raised:
            sandbox.edit_file("f", "q", "x")
        assert raised.value.reason == "no_match"
        assert sandbox.read_text("f") == "x c x\n"


def test_mistakes_of_shape_are_told_together(face):
    with face() as sandbox, pytest.raises(stepbox.SandboxError) as raised:
        sandbox.grep(3, max_count=0, literal="yes")
    assert [violation.field for violation in raised.value.violations] == ["pattern", "literal", "max_count"]
