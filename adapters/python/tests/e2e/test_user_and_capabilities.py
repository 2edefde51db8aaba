"""`user=` and `cap_drop=`: who the code is, what it may do as that, and whose files are left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from evidence import changes, children, eventually
from postures import WAYS, running, where_ids_are, why_no_range

import stepbox

# Tasks are counted for each user where no cgroup counts them, and a server becomes others.
SERVER = {"user": "root", "cap_drop": (), "pids": None}
KEPT = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE"

WHO = """
    import getpass, grp, os, pwd, subprocess
    account = pwd.getpwuid(os.getuid())
    print(os.getuid(), os.getgid(), account.pw_name, grp.getgrgid(os.getgid()).gr_name, getpass.getuser())
    print(account.pw_dir == os.environ['HOME'], os.stat('/workspace').st_uid == os.stat('/tmp').st_uid == os.getuid())
    print(subprocess.run(['id', '-u'], capture_output=True, text=True).stdout, end='')
    sets = [line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')]
    print({int(word, 16) for word in sets} == {0})
    open('made', 'w').write('x')
    os.chmod('made', 0o600)
"""


def owners(place):
    """Everything at and below a directory of the host that is not the caller's."""
    found = [place, *place.rglob("*")]
    return [path for path in found if (path.lstat().st_uid, path.lstat().st_gid) != (os.getuid(), os.getgid())]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("user", "uid", "gid", "name", "group"),
    [
        (None, 1000, 1000, "user", "user"),
        ("root", 0, 0, "root", "root"),
        ("nobody", 65534, 65534, "nobody", "nogroup"),
        ("1234", 1234, 1234, "user", "user"),
        ("1000:100", 1000, 100, "user", "user"),
        ("daemon", 1, 1, "daemon", "daemon"),
        ("70000:0", 70000, 0, "user", "root"),
    ],
)
def test_the_code_is_who_it_was_asked_to_be_and_its_files_are_the_callers(tmp_path, way, user, uid, gid, name, group):
    with running(way, user=user, workspace=tmp_path) as (sandbox, py):
        result = py(WHO)
        assert result.stdout == f"{uid} {gid} {name} {group} {name}\nTrue True\n{uid}\nTrue\n", result.stderr
        assert sandbox.read_file("made") == b"x"
    assert (tmp_path / "made").read_text() == "x"
    assert owners(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
def test_root_without_capabilities_is_nobody_in_particular(way):
    code = """
        import os
        for act in [
            lambda: os.setuid(1),
            lambda: os.chown('made', 1, 1),
            lambda: os.setgroups([5]),
            lambda: os.chroot('/'),
        ]:
            open('made', 'w')
            try:
                act()
                print('done')
            except OSError as error:
                print(error.strerror)
        os.setuid(0)
        print(os.access('/etc/passwd', os.W_OK))
    """
    with running(way, user="root") as (_, py):
        result = py(code)
        lines = result.stdout.splitlines()
        assert len(lines) == 5, result.stderr
        # The one where the id is not there, the other where it is and is somebody else's.
        assert set(lines[:4]) <= {"Operation not permitted", "Invalid argument"}
        assert lines[4] == "False"


@pytest.mark.parametrize("user", [None, "1234"])
def test_a_copy_with_owners_goes_on_without_them(user):
    with stepbox.Sandbox(user=user) as sandbox:
        result = sandbox.run(["sh", "-c", "cp -a /etc/passwd copy && cp -a /usr/bin/env program && ./program true"])
        assert result.success, result.stderr


@pytest.mark.parametrize(
    ("user", "near"), [("rot", "root"), ("nobdy", "nobody"), ("root:nogrup", "nogroup"), ("dæmon", "daemon")]
)
def test_a_user_that_the_image_lacks_is_refused_with_the_nearest(user, near):
    with pytest.raises(stepbox.SandboxError, match=f'did you mean "{near}"'):
        stepbox.Sandbox(user=user)


@pytest.mark.parametrize("user", ["", "-1", "4294967295", "1000:", ":5", "1:2:3"])
def test_what_is_no_user_is_refused(user):
    with pytest.raises(stepbox.SandboxError, match="user"):
        stepbox.Sandbox(user=user)


def test_a_capability_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(stepbox.SandboxError, match='did you mean "NET_RAW"'):
        stepbox.Sandbox(cap_drop=("NET_RAWW",))
    # The twins: what is never kept can be dropped, in each spelling.
    stepbox.Sandbox(cap_drop=("all", "CAP_NET_RAW", "sys_admin"))


def test_capabilities_are_kept_where_there_are_ids_for_them():
    refused = why_no_range()
    if os.getuid() == 0:
        assert refused is None
    elif shutil.which("newuidmap") is None:
        assert "/etc/subuid" in refused
        assert "newuidmap" in refused


SETS = """
    import os, subprocess
    own = [line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')]
    child = subprocess.run(['grep', '^Cap', '/proc/self/status'], capture_output=True, text=True).stdout
    print(set(own + child.split()[1::2]))
"""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("user", ["root", None])
@where_ids_are
def test_the_conservative_set_is_kept_and_no_more(way, user):
    with running(way, user=user, cap_drop=(), pids=None) as (sandbox, py):
        result = py(SETS)
        assert result.stdout == "{'00000000000005fb'}\n", result.stderr
        assert f"capabilities: {KEPT} within the sandbox" in sandbox.run(["true"]).isolation


@pytest.mark.parametrize("way", WAYS)
@where_ids_are
def test_what_is_named_is_dropped(way):
    with running(way, user="root", cap_drop=("KILL", "CAP_SETPCAP", "setuid", "NET_RAW")) as (_, py):
        result = py(SETS + "    os.chown('/tmp', 5, 5)\n    os.setuid(5)\n")
        assert result.stdout == "{'000000000000045b'}\n"
        assert result.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")


SERVE = """
    import os, socket, subprocess
    os.makedirs('data/deep', exist_ok=True)
    with open('data/deep/base', 'w') as base:
        base.write('kept')
    os.chmod('data/deep/base', 0o600)
    os.chown('data/deep/base', 1, 1)
    os.chown('data/deep', 33, 33)
    os.chmod('data/deep', 0o700)
    os.symlink('base', 'data/link')
    os.lchown('data/link', 8, 8)
    script = 'install -o daemon -g daemon -m 600 /dev/null file && tar -cf files.tar file && mkdir out' \\
        ' && tar -C out -xpf files.tar && stat -c %u:%g:%a file out/file'
    print(subprocess.run(script, shell=True, capture_output=True, text=True, check=True).stdout, end='', flush=True)
    server = os.fork()
    if server == 0:
        with socket.create_server(('127.0.0.1', 80)):
            os.setgroups([8])
            os.setgid(33)
            os.setuid(33)
        sets = [line.split()[1] for line in open('/proc/self/status') if line[:6] in ('CapEff', 'CapPrm', 'CapAmb')]
        print(os.getresuid(), os.getresgid(), os.getgroups(), set(sets), os.listdir('data/deep'), flush=True)
        try:
            os.setuid(0)
        except PermissionError:
            print('for good', flush=True)
        os._exit(0)
    os.waitpid(server, 0)
"""
SERVED = "1:1:600\n1:1:600\n(33, 33, 33) (33, 33, 33) [8] {'0000000000000000'} ['base']\nfor good\n"


@pytest.mark.parametrize("way", WAYS)
@where_ids_are
def test_a_server_gives_files_away_and_all_of_them_are_the_callers_afterwards(tmp_path, way):
    inside, beside = tmp_path / "inside", tmp_path / "beside"
    inside.mkdir()
    beside.mkdir()
    gives = SERVE + "    open('/beside/file', 'w').close()\n    os.chown('/beside/file', 8, 8)\n"
    with running(way, workspace=inside, mounts={str(beside): "/beside"}, **SERVER) as (sandbox, py):
        result = py(gives)
        assert result.success, result.stderr
        assert result.stdout == SERVED
        assert {"data/deep/base", "data/link", "file", "out/file"} <= set(changes(result))
        if way != "kernel":
            # At the end of the step, not of the session.
            assert owners(tmp_path) == []
            assert sandbox.read_file("data/deep/base") == b"kept"
    assert owners(tmp_path) == []
    assert (inside / "data/deep/base").read_text() == "kept"
    assert stat.S_IMODE((inside / "data/deep").stat().st_mode) == 0o700
    shutil.rmtree(inside)
    shutil.rmtree(beside)


@where_ids_are
def test_the_files_of_a_kernel_are_the_callers_when_it_has_ended(tmp_path):
    with stepbox.Sandbox(workspace=tmp_path, **SERVER) as sandbox:
        with sandbox.kernel() as kernel:
            assert kernel.run_code("import os; open('f', 'w').close(); os.chown('f', 1, 1)").success
            assert kernel.run_code("print(os.stat('f').st_uid)").stdout == "1\n"
            # Another step does not take from a kernel that goes on.
            assert sandbox.run(["true"]).success
            assert kernel.run_code("print(os.stat('f').st_uid)").stdout == "1\n"
        assert owners(tmp_path) == []


@where_ids_are
def test_what_a_server_leaves_in_its_home_is_gone_like_anybody_elses():
    leaves = "mkdir d; touch d/f ~/x /var/tmp/x; chown -R daemon d; chown mail ~/x /var/tmp/x ~; chmod 700 d"
    looks = "ls -A ~ /var/tmp | grep x; ls d"
    # Where the host sees it.
    with stepbox.Sandbox(workspace_max_bytes=None, **SERVER) as sandbox:
        assert sandbox.run(["sh", "-c", leaves]).success
        for _ in range(4):
            assert sandbox.run(["sh", "-c", looks]).stdout == "f\n"
        places = [place for place in _directories() if any(place.rglob("d/f"))]
        assert len(places) == 1
    assert not places[0].exists()


def _directories():
    """Those of sessions that are open."""
    base = Path(os.environ.get("TMPDIR", "/tmp"))
    for place in (base, Path("/var/tmp")):
        yield from place.glob(f"stepbox-{os.getuid()}/*/*")


@pytest.mark.parametrize("way", WAYS)
@where_ids_are
def test_whoever_code_becomes_is_nobody_for_the_image(way):
    """A file of the image that only its owner may read stays closed, and so does each mount that is read-only."""
    code = """
        import os
        print({os.stat(path).st_uid for path in ['/usr', '/bin/sh', '/usr/bin/env']})
        for path in ['/usr/x', '/etc/x', '/run/stepbox/x', '/x']:
            try:
                open(path, 'w')
                print('made', path)
            except OSError as error:
                print(error.strerror)
        try:
            os.chown('/etc/passwd', 0, 0)
        except OSError as error:
            print(error.strerror)
    """
    with running(way, **SERVER) as (_, py):
        result = py(code)
        assert result.stdout == "{65534}\n" + "Read-only file system\n" * 5, result.stderr


@pytest.mark.parametrize("way", WAYS)
@where_ids_are
def test_no_setuid_file_and_no_file_capability_is_planted(tmp_path, way):
    code = """
        import os, shutil, struct
        shutil.copy('/bin/true', 'program')
        for act in [
            lambda: os.chmod('program', 0o4755),
            lambda: os.mkdir('d', 0o2755),
            lambda: os.setxattr('program', 'security.capability', struct.pack('<IIIII', 0x2000001, 1 << 7, 0, 0, 0)),
            lambda: os.mknod('device', 0o020666, os.makedev(1, 3)),
            lambda: os.chroot('.'),
        ]:
            try:
                act()
                print('done')
            except PermissionError:
                print('denied')
        os.chmod('program', 0o755)
        os.setxattr('program', 'user.comment', b'x')
    """
    with running(way, workspace=tmp_path, **SERVER) as (_, py):
        result = py(code)
        assert result.success, result.stderr
        # Without the bit a directory is made.
        assert result.stdout.splitlines()[2:] == ["denied"] * 3
        assert result.stdout.splitlines()[0] == "denied"
    for path in tmp_path.rglob("*"):
        assert not path.stat().st_mode & 0o6000
        assert "security.capability" not in os.listxattr(path)
    assert stat.S_IMODE((tmp_path / "program").stat().st_mode) == 0o755


@pytest.mark.parametrize("way", WAYS)
@where_ids_are
def test_capabilities_do_not_reach_init_nor_the_engine(way):
    code = """
        import contextlib, os, signal
        for act in [
            lambda: open('/proc/1/mem', 'rb'),
            lambda: os.listdir('/proc/1/fd'),
            lambda: os.readlink('/proc/1/exe'),
        ]:
            try:
                act()
                print('done')
            except PermissionError:
                print('denied')
        for number in (signal.SIGKILL, signal.SIGSTOP):
            # Refused where signals are scoped, and without effect elsewhere.
            with contextlib.suppress(PermissionError):
                os.kill(1, number)
        print('alive')
    """
    with running(way, **SERVER) as (_, py):
        result = py(code)
        assert result.stdout == "denied\ndenied\ndenied\nalive\n", result.stderr
        assert result.fault is None


@where_ids_are
def test_what_is_protected_stays_so_for_root_with_capabilities(tmp_path):
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".envrc").write_text("the caller's")
    with stepbox.Sandbox(workspace=tmp_path, **SERVER) as sandbox:
        for trick in ["touch .git/hooks/x", "echo x > .envrc", "rm -rf .envrc", "mv .git other", "chown daemon .envrc"]:
            assert sandbox.run(["sh", "-c", trick]).exit_code != 0, trick
        assert sandbox.run(["sh", "-c", "chown daemon .git && touch .git/index"]).success
    assert (tmp_path / ".envrc").read_text() == "the caller's"
    assert owners(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
@where_ids_are
def test_memory_of_whoever_code_becomes_counts(way):
    with running(way, memory_mb=96, **SERVER) as (_, py):
        result = py("import os; os.setgid(33); os.setuid(33); kept = [b'x' * (1 << 20) for _ in range(400)]")
        assert result.fault.type == "oom"


@where_ids_are
def test_a_limit_of_tasks_that_does_not_count_whom_code_becomes_is_refused():
    stepbox.Sandbox(cap_drop=("SETUID",))
    with stepbox.Sandbox() as sandbox:
        pids = sandbox.run(["true"]).limits["pids"]
    if pids.enforced_by == "rlimit":
        with pytest.raises(stepbox.SandboxError, match="SETUID"):
            stepbox.Sandbox(cap_drop=())
        with stepbox.Sandbox(cap_drop=(), enforce_limits=False) as sandbox:
            assert sandbox.run(["true"]).limits["pids"].enforced_by == "none"
    else:
        stepbox.Sandbox(cap_drop=())


@pytest.mark.parametrize("both", [False, True])
@where_ids_are
def test_an_engine_that_is_killed_leaves_no_file_that_is_not_given_back(tmp_path, both):
    """By its launcher, and where that was killed too by the next session with the workspace."""
    code = "import os, time; open('f', 'w').close(); os.chown('f', 1, 1); open('ready', 'w').close(); time.sleep(60)"
    sandbox = stepbox.Sandbox(workspace=tmp_path, **SERVER)
    with ThreadPoolExecutor(1) as calls, contextlib.suppress(stepbox.StepboxError), sandbox:
        call = calls.submit(sandbox.run_code, code)
        eventually((tmp_path / "ready").exists)
        engine = sandbox._lease.session.engine.process.pid
        killed = [*children(engine), engine] if both else [engine]
        assert owners(tmp_path) == [tmp_path / "f"]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert call.exception() is not None
    if both:
        with stepbox.Sandbox(workspace=tmp_path, **SERVER) as after:
            assert after.run(["true"]).success
    eventually(lambda: owners(tmp_path) == [])


# Of the second version, which counts for everybody: CAP_SETUID, effective.
FILE_CAPABILITY = struct.pack("<IIIII", 0x2000001, 1 << 7, 0, 0, 0)


# Only root makes one.
if os.getuid() == 0:

    def test_a_file_that_got_capabilities_while_a_server_ran_has_none_afterwards(tmp_path):
        before, meanwhile = tmp_path / "before", tmp_path / "meanwhile"
        shutil.copy("/bin/true", before)
        os.setxattr(before, "security.capability", FILE_CAPABILITY)
        time.sleep(1.1)
        with stepbox.Sandbox(workspace=tmp_path, **SERVER) as sandbox:
            shutil.copy("/bin/true", meanwhile)
            os.setxattr(meanwhile, "security.capability", FILE_CAPABILITY)
            assert sandbox.run(["true"]).success
            assert "security.capability" not in os.listxattr(meanwhile)
        assert os.getxattr(before, "security.capability") == FILE_CAPABILITY
