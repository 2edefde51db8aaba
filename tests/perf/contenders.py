"""Who is measured, and how each of them runs a piece of work."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stepbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stepbox import ExecutionResult
    from work import Work

# How long a session may take until its steps start warm, and how long one is warmed that does not tell.
_WARM_S = 10.0
_WARM_BLIND_CALLS = 10


class Contender(Protocol):
    """One way to run a program. A call that goes wrong raises: no number comes from a failed call."""

    @property
    def name(self) -> str:
        """As the table shows it."""

    def perform(self, work: Work) -> str | None:
        """Does the work once and checks what it printed; tells how it was started, if that is known."""


@dataclass(frozen=True)
class Stepbox:
    """A fresh sandbox for each call, on one open session."""

    sandbox: Sandbox
    name: str = "stepbox"

    def perform(self, work: Work) -> str | None:
        """One step."""
        if work.argv:
            return checked(self.sandbox.run(work.argv), work)
        return checked(self.sandbox.run_code(work.code, work.language), work)

    def warm(self, work: Work) -> None:
        """Calls until what is made ahead stands."""
        end = time.monotonic() + _WARM_S
        for number in range(1_000_000):
            start = self.perform(work)
            time.sleep(0.05)
            if start == "forked_ahead" or time.monotonic() > end or (start is None and number >= _WARM_BLIND_CALLS):
                return


def checked(result: ExecutionResult, work: Work) -> str | None:
    """How a step was started that went right."""
    if result.exit_code != 0 or result.fault is not None:
        raise RuntimeError(f"{work.title}: exit code {result.exit_code}, {result.fault}, {result.code_stderr[-300:]!r}")
    work.check(result.stdout)
    start: str | None = getattr(result, "start", None)
    return start


@dataclass(frozen=True)
class Command:
    """A program run by `subprocess.run`, by a line that is made of its arguments."""

    name: str
    line: Callable[[Work], list[str]]
    environment: Mapping[str, str]

    def perform(self, work: Work) -> str | None:
        """One process."""
        done = subprocess.run(
            self.line(work),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environment,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-300:].decode(errors='replace')}")
        work.check(done.stdout.decode(errors="replace"))
        return None


@dataclass(frozen=True)
class Ground:
    """What those who are not stepbox get: files, environment and interpreter of a session's steps."""

    python: str
    environment: Mapping[str, str]
    shown: tuple[str, ...]
    workspace: Path


def plain(ground: Ground) -> Command:
    """No sandbox at all."""
    return Command("plain", lambda work: work.arguments(ground.python), ground.environment)


@contextlib.contextmanager
def ground_of(sandbox: Sandbox) -> Iterator[Ground]:
    """The ground of an open session, with a directory that stands for its workspace."""
    with tempfile.TemporaryDirectory(prefix="stepbox-bench-") as workspace:
        yield Ground(sys.executable, _environment(sandbox), tuple(_shown(sandbox)), Path(workspace))


def _environment(sandbox: Sandbox) -> dict[str, str]:
    """What code sees in a sandbox: the others get the same, so that no interpreter starts with less to do."""
    shown = sandbox.run(["env", "-0"])
    pairs = (line.partition("=") for line in shown.stdout.split("\0") if line)
    return {name: value for name, _, value in pairs if name != "_"}


def _shown(sandbox: Sandbox) -> list[str]:
    """The host's trees in the root of a sandbox; its `/etc`, which is copied, is shown whole instead."""
    paths = ["/etc"]
    for line in sandbox.run(["cat", "/proc/self/mountinfo"]).stdout.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        path, options, kind = fields[4], fields[5].split(","), after.split()[0]
        made_here = kind in ("tmpfs", "proc", "devpts", "sysfs") or path.startswith("/etc/")
        if "ro" in options and not made_here:
            paths.append(path)
    # An interpreter may be below `/tmp`: its trees come after the scratch there.
    return sorted(paths, key=lambda path: path.startswith("/tmp/"))


def links_of_root() -> list[tuple[str, str]]:
    """Links of the host's root that programs are found by: where they lead, and their paths."""
    links = [Path("/", name) for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    return [(os.fspath(link.readlink()), os.fspath(link)) for link in links if link.is_symlink()]
