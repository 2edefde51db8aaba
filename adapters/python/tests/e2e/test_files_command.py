"""`stepbox files` against an engine that runs, and a session that a client holds open."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess

import pytest

import stepbox
from stepbox._discovery import find_binary


@pytest.fixture
def engine():
    return str(find_binary(os.environ))


@pytest.fixture
def files(engine, tmp_path, monkeypatch):
    with stepbox.Sandbox() as sandbox:
        held = sandbox._lease.session
        monkeypatch.setenv("STEPBOX_ADDRESS", held.engine.address.target)
        monkeypatch.setenv("STEPBOX_TOKEN_FILE", str(held.engine.address.token_file))

        def command(verb, *words, stdin=b"", code=0):
            ended = subprocess.run(
                [engine, "files", verb, held.id, *words], input=stdin, capture_output=True, cwd=tmp_path, check=False
            )
            assert ended.returncode == code, ended
            return ended

        command.sandbox = sandbox
        command.session = held.id
        yield command


def test_files_go_in_and_out_and_are_listed(files, tmp_path):
    content = os.urandom(3 << 20)
    (tmp_path / "local").write_bytes(content)
    (tmp_path / "local").chmod(0o750)
    assert files("put", "local", "d/there").stdout == b""
    assert files.sandbox.read_file("d/there") == content
    assert files.sandbox.stat("d/there").mode == 0o750
    files("put", "-", "text", stdin=b"one\ntwo\n")
    assert files("cat", "text").stdout == b"one\ntwo\n"
    files("get", "d/there")
    assert (tmp_path / "there").read_bytes() == content
    files("get", "text", "copy")
    assert (tmp_path / "copy").read_text() == "one\ntwo\n"
    assert files("get", "text", "-").stdout == b"one\ntwo\n"
    assert files("ls").stdout == b"d/\ntext\n"
    assert files("ls", "-r").stdout == b"d/\nd/there\ntext\n"
    assert files("ls", "-l", "d").stdout == b"0750      3145728 file    d/there\n"
    assert files("glob", "**/t*").stdout == b"d/there\ntext\n"
    assert files("grep", "t.o").stdout == b"text:2:two\n"
    assert files("grep", "nowhere", code=1).stdout == b""
    files("rm", "text")
    assert b"no such file" in files("rm", "text", code=125).stderr
    files("rm", "-r", "d")
    assert files("ls").stdout == b""


def test_everything_is_told_as_json_too(files):
    assert json.loads(files("put", "--json", "-", "f", stdin=b"a\n").stdout) == {"path": "f", "size_bytes": 2}
    listed = json.loads(files("ls", "--json").stdout)
    assert [(entry["path"], entry["kind"], entry["size"]) for entry in listed["files"]] == [("f", "file", 2)]
    assert json.loads(files("glob", "*", "--json").stdout)["files"] == listed["files"]
    assert json.loads(files("cat", "f", "--json").stdout)["text"] == "a\n"
    found = json.loads(files("grep", "a", "--json").stdout)
    assert found["matches"] == [{"path": "f", "line_number": 1, "line": "a"}]
    assert json.loads(files("get", "f", "g", "--json").stdout) == {"path": "g", "size_bytes": 2}
    assert json.loads(files("rm", "f", "--json").stdout) == {"removed_count": 1}


def test_what_is_wrong_is_said_without_a_trace(files, engine):
    assert b"at character 2" in files("grep", "a(", code=125).stderr
    assert b"escapes" in files("cat", "../x", code=125).stderr
    assert b"local: No such file" in files("put", "local", "x", code=125).stderr
    ended = subprocess.run([engine, "files", "ls", "0" * 32], capture_output=True, check=False)
    assert ended.returncode == 125
    assert ended.stderr.startswith(b"stepbox: ")


def _at_a_terminal(command, environment):
    """What a command prints to a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environment)
    printed = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            break
        if not part:
            break
        printed += part
    os.close(terminal)
    os.waitpid(pid, 0)
    return printed


def test_colours_are_for_terminals_and_names_cannot_drive_one(files, engine):
    files.sandbox.write_file("\x1b[2Jname", "\x1b[31mred\n")
    files.sandbox.make_dir("d")
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    listing = [engine, "files", "ls", files.session]
    assert _at_a_terminal(listing, environment) == b"\\u{1b}[2Jname\r\n\x1b[34md/\x1b[0m\r\n"
    assert _at_a_terminal(listing, {**environment, "NO_COLOR": "1"}) == b"\\u{1b}[2Jname\r\nd/\r\n"
    assert files("ls").stdout == b"\x1b[2Jname\nd/\n"
    found = _at_a_terminal([engine, "files", "grep", files.session, "red"], environment)
    assert b"\x1b[31m" not in found
    assert b"\\u{1b}[31mred" in found


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_the_commands(engine):
    script = subprocess.run([engine, "completions", "bash"], capture_output=True, check=True, text=True).stdout
    asked = "COMP_WORDS=(stepbox files gr); COMP_CWORD=2; _stepbox stepbox gr files; echo ${COMPREPLY[@]}"
    told = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, check=True, text=True).stdout
    assert told.split() == ["grep"]
