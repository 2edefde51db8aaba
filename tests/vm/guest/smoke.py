"""Steps as an ordinary user of a systemd host with cgroup v2: the kernel, the manager and the login are real."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
STEPBOX = str(HERE / "stepbox")
SITE = HERE / "site"
PATIENCE_S = 60


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
        ["systemctl", "--user", "--all", "--plain", "--no-legend", "list-units", "stepbox-*"],
        capture_output=True,
        text=True,
        check=True,
    )
    found += units.stdout.splitlines()
    return found


class TheHost(unittest.TestCase):
    def test_it_is_what_this_is_about(self):
        self.assertNotEqual(os.getuid(), 0)
        self.assertTrue(pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists())
        self.assertTrue(pathlib.Path("/run/systemd/system").is_dir())
        # A login's own cgroup is root's: without the manager's help nothing could be limited.
        own = pathlib.Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
        self.assertFalse(os.access(pathlib.Path("/sys/fs/cgroup", own, "cgroup.procs"), os.W_OK))

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
            words = ["systemctl", "--user", "--runtime", "set-property", "app.slice", f"MemoryMax={value}"]
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
        self.assertIn("app.slice caps all together at 200 MiB", note)
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
        sys.path.insert(0, str(SITE))
        os.environ["STEPBOX_BIN"] = STEPBOX
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
        done = subprocess.run(
            [sys.executable, "-B", "-c", program],
            env={**os.environ, "PYTHONPATH": str(SITE)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
            check=False,
        )
        self.assertEqual((done.returncode, done.stdout), (0, "served\n"), done.stderr)

    def tearDown(self):
        self.assertEqual(remains(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
