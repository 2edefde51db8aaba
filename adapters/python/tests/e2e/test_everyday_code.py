"""What agents write every day: it must come back as an ordinary Linux machine would give it."""

from __future__ import annotations

import os
import random
import secrets
import shutil
from pathlib import Path

import pytest
from evidence import changes

import stepbox


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not on this host")


def test_the_last_bytes_need_no_newline(sandbox):
    result = sandbox.py("import sys; sys.stdout.write('no end of line')")
    assert (result.stdout, result.exit_code, result.fault) == ("no end of line", 0, None)
    assert sandbox.sh("printf y").stdout == "y"


def test_a_background_child_that_holds_the_pipe_holds_up_nothing_and_is_gone(sandbox, marker):
    result = sandbox.sh(f"echo first; sleep {marker.number} & echo second")
    assert (result.stdout, result.exit_code, result.fault) == ("first\nsecond\n", 0, None)
    assert marker.running() == []


def test_stdin_is_at_its_end_and_never_the_callers(sandbox):
    code = "import sys\nprint(repr(sys.stdin.read()))\ntry: input('who? ')\nexcept EOFError: print('at end')"
    assert sandbox.py(code).stdout == "''\nwho? at end\n"
    assert sandbox.py("print(input() + input())", stdin="a\nb\n").stdout == "ab\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "code_stderr"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(256)", 0, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit('over')", 1, "over\n"),
        ("raise SystemExit([2])", 1, "[2]\n"),
        ("raise SystemExit(True)", 1, ""),
        ("import os; os._exit(7)", 7, ""),
        ("import threading, sys\nt = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join()", 0, ""),
        *((f"import sys; sys.exit({number})", number, "") for number in (125, 126, 127, 137, 143, 159)),
    ],
)
def test_an_exit_is_as_linux_gives_it_and_no_fault(sandbox, code, exit_code, code_stderr):
    result = sandbox.py(code)
    assert (result.exit_code, result.code_stderr, result.fault) == (exit_code, code_stderr, None)
    assert result.signal is None


def test_an_exception_is_the_codes_own_and_shows_its_own_frames(sandbox):
    result = sandbox.py("def f():\n    raise KeyError('lost')\nf()")
    assert (result.exit_code, result.fault, result.success) == (1, None, False)
    assert result.code_stderr.splitlines()[-1] == "KeyError: 'lost'"
    assert result.code_stderr.count("  File ") == 2


def test_multiprocessing_works_with_every_start_method(sandbox):
    result = sandbox.py(
        "import multiprocessing as mp\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    for method in ('fork', 'spawn', 'forkserver'):\n"
        "        with mp.get_context(method).Pool(2) as pool: print(method, pool.map(double, [1, 2]))\n"
    )
    assert result.stdout == "fork [2, 4]\nspawn [2, 4]\nforkserver [2, 4]\n", result.stderr


def test_the_code_can_see_how_many_cpus_it_has(face):
    with face(cpus=1) as sandbox:
        result = sandbox.py("import os; print(len(os.sched_getaffinity(0)))")
        assert result.stdout == "1\n"


def test_text_is_utf_8_though_nobody_said_so(sandbox):
    code = (
        "import sys\nprint(sys.stdout.encoding.lower(), sys.getfilesystemencoding())\n"
        "print('naïve 世界 🎉'); open('é-界.txt', 'w').write('ü'); print(open('é-界.txt', 'rb').read())"
    )
    result = sandbox.py(code)
    assert result.stdout == "utf-8 utf-8\nnaïve 世界 🎉\nb'\\xc3\\xbc'\n"
    assert changes(result) == ["é-界.txt"]


def test_output_that_is_no_text_comes_back_to_the_bit(sandbox):
    result = sandbox.py("import sys; sys.stdout.buffer.write(bytes(range(256)))")
    assert result.stdout_bytes == bytes(range(256))
    assert "\ufffd" in result.stdout


def test_the_limit_of_output_is_exact_and_never_silent(face):
    with face(max_output_bytes=10_000) as sandbox:
        for written in (9_999, 10_000, 10_001, 20_000_000):
            result = sandbox.py(f"import sys; sys.stdout.write('a' * ({written} - 3) + 'END')")
            assert (result.exit_code, result.fault) == (0, None)
            assert len(result.stdout_bytes) == min(written, 10_000)
            assert result.stdout_total_bytes == written
            assert result.truncated_stdout is (written > 10_000)
            assert not result.truncated_stderr
            assert result.stdout.endswith("END")


def test_signals_are_as_at_a_login(sandbox):
    result = sandbox.sh("yes | head -1; echo ${PIPESTATUS[0]}; grep -E '^Sig(Ign|Blk)' /proc/self/status")
    assert result.stdout == "y\n141\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
    assert result.code_stderr == ""


def test_what_code_does_to_its_home_itself_is_gone_after_the_step(sandbox):
    code = (
        "import os\n"
        "for place in (os.path.expanduser('~'), os.environ['TMPDIR']):\n"
        "    print(oct(os.stat(place).st_mode), os.listxattr(place))\n"
        "    try: os.setxattr(place, 'user.kept', b'1')\n"
        "    except OSError: pass\n"
        "    os.chmod(place, 0)\n"
    )
    # One sandbox is used while the next is made.
    for _ in range(4):
        assert sandbox.py(code).stdout == "0o40755 []\n" * 2


def test_home_and_temporary_files_are_there_and_not_in_the_workspace(sandbox):
    code = (
        "import tempfile, pathlib, getpass\n"
        "with tempfile.NamedTemporaryFile() as file: print(pathlib.Path(file.name).exists())\n"
        "cache = pathlib.Path.home() / '.cache' / 'x'\n"
        "cache.mkdir(parents=True, exist_ok=True); print(cache.is_dir())\n"
        "print(bool(getpass.getuser()))"
    )
    result = sandbox.py(code)
    assert (result.stdout, result.code_stderr, result.files) == ("True\nTrue\nTrue\n", "", [])


@needs("git")
def test_git_works_in_the_workspace(sandbox):
    result = sandbox.sh(
        "git init -q p && cd p && echo x > f && git add f && "
        "git -c user.name=N -c user.email=n@example.org commit -qm m && "
        "git log --oneline | wc -l && git status -s | wc -l"
    )
    assert (result.stdout, result.code_stderr) == ("1\n0\n", "")


@needs("gcc")
def test_what_is_compiled_runs_in_tmp_and_in_the_workspace(sandbox):
    result = sandbox.sh(
        "printf '#include <stdio.h>\\nint main(void){puts(\"made\");return 3;}' > /tmp/m.c && gcc -o /tmp/m /tmp/m.c;"
        " /tmp/m; echo $?; cp /tmp/m m; ./m; echo $?"
    )
    assert result.stdout == "made\n3\nmade\n3\n"


@pytest.mark.parametrize("size", [131_072, 200_000, 5_000_000])
def test_code_may_be_of_any_size(sandbox, size):
    filler = "a" * size
    assert sandbox.py(f"x = '{filler}'\nprint(len(x))").stdout == f"{size}\n"
    assert sandbox.sh(f": '{filler}'\necho done").stdout == "done\n"


def test_the_program_that_ran_is_the_one_that_was_sent(sandbox):
    for _ in range(20):
        token = secrets.token_hex(16)
        padding = "#" + "é" * random.choice([0, 10, 65_530, 65_536, 1_000_003])
        assert sandbox.py(f"{padding}\nprint('{token}')").stdout == token + "\n"
    empty = sandbox.py("")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "")


def test_asyncio_waits_for_its_subprocesses(sandbox):
    code = (
        "import asyncio\nasync def main():\n"
        "    p = await asyncio.create_subprocess_exec('sh', '-c', 'echo hi; exit 4', stdout=-1)\n"
        "    print((await p.communicate())[0], p.returncode)\nasyncio.run(main())"
    )
    assert sandbox.py(code).stdout == "b'hi\\n' 4\n"


def test_a_change_of_equal_size_and_time_is_seen(sandbox):
    sandbox.write_file("c.txt", "wait=30\n")
    result = sandbox.py(
        "import os\ns = os.stat('c.txt')\nwith open('c.txt', 'r+') as f: f.write('wait=90\\n')\n"
        "os.utime('c.txt', ns=(s.st_atime_ns, s.st_mtime_ns))"
    )
    assert changes(result, "modified") == ["c.txt"]
    assert changes(result) == []


# Changes a file through a mapping, and leaves its descriptor in rings of sockets, which the kernel takes apart later.
UNCLOSED = """
import array, mmap, os, socket
file = os.open('d', os.O_RDWR)
mapped = mmap.mmap(file, 0)
for _ in range({rings}):
    pair = socket.socketpair()
    for end in pair:
        numbers = array.array('i', [file, *(other.fileno() for other in pair)])
        end.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
    for end in pair:
        end.close()
mapped[0:8] = b'{number:08}'
os._exit(0)
"""


def test_a_change_through_a_mapping_is_told_though_the_file_is_closed_after_the_steps_end(sandbox):
    sandbox.py("open('d', 'wb').write(b'a' * 8192)")
    for number in range(10):
        sandbox.py("1")
        assert sandbox.py("import os; os.listdir()").files == []
        step = sandbox.py(UNCLOSED.format(rings=1 if number % 2 else 50, number=number))
        assert (step.exit_code, changes(step, "modified")) == (0, ["d"])
        reading = sandbox.py("print(open('d').read(8))")
        assert (reading.stdout, reading.files) == (f"{number:08}\n", [])


def test_created_modified_deleted_and_renamed_are_told_apart(sandbox):
    for name in ("m", "d", "r"):
        sandbox.write_file(name, name)
    result = sandbox.sh("echo more >> m; rm d; mv r moved; mkdir dir; ln -s m link; echo x > c")
    assert changes(result) == ["c", "dir", "link"]
    assert changes(result, "modified") == ["m"]
    assert changes(result, "deleted") == ["d"]
    assert [(item.old_path, item.path) for item in result.files if item.change == "renamed"] == [("r", "moved")]
    kinds = {item.path: item.kind for item in result.files}
    assert (kinds["dir"], kinds["link"], kinds["c"]) == ("dir", "symlink", "file")


def test_odd_kinds_and_names_are_listed_and_never_opened(sandbox):
    result = sandbox.py(
        "import os, socket\n"
        "open('a', 'w').write('1'); os.link('a', 'b'); os.symlink('a', 's'); os.symlink('/no/where', 'dangling')\n"
        "os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('sock')\n"
        "f = open('sparse', 'wb'); f.truncate(1 << 40); f.close()\n"
        "for n in ('new\\nline', '-rf', 'sp ace', 'q\\'\"`$x', '.hidden', 'x' * 255): open(n, 'w').close()\n"
        "os.close(os.open(b'bad\\xff\\xfe', os.O_CREAT | os.O_WRONLY))\n"
        "print(len(os.listdir(b'.')))"
    )
    assert (result.stdout, result.exit_code) == ("14\n", 0)
    kinds = {item.path: item.kind for item in result.files if item.change == "created"}
    assert len(kinds) == 14
    assert (kinds["pipe"], kinds["sock"], kinds["s"], kinds["sparse"]) == ("fifo", "socket", "symlink", "file")
    odd = b"bad\xff\xfe".decode("utf-8", "surrogateescape")
    assert odd in kinds
    assert sandbox.read_file(odd) == b""
    sandbox.remove(odd)
    assert not sandbox.exists(odd)


def test_the_sandbox_leaves_no_files_of_its_own(face, tmp_path):
    workspace = tmp_path / "ws"
    workspace.mkdir()
    with face(workspace=str(workspace)) as sandbox:
        result = sandbox.sh("ls -A | wc -l")
        assert (result.stdout, result.files) == ("0\n", [])
        assert list(workspace.iterdir()) == []
        assert sandbox.workspace == str(workspace)
    assert list(workspace.iterdir()) == []


def test_files_in_a_given_workspace_are_the_callers(face, tmp_path):
    with face(workspace=str(tmp_path)) as sandbox:
        assert sandbox.sh("mkdir d; echo x > d/f").success
        sandbox.write_file("e/g", "y")
    for name in ("d", "d/f", "e", "e/g"):
        assert (tmp_path / name).stat().st_uid == os.getuid()


def test_a_workspace_that_resists_is_listed_and_removed_all_the_same(face):
    with face() as sandbox:
        sandbox.sh("mkdir -p a/b && touch a/b/f && chmod 000 a/b && chmod 500 a; ln -s / up; true")
        assert sandbox.py("print(1)").stdout == "1\n"


@pytest.mark.parametrize("given", [False, True])
def test_a_workspace_that_code_shuts_is_open_to_the_next_step_and_to_its_owner(face, tmp_path, given):
    with face(**({"workspace": str(tmp_path)} if given else {})) as sandbox:
        sandbox.write_file("before", "1")
        assert sandbox.sh("chmod 000 .").success
        assert sandbox.sh("cat before; echo 2 > after").stdout == "1"
        sandbox.sh("chmod 000 .")
        assert sandbox.read_file("after") == b"2\n"
        sandbox.sh("chmod 000 .")
    if given:
        assert tmp_path.stat().st_mode & 0o700 == 0o700


def test_many_files_are_all_told_or_the_result_says_not(face):
    with face() as sandbox:
        result = sandbox.py("for i in range(12_000): open(f'f{i}', 'w').close()", timeout_s=60)
        assert result.files_truncated or len(changes(result)) == 12_000


def test_without_tracking_nothing_is_told(face):
    with face(track_files=False) as sandbox:
        result = sandbox.sh("echo x > f")
        assert (result.files, result.files_tracked) == ([], False)


def test_read_only_places_stay_as_they_are(face, tmp_path):
    with face(mounts={str(tmp_path): ("/in", "ro")}) as sandbox:
        result = sandbox.py(
            "for place in ('/in/x', '/etc/x', '/usr/x', '/proc/sys/kernel/hostname'):\n"
            "    try: open(place, 'w'); print('wrote', place)\n"
            "    except OSError as e: print(e.errno in (1, 2, 13, 30))"
        )
        assert result.stdout == "True\n" * 4
    assert list(tmp_path.iterdir()) == []


def test_a_mount_is_written_through(face, tmp_path):
    (tmp_path / "given").write_text("from the host")
    with face(mounts={str(tmp_path): "/data"}) as sandbox:
        assert sandbox.sh("cat /data/given; echo back > /data/new").stdout == "from the host"
    assert (tmp_path / "new").read_text() == "back\n"


@pytest.mark.parametrize("target", ["/home/user", "/home", "/var/tmp", "/var"])
def test_what_is_mounted_over_a_scratch_directory_is_not_emptied(face, tmp_path, target):
    for below in ("", "user", "tmp"):
        (tmp_path / below).mkdir(exist_ok=True)
        (tmp_path / below / "kept").write_text("the caller's")
    with face(mounts={str(tmp_path): target}) as sandbox:
        for _ in range(2):
            assert sandbox.run(["cat", f"{target}/kept"]).stdout == "the caller's"
    assert sorted(path.parent.name for path in tmp_path.rglob("kept")) == sorted([tmp_path.name, "user", "tmp"])


@pytest.mark.parametrize(
    "trick",
    [
        "echo x > .git/hooks/pre-commit",
        "mv .git/hooks old && mkdir .git/hooks && echo x > .git/hooks/pre-commit",
        "mv .git old && mkdir -p .git/hooks && echo x > .git/hooks/pre-commit",
        "mkdir new && mv -T --exchange new .git",
        "rm -rf .git && mkdir -p .git/hooks && echo x > .git/hooks/pre-commit",
        "mv .git/config old && echo x > .git/config",
    ],
)
def test_what_the_callers_tools_run_cannot_be_changed_or_replaced(face, tmp_path, trick):
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".git/config").write_text("the caller's")
    with face(workspace=str(tmp_path)) as sandbox:
        assert sandbox.sh(trick).exit_code != 0
        assert sandbox.sh("echo y > .git/description").exit_code == 0
    assert sorted(path.name for path in (tmp_path / ".git").iterdir() if path.name != "description") == [
        "config",
        "hooks",
    ]
    assert (tmp_path / ".git/config").read_text() == "the caller's"
    assert list((tmp_path / ".git/hooks").iterdir()) == []


@pytest.mark.parametrize("link", [".git", ".git/hooks", ".envrc"])
def test_a_workspace_with_a_link_for_a_protected_name_opens(face, tmp_path, link):
    (tmp_path / "real/hooks").mkdir(parents=True)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "real")
    with face(workspace=str(tmp_path)) as sandbox:
        assert sandbox.run(["true"]).success


def test_the_host_is_not_there(sandbox, tmp_path):
    (tmp_path / "secret").write_text("s")
    assert sandbox.run(["cat", str(tmp_path / "secret")]).exit_code == 1
    result = sandbox.py("import os; print(sorted(k for k in os.environ if 'STEPBOX' in k))")
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    "source", ["/", "/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/root", "~", "relative", "/nonexistent/x"]
)
def test_a_refused_mount_is_refused_before_anything_is_made(source):
    with pytest.raises(stepbox.MountRefused):
        stepbox.Sandbox(mounts={str(Path(source).expanduser()): "/box"})


@needs("node")
def test_javascript_runs_where_node_is(sandbox):
    assert sandbox.run_code("console.log(6 * 7)", "javascript").stdout == "42\n"


def test_the_languages_are_these(sandbox):
    assert sandbox.run_code("echo $0 | wc -l", "sh").stdout == "1\n"
    with pytest.raises(stepbox.SandboxError, match=r"cobol"):
        sandbox.run_code("x", "cobol")


def test_the_callers_own_packages_are_there(sandbox):
    assert sandbox.py("import grpc; print(grpc.__name__)").stdout == "grpc\n"


def test_arguments_environment_and_directory_reach_the_code(sandbox):
    sandbox.make_dir("sub")
    code = "import os, sys; print(sys.argv[1:], os.environ['A'], os.getcwd())"
    result = sandbox.py(code, args=["x", "y z"], env={"A": "1\n2"}, cwd="sub")
    assert result.stdout == "['x', 'y z'] 1\n2 /workspace/sub\n"
    assert sandbox.run(["env"], env={"B": "2"}).stdout.count("B=2\n") == 1


def test_files_persist_and_variables_do_not(sandbox):
    assert sandbox.py("x = 1; open('f', 'w').write('kept')").success
    assert sandbox.py("print(open('f').read()); x").code_stderr.endswith("NameError: name 'x' is not defined\n")


def test_the_file_that_leads_a_linked_work_tree_to_its_repository_is_read_only(face, tmp_path):
    (tmp_path / ".git").write_text("gitdir: /somewhere")
    with face(workspace=str(tmp_path)) as sandbox:
        assert sandbox.sh("echo 'gitdir: evil' > .git").exit_code != 0
        assert sandbox.sh("mv .git other || rm .git").exit_code != 0
        assert sandbox.sh("touch other").success
    assert (tmp_path / ".git").read_text() == "gitdir: /somewhere"
