"""Steps on a systemd host with cgroup v2, as an ordinary user or as root: the kernel, the manager and the login are real."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
STEPBOX = str(HERE / "stepbox")
SITE = HERE / "site"
# An emulated processor of another architecture is slow.
MACHINE = os.uname().machine
PATIENCE_S = 60 if MACHINE == "x86_64" else 240
ROOT = os.getuid() == 0
MANAGER = "--system" if ROOT else "--user"
SLICE = "system.slice" if ROOT else "app.slice"


def stepbox(*words, **options):
    """Runs the engine's binary to its end."""
    return subprocess.run(
        [STEPBOX, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )


def step(code, *options):
    """One step by the command line: its exit code and its whole result."""
    done = stepbox("run", "--json", *options, "-c", code)
    if not done.stdout:
        raise AssertionError(f"nothing ran: exit {done.returncode}, {done.stderr}")
    return done.returncode, json.loads(done.stdout)


def fault(result):
    return result["fault"] and result["fault"]["type"]


def remains():
    """What an engine leaves where it leaves anything, once the manager has had the time to remove an ended scope."""
    for _ in range(50):
        if not left_now():
            return []
        time.sleep(0.1)
    return left_now()


def left_now():
    """Processes, cgroups, directories, units."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            name = status.read_text().splitlines()[0].split("\t")[1]
        except OSError:
            continue
        if name.startswith("stepbox"):
            found.append(f"process {status.parent.name} {name}")
    found += [str(path) for path in pathlib.Path("/sys/fs/cgroup").rglob("stepbox-*")]
    places = [tempfile.gettempdir(), "/var/tmp", os.environ.get("XDG_RUNTIME_DIR", "/nowhere")]
    for place in places:
        # The directories that hold others' by uid stay; what is in them must not.
        found += [str(path) for path in pathlib.Path(place).glob("stepbox*/*")]
    units = subprocess.run(
        ["systemctl", MANAGER, "--all", "--plain", "--no-legend", "list-units", "stepbox-*"],
        capture_output=True,
        text=True,
        check=True,
    )
    found += units.stdout.splitlines()
    return found


def program_of_32_bits():
    """A static program of the 32-bit sibling of this architecture: exit(7)."""
    machine, code = {
        # mov eax, 1; mov ebx, 7; int 0x80
        "x86_64": (3, bytes.fromhex("b801000000bb07000000cd80")),
        # mov r7, #1; mov r0, #7; svc 0
        "aarch64": (40, bytes.fromhex("0170a0e30700a0e3000000ef")),
    }[MACHINE]
    base, headers = 0x10000, 52 + 32
    flags = 0x5000000 if machine == 40 else 0
    ident = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = struct.pack("<HHIIIIIHHHHHH", 2, machine, 1, base + headers, 52, 0, flags, 52, 32, 1, 0, 0, 0)
    size = headers + len(code)
    segment = struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 0x1000)
    return ident + header + segment + code


class TheHost(unittest.TestCase):
    def test_it_is_what_this_is_about(self):
        self.assertTrue(pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists())
        self.assertTrue(pathlib.Path("/run/systemd/system").is_dir())
        # A login's own cgroup is root's: without the manager's help nothing could be limited.
        own = pathlib.Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
        self.assertEqual(os.access(pathlib.Path("/sys/fs/cgroup", own, "cgroup.procs"), os.W_OK), ROOT)

    def test_doctor_finds_it_fit(self):
        done = stepbox("doctor")
        print(done.stdout, done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_isolation_without_namespaces_is_refused_by_name_where_landlock_is_too_old(self):
        release = tuple(int(part) for part in os.uname().release.split(".")[:2])
        if release >= (6, 12):
            self.skipTest("the kernel has it")
        done = stepbox("run", "--isolation", "reduced", "-c", "print(1)")
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("reduced: ", done.stderr)
        self.assertIn("Linux 6.12", done.stderr)
        print(done.stderr)


class AStep(unittest.TestCase):
    def tearDown(self):
        self.assertEqual(remains(), [])

    def test_runs_with_its_default_limits_kept_by_cgroup2(self):
        code, result = step("print(1)")
        self.assertEqual((code, result["stdout"], result["fault"]), (0, "1\n", None))
        kept = {limit["resource"]: limit["enforced_by"] for limit in result["limits"]}
        self.assertEqual((kept["memory"], kept["pids"]), ("cgroup2", "cgroup2"))

    def test_tells_of_a_lower_limit_of_the_slice_that_its_scope_is_in(self):
        def slice_memory(value):
            words = ["systemctl", MANAGER, "--runtime", "set-property", SLICE, f"MemoryMax={value}"]
            subprocess.run(words, check=True)

        slice_memory("200M")
        try:
            _, result = step("print(1)", "--memory-mb", "512")
            doctor = stepbox("doctor").stdout
        finally:
            slice_memory("infinity")
        limits = {limit["resource"]: limit for limit in result["limits"]}
        self.assertEqual((limits["memory"]["max"], limits["memory"]["enforced_by"]), (512 << 20, "cgroup2"))
        [note] = [note for note in result["runtime_notes"] if note.startswith("memory: ")]
        self.assertIn(f"{SLICE} caps all together at 200 MiB", note)
        _, result = step("print(1)", "--memory-mb", "512")
        self.assertEqual(result["runtime_notes"], [], doctor)

    def test_has_its_processor_share_kept_by_cgroup2(self):
        _, result = step("print(1)", "--cpus", "0.5")
        kept = {limit["resource"]: limit["enforced_by"] for limit in result["limits"]}
        self.assertEqual(kept["cpu"], "cgroup2")

    def test_sees_its_own_cgroup_as_the_only_one_and_cannot_write_to_it(self):
        look = (
            "import os\n"
            "def read(path): return open(path).read().strip()\n"
            "print(read('/proc/self/cgroup'))\n"
            "print(read('/sys/fs/cgroup/memory.max'), read('/sys/fs/cgroup/cpu.max'), read('/sys/fs/cgroup/pids.max'))\n"
            "print([line.split()[3:5] for line in open('/proc/self/mountinfo') if ' - cgroup' in line])\n"
            "print([name for name in os.listdir('/sys/fs/cgroup') if os.path.isdir('/sys/fs/cgroup/' + name)])\n"
            "try: open('/sys/fs/cgroup/memory.max', 'w')\n"
            "except OSError as error: print(error.strerror)\n"
            "print(os.cpu_count(), len(os.sched_getaffinity(0)), open('/proc/meminfo').readline().split()[1])\n"
        )
        _, result = step(look, "--memory-mb", "100", "--cpus", "0.5", "--pids", "20")
        expected = [
            "0::/",
            "104857600 50000 100000 21",
            "[['/', '/sys/fs/cgroup']]",
            "[]",
            "Read-only file system",
            "1 1 102400",
        ]
        self.assertEqual(result["stdout"].splitlines(), expected, result)

    def test_tells_what_it_used(self):
        _, result = step("x = bytearray(40 << 20); import os; os.fork() or os._exit(0); os.wait()")
        usage = result["usage"]
        self.assertGreater(usage["cpu_ms"], 0)
        self.assertEqual(usage["oom_kills"], 0)
        # Counted where the kernel counts: both came after 6.1's time or in it.
        if usage["peak_memory_bytes"] is not None:
            self.assertGreaterEqual(usage["peak_memory_bytes"], 40 << 20)
        if usage["pids_peak"] is not None:
            self.assertEqual(usage["pids_peak"], 2)

    def test_over_its_memory_is_an_oom(self):
        code, result = step("print('in', flush=True); x = bytearray(200 << 20)", "--memory-mb", "64")
        self.assertEqual((code, fault(result), result["stdout"]), (137, "oom", "in\n"))

    def test_over_its_memory_in_a_child_is_an_oom_of_all(self):
        bomb = "import os, time\nif os.fork() == 0: x = bytearray(200 << 20)\ntime.sleep(60)\n"
        code, result = step(bomb, "--memory-mb", "64")
        self.assertEqual((code, fault(result)), (137, "oom"))

    def test_under_its_memory_is_no_fault(self):
        code, result = step("x = bytearray(30 << 20); print(len(x))", "--memory-mb", "64")
        self.assertEqual((code, fault(result), result["stdout"]), (0, None, "31457280\n"))

    def test_cannot_have_more_tasks_than_its_cap(self):
        bomb = (
            "import os, time\n"
            "made = 0\n"
            "try:\n"
            "    while made < 100:\n"
            "        if os.fork() == 0: time.sleep(60)\n"
            "        made += 1\n"
            "except BlockingIOError: print('refused after', made)\n"
        )
        code, result = step(bomb, "--pids", "16")
        self.assertEqual((code, fault(result), result["stdout"]), (0, None, "refused after 15\n"))
        self.assertGreaterEqual(result["usage"]["pids_denied"], 1)

    def test_past_its_deadline_is_a_timeout_whatever_it_ignores(self):
        stubborn = (
            "import os, signal, time\n"
            "for number in range(1, 65):\n"
            "    try: signal.signal(number, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass\n"
            "if os.fork() == 0: os.setsid()\n"
            "print('up', flush=True)\n"
            "while True: time.sleep(1)\n"
        )
        code, result = step(stubborn, "--timeout-s", "8")
        self.assertEqual((code, fault(result)), (137, "timeout"))
        self.assertIn("up", result["stdout"])

    def test_that_tries_to_mount_is_an_escape_blocked(self):
        attempt = "import ctypes; ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None)"
        code, result = step(attempt)
        self.assertEqual((code, fault(result)), (159, "escape_blocked"))
        self.assertEqual(result["fault"]["syscall"], "mount")

    def test_that_makes_a_call_of_32_bits_is_an_escape_blocked(self):
        # The program ends with 7 where the kernel runs it: here it does, and that is the allowed twin.
        attempt = (
            "import os, subprocess\n"
            f"open('p', 'wb').write(bytes.fromhex('{program_of_32_bits().hex()}'))\n"
            "os.chmod('p', 0o755)\n"
            "print('on', flush=True)\n"
            "print(subprocess.run(['./p']).returncode)\n"
        )
        with tempfile.TemporaryDirectory(dir=HERE) as place:
            twin = pathlib.Path(place, "p")
            twin.write_bytes(program_of_32_bits())
            twin.chmod(0o755)
            try:
                self.assertEqual(subprocess.run([twin], check=False).returncode, 7)
            except OSError as error:
                self.skipTest(f"the processor or the kernel has no 32 bits: {error}")
        code, result = step(attempt)
        self.assertEqual((code, fault(result), result["stdout"]), (159, "escape_blocked", "on\n"), result)
        print(result["fault"]["syscall"])

    def test_leaves_files_that_are_the_callers(self):
        with tempfile.TemporaryDirectory(dir=HERE) as workspace:
            _, result = step(
                "import os; os.makedirs('d'); open('d/f', 'w').write('x'); print(os.getuid())",
                "--workspace",
                workspace,
            )
            self.assertEqual(result["stdout"], "1000\n")
            self.assertEqual(
                sorted((change["path"], change["change"]) for change in result["files"]),
                [("d", "created"), ("d/f", "created")],
            )
            stat = pathlib.Path(workspace, "d", "f").stat()
            self.assertEqual((stat.st_uid, stat.st_gid), (os.getuid(), os.getgid()))

    def test_may_be_in_bash(self):
        code, result = step("echo $((6 * 7)); exit 3", "--language", "bash")
        self.assertEqual((code, fault(result), result["stdout"]), (3, None, "42\n"))

    def test_sees_its_own_caps_and_no_foreign_process(self):
        _, result = step("import os; print(os.listdir('/home'), len([p for p in os.listdir('/proc') if p.isdigit()]))")
        self.assertEqual(result["fault"], None)
        # Its init and itself.
        self.assertTrue(result["stdout"].rstrip().endswith(" 2"), result["stdout"])


@unittest.skipUnless(SITE.is_dir(), "the client was not sent along")
class TheService(unittest.TestCase):
    """The same by gRPC, with the client that launches the engine."""

    def test_serves_a_session_of_many_steps(self):
        program = (
            "import stepbox\n"
            "with stepbox.Sandbox(memory_mb=64, timeout_s=60) as sandbox:\n"
            "    for number in range(20):\n"
            '        done = sandbox.run_code(f\'open("n", "w").write("{number}"); print({number})\')\n'
            "        assert done.success and done.stdout == f'{number}\\n', done\n"
            "    assert sandbox.run_code('x = bytearray(200 << 20)').fault.type == 'oom'\n"
            "    assert sandbox.run_code('print(open(\"n\").read())').stdout == '19\\n'\n"
            "print('served')\n"
        )
        self.assert_served(program)

    def test_has_every_start_a_kernel_and_no_network(self):
        program = (
            "import stepbox, time\n"
            "with stepbox.Sandbox(timeout_s=120) as sandbox:\n"
            "    assert sandbox.run(['true']).success\n"
            "    assert sandbox.run(['bash', '-c', 'echo $((6*7))']).stdout == '42\\n'\n"
            "    starts = set()\n"
            "    limit = time.monotonic() + 200\n"
            "    while 'forked_ahead' not in starts and time.monotonic() < limit:\n"
            "        done = sandbox.run_code('import json; print(json.dumps([1]))')\n"
            "        assert done.stdout == '[1]\\n', done\n"
            "        starts.add(done.start)\n"
            "        time.sleep(0.2)\n"
            "    assert 'forked_ahead' in starts, starts\n"
            '    done = sandbox.run_code(\'open("f", "w").write("x")\')\n'
            "    assert [(c.path, c.change) for c in done.files] == [('f', 'created')], done\n"
            '    done = sandbox.run_code(\'import ctypes; ctypes.CDLL(None).mount(b"n", b"/tmp", b"tmpfs", 0, None)\')\n'
            "    assert (done.fault.type, done.fault.syscall) == ('escape_blocked', 'mount'), done\n"
            "    done = sandbox.run_code('import socket; socket.create_connection((\"192.0.2.1\", 80), 5)')\n"
            "    assert 'unreachable' in done.stderr, done\n"
            "    with sandbox.kernel() as kernel:\n"
            "        assert kernel.run_code('x = 20').success\n"
            "        assert kernel.run_code('print(x + 1)').stdout == '21\\n'\n"
            "        done = kernel.run_code('while True: pass', timeout_s=5)\n"
            "        assert done.fault.type == 'timeout', done\n"
            "print('served', sorted(starts))\n"
        )
        self.assert_served(program)

    def assert_served(self, program):
        done = subprocess.run(
            [sys.executable, "-B", "-c", program],
            env={**os.environ, "PYTHONPATH": str(SITE), "STEPBOX_BIN": STEPBOX},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 4,
            check=False,
        )
        print(done.stdout)
        self.assertEqual((done.returncode, done.stdout.split()[:1]), (0, ["served"]), done.stderr)

    def tearDown(self):
        self.assertEqual(remains(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
