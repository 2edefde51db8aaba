from __future__ import annotations

import os

import pytest

import stepbox


def test_files_are_written_read_listed_and_removed(face):
    with face() as sandbox:
        assert sandbox.write_file("a.txt", "héllo") == 6
        assert sandbox.write_file("d/b.bin", b"\x00\x01") == 2
        sandbox.write_file("empty", b"")
        assert sandbox.read_file("a.txt") == "héllo".encode()
        assert sandbox.read_text("a.txt") == "héllo"
        assert sandbox.read_file("empty") == b""
        assert sandbox.read_file("a.txt", offset=3, length=2) == b"ll"
        assert sandbox.list_files() == ["a.txt", "d/b.bin", "empty"]
        assert sandbox.list_files("d") == ["d/b.bin"]
        assert (sandbox.stat("a.txt").size, sandbox.stat("a.txt").kind) == (6, "file")
        sandbox.make_dir("e")
        sandbox.move("a.txt", "c.txt")
        assert (sandbox.exists("a.txt"), sandbox.exists("c.txt")) == (False, True)
        sandbox.remove("c.txt")
        assert not sandbox.exists("c.txt")


def test_first_files_are_there_when_it_opens(face):
    with face(files={"a": "text", "d/b": b"bytes"}) as sandbox:
        assert sandbox.list_files() == ["a", "d/b"]


def test_a_session_whose_first_files_cannot_be_written_is_closed_again(face, engine_log):
    with pytest.raises(stepbox.SandboxError, match="not yours"), face(files={"a": "x", "secret": "y"}):
        pass
    assert len(engine_log.events("CloseSession")) == len(engine_log.events("CreateSession")) == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "'': an empty path"),
        (b"", "b'': an empty path"),
        (".", "'.': names a directory, not a file"),
        ("d/", "'d/': names a directory, not a file"),
        ("d/.", "'d/.': names a directory, not a file"),
        ("/workspace", "'/workspace': names a directory, not a file"),
        ("../x", "'../x': \"..\" is not allowed in a path"),
        ("d/../x", "'d/../x': \"..\" is not allowed in a path"),
        ("/workspace/../x", "'/workspace/../x': \"..\" is not allowed in a path"),
        ("/etc/x", "'/etc/x': is outside the workspace; a path is relative to it, or absolute below /workspace"),
        ("//workspace/x", "'//workspace/x': is outside the workspace"),
        ("/workspacex", "'/workspacex': is outside the workspace"),
        ("a\0b", "'a\\x00b': holds a NUL byte at 1"),
        ("d/" + "é" * 128, ": a name of 256 bytes; at most 255"),
        ("d/" * 2048 + "x", ": a path of 4097 bytes; at most 4096"),
        (3, "must be a path, got int 3"),
    ],
)
def test_a_first_file_that_can_never_be_written_is_refused_before_anything_is_made(face, engine_log, path, said):
    with pytest.raises(stepbox.SandboxError) as raised, face(files={path: "x", "good": "y"}):
        pass
    (violation,) = raised.value.violations
    assert violation.field == "files"
    assert said in violation.message
    assert engine_log.events("CreateSession") == []


def test_all_mistakes_of_the_first_files_are_told_with_those_of_the_other_options():
    files = {"../x": "1", "/workspace/./a": "2", "a//b": "3", "a/b/c": "4", "ab": "5", "/etc/x": "6", "n": 7}
    with pytest.raises(stepbox.SandboxError) as raised:
        stepbox.Sandbox(files=files, env="A", memory_mb=1)
    messages = [violation.message for violation in raised.value.violations if violation.field == "files"]
    assert messages == [
        "'../x': \"..\" is not allowed in a path",
        "'/etc/x': is outside the workspace; a path is relative to it, or absolute below /workspace",
        "'n': must be bytes or str, got int 7",
        "'/workspace/./a' is a file, so that 'a//b' cannot be below it",
        "'/workspace/./a' is a file, so that 'a/b/c' cannot be below it",
    ]
    assert {violation.field for violation in raised.value.violations} == {"files", "env", "memory_mb"}


@pytest.mark.parametrize("path", ["/workspace/d/f", "./d/f", "d//f", "d/./f", b"d/f\xff", "..d", "d/f..", "é" * 127])
def test_a_path_of_a_first_file_that_the_engine_would_take_is_taken(path):
    with stepbox.Sandbox(files={path: "x"}):
        pass


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 5_000_001])
def test_any_size_goes_in_pieces_and_comes_back_whole(face, engine_log, size):
    data = os.urandom(size)
    with face() as sandbox:
        for given in (data, bytearray(data), memoryview(data)):
            assert sandbox.write_file("blob", given) == size
        assert sandbox.read_file("blob") == data
    assert max(event["largest"] for event in engine_log.events("WriteFile")) <= 1 << 20


def test_upload_and_download_go_through_files_of_the_host(face, tmp_path):
    local, back = tmp_path / "in", tmp_path / "out"
    local.write_bytes(b"x" * 3_000_000)
    with face() as sandbox:
        assert sandbox.upload(local, "there") == 3_000_000
        assert sandbox.download("there", str(back)) == 3_000_000
        assert back.read_bytes() == local.read_bytes()
        with pytest.raises(FileNotFoundError):
            sandbox.upload(tmp_path / "missing", "there")
        with pytest.raises(FileNotFoundError):
            sandbox.download("missing", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_source_that_fails_midway_raises_its_own_error_and_writes_nothing(face, engine_log, tmp_path, monkeypatch):
    class Failing:
        reads = 0

        def read(self, size):
            self.reads += 1
            if self.reads > 2:
                raise OSError(5, "the disk is broken")
            return b"x" * size

        def fileno(self):
            return 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    from stepbox import _operations

    class FailingPath(type(tmp_path)):
        def open(self, mode):
            return Failing()

    monkeypatch.setattr(_operations, "Path", FailingPath)
    with face() as sandbox:
        with pytest.raises(OSError, match="the disk is broken"):
            sandbox.upload("anything", "cut")
        assert not sandbox.exists("cut")
        assert sandbox.run(["print", "next"]).success


def test_names_that_are_no_text_go_both_ways(face):
    with face() as sandbox:
        for name in (b"bad\xff", "new\nline", "-rf", " lead", "d/" + "é" * 100, "q'\"`$x"):
            sandbox.write_file(name, b"1")
            assert sandbox.read_file(name) == b"1"
        names = sandbox.list_files()
        assert "bad\udcff" in names
        assert all(sandbox.read_file(name) == b"1" for name in names)


def test_a_failed_file_call_is_ours_and_pythons(face):
    with face(files={"d/f": "x"}) as sandbox:
        for call, builtin, reason in (
            (lambda: sandbox.read_file("missing"), FileNotFoundError, "not_found"),
            (lambda: sandbox.remove("missing"), FileNotFoundError, "not_found"),
            (lambda: sandbox.read_file("d"), IsADirectoryError, "is_directory"),
            (lambda: sandbox.read_file("secret"), PermissionError, "permission_denied"),
            (lambda: sandbox.write_file("../x", b""), ValueError, "invalid_path"),
            (lambda: sandbox.write_file("../x", b"x" * 30_000_000), ValueError, "invalid_path"),
            (lambda: sandbox.read_file("d/f", max_bytes=0), OSError, "too_large"),
        ):
            with pytest.raises(builtin) as raised:
                call()
            assert isinstance(raised.value, stepbox.SandboxError)
            assert raised.value.reason == reason


def test_what_cannot_be_written_is_refused_before_any_call(face):
    with face() as sandbox:
        with pytest.raises(stepbox.SandboxError, match="data: must be bytes or str, got int 3"):
            sandbox.write_file("a", 3)
        with pytest.raises(stepbox.SandboxError, match="path: must be a path, got NoneType None"):
            sandbox.read_file(None)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1, "must be a whole number from 0, got -1"),
        (2**64, "must be a whole number from 0 to 18446744073709551615, got 18446744073709551616"),
        pytest.param(
            10**5000,
            "must be a whole number from 0 to 18446744073709551615, got one that is too long to be written",
            id="too long",
        ),
        (1.5, "must be a whole number, got float 1.5"),
        ("1", "must be a whole number, got str '1'"),
        (True, "must be a whole number, got bool True"),
    ],
)
def test_a_wrong_number_of_a_file_call_is_refused_by_name(face, value, said):
    with face(files={"a": "x"}) as sandbox:
        for name in ("offset", "length", "max_bytes"):
            with pytest.raises(stepbox.SandboxError) as raised:
                sandbox.read_file("a", **{name: value})
            assert str(raised.value) == f"{name}: {said}"
        with pytest.raises(stepbox.SandboxError, match=r"^mode: must be .* such as 0o644, got"):
            sandbox.write_file("a", "y", mode=2**32 if value == 2**64 else value)
        assert sandbox.read_file("a", offset=0, length=None, max_bytes=2**64 - 1) == b"x"


def test_what_is_no_truth_value_is_refused_by_name(face):
    with face(files={"a": "x"}) as sandbox:
        with pytest.raises(stepbox.SandboxError, match=r"^recursive: must be True or False, got str 'x'$"):
            sandbox.remove("a", recursive="x")
        with pytest.raises(stepbox.SandboxError, match=r"^replace: must be True or False, got int 2$"):
            sandbox.move("a", "b", replace=2)
        assert sandbox.list_files() == ["a"]


def test_all_mistakes_of_a_file_call_are_told_together(face):
    with face() as sandbox:
        for call, fields in (
            (lambda: sandbox.read_file(1, offset=-1, length="1"), ["path", "offset", "length"]),
            (lambda: sandbox.write_file(1, 2, mode="755"), ["path", "data", "mode"]),
            (lambda: sandbox.move(1, 2, replace=3), ["source", "target", "replace"]),
        ):
            with pytest.raises(stepbox.SandboxError) as raised:
                call()
            assert [violation.field for violation in raised.value.violations] == fields
