"""Who is measured: stepbox, bwrap, plain subprocess, and peers given on the command line."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepbox import Sandbox

CODE = "print(1)"


class Contender(Protocol):
    """One way to run a program. A call that goes wrong raises: no number comes from a failed call."""

    @property
    def name(self) -> str:
        """As the table shows it."""

    def true(self) -> None:
        """Runs `true`."""

    def print_one(self) -> None:
        """Runs `print(1)` in a new interpreter and checks what it printed."""


@dataclass(frozen=True)
class Stepbox:
    """A fresh sandbox for each call, on one open session, with every option at its default."""

    sandbox: Sandbox
    name: str = "stepbox"

    def true(self) -> None:
        """Runs `true`."""
        result = self.sandbox.run(["true"])
        if result.exit_code != 0:
            raise RuntimeError(f"stepbox: true ended with {result.exit_code}: {result.fault}")

    def print_one(self) -> None:
        """Runs `print(1)`."""
        result = self.sandbox.run_code(CODE)
        if result.stdout != "1\n":
            raise RuntimeError(f"stepbox: {CODE} gave {result.stdout!r}, {result.code_stderr!r}, {result.fault}")


@dataclass(frozen=True)
class Command:
    """A program run by `subprocess.run`, behind a command that makes its sandbox, or behind none."""

    name: str
    prefix: tuple[str, ...]
    environment: Mapping[str, str]

    def true(self) -> None:
        """Runs `true`."""
        self._run(["true"], b"")

    def print_one(self) -> None:
        """Runs `print(1)`."""
        self._run([sys.executable, "-c", CODE], b"1\n")

    def _run(self, arguments: Sequence[str], expected: bytes) -> None:
        done = subprocess.run(
            [*self.prefix, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environment,
            check=False,
        )
        if done.returncode != 0 or done.stdout != expected:
            raise RuntimeError(f"{self.name}: {arguments} ended with {done.returncode}: {done.stderr!r}")


def inner_environment(sandbox: Sandbox) -> dict[str, str]:
    """What code sees in a sandbox: the others get the same, so that no interpreter starts with less to do."""
    shown = sandbox.run(["env", "-0"])
    pairs = (line.partition("=") for line in shown.stdout.split("\0") if line)
    return {name: value for name, _, value in pairs if name != "_"}


def bwrap(sandbox: Sandbox, environment: Mapping[str, str], workspace: Path) -> Command | None:
    """The same namespaces and the same files by bubblewrap, or None where it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    arguments = [program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    arguments += ["--unshare-cgroup", "--uid", "1000", "--gid", "1000", "--hostname", "bench"]
    # An interpreter may be below `/tmp`: its trees come after the scratch there.
    shown = sorted(_shown(sandbox), key=lambda path: path.startswith("/tmp/"))
    below = [part for path in shown for part in ("--ro-bind", path, path)]
    links = [Path("/", name) for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    for link in links:
        if link.is_symlink():
            arguments += ["--symlink", os.fspath(link.readlink()), os.fspath(link)]
    arguments += ["--tmpfs", "/tmp", *below, "--proc", "/proc", "--dev", "/dev"]
    arguments += ["--bind", os.fspath(workspace), "/workspace"]
    arguments += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--chdir", "/workspace", "--"]
    return Command("bwrap", tuple(arguments), environment)


def _shown(sandbox: Sandbox) -> list[str]:
    """The host's trees in the root of a sandbox; its `/etc`, which is copied, is bound whole instead."""
    paths = ["/etc"]
    for line in sandbox.run(["cat", "/proc/self/mountinfo"]).stdout.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        path, options, kind = fields[4], fields[5].split(","), after.split()[0]
        if "ro" in options and kind not in ("tmpfs", "proc", "devpts", "sysfs") and not path.startswith("/etc/"):
            paths.append(path)
    return paths


def peers(definitions: Iterable[str], environment: Mapping[str, str]) -> list[Command]:
    """Contenders given as NAME=COMMAND: the program to run is appended to the command."""
    found = []
    for definition in definitions:
        name, separator, command = definition.partition("=")
        if not (name and separator and command):
            raise ValueError(f"a peer is NAME=COMMAND, got {definition!r}")
        found.append(Command(name, tuple(shlex.split(command)), environment))
    return found


def make_workspace() -> tempfile.TemporaryDirectory[str]:
    """A directory that stands for the workspace of those that are not stepbox."""
    return tempfile.TemporaryDirectory(prefix="stepbox-bench-")
