"""The numbers that programs size themselves by are the sandbox's: whoever reads them, however the step was started."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from starts import STARTS, started

import stepbox

MEMORY_MB = 300
CPUSET = "/sys/fs/cgroup/cpuset"

# Every way in which programs find out, one line each.
READERS = """
import glob, multiprocessing, os, re
def read(path): return open(path).read()
def lines(path, start): return sum(line.startswith(start) for line in read(path).splitlines())
print("affinity", len(os.sched_getaffinity(0)))
print("os.cpu_count", os.cpu_count())
print("multiprocessing", multiprocessing.cpu_count())
print("configured", os.sysconf("SC_NPROCESSORS_CONF"))
print("online", os.sysconf("SC_NPROCESSORS_ONLN"))
print("cpuinfo", lines("/proc/cpuinfo", "processor"))
print("stat", len(re.findall("^cpu[0-9]+ ", read("/proc/stat"), re.M)))
print("topology", len(glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/core_id")))
for name in ("online", "possible", "present"):
    first, _, last = read("/sys/devices/system/cpu/" + name).strip().partition("-")
    print("sys", name, int(last or first) + 1)
"""
MEMORY = "print(int(open('/proc/meminfo').readline().split()[1]))"

# As Go, Rust and Java do: the mount by its type, the place in it by the own cgroup, the file below both.
OWN_CGROUP = """
import os
groups = dict(line.split(":", 2)[1:] for line in open("/proc/self/cgroup").read().splitlines())
found = {}
for line in open("/proc/self/mountinfo"):
    fields, kind = line.split(" - ")
    root, point = fields.split()[3:5]
    kind, _, options = kind.split()
    if kind not in ("cgroup", "cgroup2"):
        continue
    for controller in ([""] if kind == "cgroup2" else options.split(",")):
        place = groups.get(controller)
        if place is None:
            continue
        assert root == "/", line
        for name in ("memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.cfs_quota_us", "pids.max"):
            path = os.path.join(point, place.lstrip("/"), name)
            if os.path.exists(path):
                found[name] = open(path).read().split()[0]
print(found.get("memory.max") or found.get("memory.limit_in_bytes"))
print(found.get("cpu.max") or found.get("cpu.cfs_quota_us"))
"""


def binding(sandbox, *resources):
    for resource in resources:
        limit = sandbox.limits.get(resource)
        if limit is None or not limit.enforced_by.startswith("cgroup"):
            pytest.skip(f"no cgroup keeps {resource} on this host")


def host_memory():
    return int(Path("/proc/meminfo").read_text().split()[1])


def by_reader(output):
    return {name: int(number) for name, _, number in (line.rpartition(" ") for line in output.splitlines())}


@pytest.fixture(scope="module", params=STARTS)
def capped(request):
    with started(request.param, cpus=1, memory_mb=MEMORY_MB, timeout_s=60) as found:
        yield found


@pytest.fixture(scope="module")
def programs():
    with stepbox.Sandbox(cpus=1, memory_mb=MEMORY_MB, timeout_s=60) as sandbox:
        yield sandbox


def test_each_reader_of_processors_is_told_the_cap(capped):
    told = by_reader(capped.py(READERS).stdout)
    assert len(told) > 8
    assert set(told.values()) == {1}, told


def test_a_reader_of_memory_is_told_the_cap(capped):
    assert capped.py(MEMORY).stdout == f"{MEMORY_MB << 10}\n"


def test_the_own_cgroup_tells_the_caps(capped):
    binding(capped.sandbox, "memory", "cpu")
    assert capped.py(OWN_CGROUP).stdout == f"{MEMORY_MB << 20}\n100000\n"


def test_a_kernel_is_told_the_same():
    with stepbox.Sandbox(cpus=1, memory_mb=MEMORY_MB) as sandbox, sandbox.kernel() as kernel:
        assert set(by_reader(kernel.run_code(READERS).stdout).values()) == {1}
        assert kernel.run_code(MEMORY).stdout == f"{MEMORY_MB << 10}\n"


@pytest.mark.parametrize("start", STARTS)
def test_without_caps_the_numbers_are_the_hosts(start):
    with started(start, memory_mb=None) as begun:
        allowed = len(os.sched_getaffinity(0))
        told = by_reader(begun.py(READERS).stdout)
        if allowed == os.cpu_count():
            assert set(told.values()) == {allowed}, told
        else:
            assert {told[name] for name in ("affinity", "os.cpu_count", "cpuinfo", "stat")} == {allowed}
        assert begun.py(MEMORY).stdout == f"{host_memory()}\n"


def test_without_a_cap_the_processors_are_seen_to_work():
    look = (
        "import time\n"
        "for _ in range(2):\n"
        "    print(sum(map(int, open('/proc/stat').readline().split()[1:])))\n"
        "    time.sleep(0.2)\n"
    )
    with stepbox.Sandbox() as sandbox:
        if len(os.sched_getaffinity(0)) < os.cpu_count():
            pytest.skip("the engine itself may not use all processors")
        first, last = map(int, sandbox.run_code(look).stdout.split())
        assert first < last


def test_more_than_the_host_has_is_what_the_host_has():
    with stepbox.Sandbox(cpus=4096, memory_mb=1 << 30, enforce_limits=False) as sandbox:
        told = by_reader(sandbox.run_code(READERS).stdout)
        assert told["os.cpu_count"] == len(os.sched_getaffinity(0))
        assert sandbox.run_code(MEMORY).stdout == f"{host_memory()}\n"


def test_a_part_of_a_processor_is_one_to_whoever_counts():
    with stepbox.Sandbox(cpus=0.5, enforce_limits=False) as sandbox:
        assert set(by_reader(sandbox.run_code(READERS).stdout).values()) == {1}
        binding(sandbox, "cpu")
        assert sandbox.run_code(OWN_CGROUP).stdout.split()[1] == "50000"


def test_sessions_of_other_caps_are_told_their_own():
    with (
        stepbox.Sandbox(cpus=1, memory_mb=100) as small,
        stepbox.Sandbox(memory_mb=200) as large,
        stepbox.Sandbox(cpus=1, memory_mb=200) as mixed,
    ):
        code = MEMORY + "\nimport os; print(os.cpu_count())"
        allowed = len(os.sched_getaffinity(0))
        for _ in range(3):
            assert small.run_code(code).stdout == f"{100 << 10}\n1\n"
            assert large.run_code(code).stdout == f"{200 << 10}\n{allowed}\n"
            assert mixed.run_code(code).stdout == f"{200 << 10}\n1\n"


@pytest.mark.parametrize("command", ["nproc", "nproc --all", "getconf _NPROCESSORS_ONLN", "getconf _NPROCESSORS_CONF"])
def test_a_program_that_counts_processors_is_told_the_cap(programs, command):
    assert programs.run(command.split()).stdout == "1\n"


def test_free_and_top_tell_the_cap(programs):
    for command in (["free", "--kibi"], ["top", "-b", "-n", "1", "-E", "k"]):
        if shutil.which(command[0]) is None:
            pytest.skip(f"no {command[0]} on this host")
        result = programs.run(command)
        assert result.success, result.stderr
        line = next(line for line in result.stdout.splitlines() if "Mem" in line)
        assert str(MEMORY_MB << 10) in line.replace(".0", "").split()[1:5]
        swap = next(line for line in result.stdout.splitlines() if "Swap" in line)
        assert set(swap.replace(".0", "").split()) & {str(MEMORY_MB << 10)} == set() or "avail" in swap


def test_make_starts_as_many_jobs_as_the_cap_can_feed(programs):
    if shutil.which("make") is None:
        pytest.skip("no make on this host")
    # A job that finds another at work fails.
    programs.write_file("Makefile", "all: a b c d\na b c d:\n\t@mkdir busy && sleep 0.1 && rmdir busy\n")
    capped = programs.run_code("make -s -j$(nproc)", language="bash")
    assert capped.success, capped.stderr
    assert not programs.run_code("make -s -j4", language="bash").success
    programs.run(["rm", "-rf", "busy"])


# Java believes its cgroups where it finds all of these mounted, each by its own hierarchy or all by one.
LIKE_JAVA = """
kinds = [line.split(" - ")[1].split() for line in open("/proc/self/mountinfo")]
v1 = {name for kind, _, options in kinds if kind == "cgroup" for name in options.split(",")}
print({"memory", "cpu", "cpuacct", "cpuset"} <= v1 or any(kind == "cgroup2" for kind, _, _ in kinds))
"""


def test_java_takes_its_heap_and_threads_from_the_caps(programs):
    binding(programs, "memory", "cpu")
    if programs.limits["memory"].enforced_by == "cgroup1" and not programs.run(["test", "-d", CPUSET]).success:
        pytest.skip("Java looks at cgroups of v1 only where a cpuset is beside them, and this user has none")
    assert programs.run_code(LIKE_JAVA).stdout == "True\n"
    # It is too large to be had for a test alone.
    if shutil.which("java") is None:
        return
    flags = programs.run(["java", "-XX:+PrintFlagsFinal", "-version"]).stdout
    heap = int(next(line for line in flags.splitlines() if " MaxHeapSize " in line).split()[3])
    assert 0 < heap <= MEMORY_MB << 20
    system = programs.run(["java", "-XshowSettings:system", "-version"]).stderr
    assert "Effective CPU Count: 1\n" in system
    assert f"Memory Limit: {MEMORY_MB}.00M" in system


def test_node_is_told_the_caps(programs):
    if shutil.which("node") is None:
        pytest.skip("no node on this host")
    code = "const os = require('os'); console.log(os.cpus().length, os.totalmem() / 1024)"
    assert programs.run_code(code, language="javascript").stdout == f"1 {MEMORY_MB << 10}\n"


C_READER = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <unistd.h>
int main(void) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    printf("%d %ld %ld\n", CPU_COUNT(&set), sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_NPROCESSORS_CONF));
    struct statfs found;
    const char *places[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu"};
    int real = 0;
    for (int i = 0; i < 3; i++)
        real |= statfs(places[i], &found) == 0 && (found.f_type == 0x27e0eb || found.f_type == 0x63677270);
    puts(real ? "a cgroup" : "no cgroup");
}
"""


def test_a_static_program_is_told_the_caps_and_finds_real_cgroups(programs):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this host")
    programs.write_file("reader.c", C_READER)
    built = programs.run_code("gcc -static -o reader reader.c", language="bash")
    if not built.success:
        pytest.skip("nothing static can be linked on this host")
    binding(programs, "memory", "cpu")
    assert programs.run(["./reader"]).stdout == "1 1 1\na cgroup\n"


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (
            "psutil",
            "import psutil; print(psutil.cpu_count(), psutil.cpu_count(logical=False), psutil.virtual_memory().total)",
        ),
        ("joblib", "import joblib; print(joblib.cpu_count(), joblib.effective_n_jobs(-1), {bytes})"),
    ],
)
def test_a_library_that_counts_is_told_the_caps(programs, module, code):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module} in this environment")
    result = programs.run_code(code.replace("{bytes}", str(MEMORY_MB << 20)))
    assert result.stdout == f"1 1 {MEMORY_MB << 20}\n", result.stderr


def test_psutil_has_no_trouble_with_what_does_not_move(programs):
    if importlib.util.find_spec("psutil") is None:
        pytest.skip("no psutil in this environment")
    code = (
        "import psutil\n"
        "print(psutil.cpu_percent(0.1), psutil.cpu_times_percent(0.1).idle >= 0)\n"
        "print(len(psutil.cpu_percent(0.1, percpu=True)))\n"
        "psutil.swap_memory(), psutil.boot_time(), psutil.cpu_stats(), psutil.cpu_freq()\n"
        "psutil.Process().create_time()\n"
    )
    result = programs.run_code(code)
    assert result.stdout == "0.0 True\n1\n", result.stderr


def test_pools_of_libraries_are_told_the_smaller_of_both_caps():
    names = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS GOMAXPROCS LOKY_MAX_CPU_COUNT POLARS_MAX_THREADS"
    code = f"import os; print([os.environ.get(name) for name in '{names}'.split()])"
    count = len(names.split())
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one processor needs no telling")
    for options in ({"cpus": 1}, {"pids": 4}):
        with stepbox.Sandbox(**options) as sandbox:
            assert sandbox.run_code(code).stdout == f"{['1'] * count}\n"
            # Whoever says it has it.
            own = sandbox.run_code("import os; print(os.environ['GOMAXPROCS'])", env={"GOMAXPROCS": "7"})
            assert own.stdout == "7\n"
    with stepbox.Sandbox() as sandbox:
        assert sandbox.run_code(code).stdout == f"{[None] * count}\n"


NOTHING_TO_CHANGE = """
import ctypes, os
places = ["/sys/devices/system/cpu", "/sys/devices/system/cpu/online"]
places += ["/proc/" + name for name in ("cpuinfo", "meminfo", "stat", "loadavg", "swaps")]
for top in ("/sys/fs/cgroup", "/sys/devices"):
    for place, directories, files in os.walk(top):
        places += [place] + [os.path.join(place, name) for name in files]
done = []
for place in places:
    for attempt in (
        lambda: os.chmod(place, 0o777),
        lambda: os.mkdir(place + "/new") if os.path.isdir(place) else open(place, "w").close(),
        lambda: os.unlink(place),
        lambda: os.rename(place, place + "2"),
        lambda: os.utime(place),
    ):
        try: attempt()
        except OSError: continue
        done.append(place)
print(done, len(places) > 20)
"""


def test_nothing_of_it_can_be_changed(capped):
    assert capped.py(NOTHING_TO_CHANGE).stdout == "[] True\n"
    # The next one finds it as it was.
    assert set(by_reader(capped.py(READERS).stdout).values()) == {1}


def test_no_cgroup_but_the_own_is_seen(capped):
    code = (
        "import os\n"
        "print([line for line in open('/proc/self/cgroup') if not line.endswith(':/\\n')])\n"
        "found = [place for place, below, _ in os.walk('/sys/fs/cgroup') for name in below\n"
        "         if os.path.exists(os.path.join(place, 'cgroup.procs'))]\n"
        "print(found)\n"
        "print({line.split()[3] for line in open('/proc/self/mountinfo') if ' - cgroup' in line} <= {'/'})\n"
    )
    assert capped.py(code).stdout == "[]\n[]\nTrue\n"


def test_the_caps_of_one_call_are_in_the_cgroup():
    with stepbox.Sandbox(memory_mb=200) as sandbox:
        binding(sandbox, "memory")
        assert sandbox.run_code(OWN_CGROUP, memory_mb=100).stdout.split()[0] == str(100 << 20)
        assert sandbox.run_code(OWN_CGROUP).stdout.split()[0] == str(200 << 20)
