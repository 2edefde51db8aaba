"""Others that make sandboxes: those built in, where they are found and work, and those of the command line."""

from __future__ import annotations

import runpy
import shlex
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

from contenders import Command, Ground, links_of_root
from sampling import UnsuitedError
from work import PRINT, TRUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack

    from contenders import Contender
    from work import Work

_IMAGE = "python:3-slim"


# ---- built in ----


def bwrap(ground: Ground) -> Command:
    """The same namespaces and the same files by bubblewrap."""
    line = [_program("bwrap"), "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    line += ["--unshare-cgroup", "--uid", "1000", "--gid", "1000", "--hostname", "bench"]
    for target, link in links_of_root():
        line += ["--symlink", target, link]
    line += ["--tmpfs", "/tmp"]
    for path in ground.shown:
        line += ["--ro-bind", path, path]
    line += ["--proc", "/proc", "--dev", "/dev", "--bind", str(ground.workspace), "/workspace"]
    line += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--chdir", "/workspace", "--"]
    return _behind("bwrap", line, ground)


def nsjail(ground: Ground) -> Command:
    """The same by nsjail, without its limits of resources."""
    line = [_program("nsjail"), "--mode", "o", "--really_quiet", "--disable_rlimits", "--nice_level", "0"]
    line += ["--user", "1000", "--group", "1000", "--hostname", "bench"]
    for target, link in links_of_root():
        line += ["--symlink", f"{target}:{link}"]
    line += ["--tmpfsmount", "/tmp"]
    for path in ground.shown:
        line += ["--bindmount_ro", path]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        line += ["--bindmount", device]
    line += ["--bindmount", f"{ground.workspace}:/workspace", "--cwd", "/workspace", "--keep_env", "--"]

    def found(work: Work) -> list[str]:
        # It looks for no program on the PATH.
        first, *rest = work.arguments(ground.python)
        return [*line, shutil.which(first, path=ground.environment.get("PATH")) or first, *rest]

    return Command("nsjail", found, ground.environment)


def podman(ground: Ground) -> Command:
    """A container for each call, from an image that is there already."""
    return _container("podman", ground)


def docker(ground: Ground) -> Command:
    """A container for each call, from an image that is there already."""
    return _container("docker", ground)


BUILT_IN: dict[str, Callable[[Ground], Command]] = {
    "bwrap": bwrap,
    "nsjail": nsjail,
    "podman": podman,
    "docker": docker,
}


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UnsuitedError("not installed")
    return path


def _behind(name: str, prefix: list[str], ground: Ground) -> Command:
    return Command(name, lambda work: [*prefix, *work.arguments(ground.python)], ground.environment)


def _container(name: str, ground: Ground) -> Command:
    program = _program(name)
    # Nothing is downloaded, not even by a `run` that misses its image.
    try:
        known = subprocess.run([program, "image", "inspect", _IMAGE], capture_output=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        raise UnsuitedError("does not answer") from None
    if known.returncode != 0:
        raise UnsuitedError(f"no service, or no image {_IMAGE}")
    line = [
        program,
        "run",
        "--rm",
        "--network",
        "none",
        "--cap-drop",
        "ALL",
        "--volume",
        f"{ground.workspace}:/workspace",
    ]
    line += ["--workdir", "/workspace", "--pull", "never", _IMAGE]
    # The image has an interpreter of its own, and the engine's client wants the caller's environment.
    return Command(name, lambda work: [*line, *work.arguments("python3")], {"PATH": ground.environment.get("PATH", "")})


# ---- of the command line ----


def parse(definitions: Iterable[str]) -> dict[str, list[list[str]]]:
    """Peers given as NAME=COMMAND. A name may come twice: with a line for programs and one for Python source.

    Raises:
        ValueError: A definition is none.
    """
    lines: dict[str, list[list[str]]] = {}
    for definition in definitions:
        name, separator, command = definition.partition("=")
        if not (name and separator and command):
            raise ValueError(f"a peer is NAME=COMMAND, got {definition!r}")
        lines.setdefault(name, []).append(shlex.split(command))
    return lines


def _templated(name: str, lines: list[list[str]], ground: Ground) -> Command:
    for_code = next((line for line in lines if any("{code}" in word for word in line)), None)
    for_argv = next((line for line in lines if not any("{code}" in word for word in line)), None)

    def line(work: Work) -> list[str]:
        if for_code is not None and work.language == "python" and not work.argv:
            return [word.replace("{code}", work.code) for word in for_code]
        if for_argv is None:
            raise UnsuitedError("its command has a place for {code} alone")
        return fill(for_argv, work.arguments(ground.python))

    return Command(name, line, ground.environment)


def fill(line: list[str], arguments: list[str]) -> list[str]:
    """A word `{argv}` becomes the arguments; within a word they are quoted for a shell; without it they come last."""
    if not any("{argv}" in word for word in line):
        return [*line, *arguments]
    filled: list[str] = []
    for word in line:
        filled += arguments if word == "{argv}" else [word.replace("{argv}", shlex.join(arguments))]
    return filled


class Module:
    """What the `open()` of a Python file gave: it has `run(argv)`, `run_code(code)` and `close()`.

    The two give back what was printed: text, bytes, or an object with `stdout`.
    """

    def __init__(self, name: str, opened: Any) -> None:
        self.name = name
        self._opened = opened

    def perform(self, work: Work) -> str | None:
        """One call of it."""
        if work.language == "python" and not work.argv:
            given = self._opened.run_code(work.code)
        else:
            given = self._opened.run(work.arguments("python3"))
        printed = getattr(given, "stdout", given)
        work.check(printed.decode(errors="replace") if isinstance(printed, bytes) else printed)
        return None

    def close(self) -> None:
        """Lets go of it."""
        self._opened.close()


def from_module(path: str) -> Module:
    """The peer that a Python file defines; its name is `NAME` in the file, or the file's own."""
    names = runpy.run_path(path)
    return Module(names.get("NAME", path.rpartition("/")[2].removesuffix(".py")), names["open"]())


# ---- all of them ----


def find(
    ground: Ground, lines: Iterable[str], modules: Iterable[str], stack: ExitStack
) -> tuple[list[Contender], dict[str, str]]:
    """Those that work, and why each of the others does not. What is opened is closed with the stack."""
    found: list[Contender] = []
    refused: dict[str, str] = {}
    makers: list[tuple[str, Callable[[], Contender]]] = [
        *((name, partial(make, ground)) for name, make in BUILT_IN.items()),
        *((name, partial(_templated, name, given, ground)) for name, given in parse(lines).items()),
        *((path, partial(_opened, path, stack)) for path in modules),
    ]
    for name, make in makers:
        try:
            contender = make()
            _probe(contender)
        except Exception as failure:  # a peer may raise anything
            refused[name] = " ".join(f"{failure}".split())[:160] or type(failure).__name__
        else:
            found.append(contender)
    return found, refused


def _opened(path: str, stack: ExitStack) -> Module:
    module = from_module(path)
    stack.callback(module.close)
    return module


def _probe(contender: Contender) -> None:
    """One that can do either kind of work takes part."""
    try:
        contender.perform(TRUE)
    except Exception as first:  # likewise
        try:
            contender.perform(PRINT)
        except Exception:
            raise first from None
