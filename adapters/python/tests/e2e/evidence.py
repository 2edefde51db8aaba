"""What a test looks at to know what became of a step."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path


class Marker:
    """A number that a test gives to what it starts, by which it finds what still runs on the host."""

    def __init__(self):
        self.number = str(secrets.randbelow(10**9) + 10**9)

    def running(self):
        """Command lines of processes that bear the number, but for those that are dead and not yet reaped."""
        found = []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or process.name == str(os.getpid()):
                continue
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if self.number in line:
                found.append(line)
        return found


def changes(result, change="created"):
    """The paths of one kind of change, sorted."""
    return sorted(item.path for item in result.files if item.change == change)


def eventually(condition):
    """Waits for what is to come about; the bound is only there for a failure."""
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_alive(pid):
    """Whether a process of the host runs; one that is dead and not yet reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children(pid):
    """The processes whose parent this is."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            stat = (process / "stat").read_text() if process.name.isdigit() else ""
        except OSError:
            continue
        if stat and int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(process.name))
    return found


def descendants(pid):
    """The processes that a process started, and those that they did."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


class Traces:
    """What an engine that runs now has on the host: processes, cgroups, directories, mounts."""

    def __init__(self, sandbox):
        engine = sandbox._lease.session.engine
        self.pid = engine.process.pid
        self.processes = [self.pid, *descendants(self.pid)]
        state = Path(engine.address.target.removeprefix("unix:")).parent
        self.name = state.name.removeprefix("engine-")
        scratch = [
            Path(base, f"stepbox-{os.getuid()}", f"data-{self.name}") for base in (tempfile.gettempdir(), "/var/tmp")
        ]
        self.directories = [path for path in (state, *scratch) if path.exists()]
        assert len(self.directories) == 2
        kept = {limit.enforced_by for limit in sandbox.limits.values()}
        assert bool(self.cgroups()) == bool(kept & {"cgroup1", "cgroup2"})

    def cgroups(self):
        """Its cgroups, in every hierarchy."""
        return [where for where, _, _ in os.walk("/sys/fs/cgroup") if self.name in Path(where).name]

    def left(self):
        """What of all this is still there."""
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if self.name in line]
        running = [pid for pid in self.processes if is_alive(pid)]
        return [*running, *(path for path in self.directories if path.exists()), *self.cgroups(), *mounts]
