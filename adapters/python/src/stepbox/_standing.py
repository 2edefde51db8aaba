"""The user's standing engine: for sessions that outlive the process that made them, started at the first need.

It listens in the user's own directory and ends once it has no session and nobody has called it for a while. Whoever
looks for it holds a lock on that directory meanwhile, so that of many at once one starts it and the others find it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepbox import _discovery, _launch
from stepbox._discovery import Address
from stepbox._errors import EngineError

IDLE_EXIT_S = 600
KINDS = ("full", "reduced")


def address_for(environment: Mapping[str, str], isolation: str) -> Address:
    """Where the user's standing engine for sandboxes of that kind listens, whether there is one or not."""
    return _discovery.address_of(str(_socket(_directory(environment), isolation)), None)


def listens(address: Address) -> bool:
    """Whether anybody does there. An engine that died leaves its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_launch.STOP_S)
        try:
            probe.connect(address.target.removeprefix("unix:"))
        except OSError:
            return False
    return True


def find(environment: Mapping[str, str], isolation: str) -> Address | None:
    """The user's standing engine, or None when there is none."""
    directory = _directory(environment)
    if not directory.is_dir():
        return None
    with _locked(directory):
        address = _address(directory, isolation)
        return address if listens(address) else None


def join(environment: Mapping[str, str], isolation: str) -> Address:
    """The user's standing engine, started where there is none.

    Raises:
        EngineError: It did not start, or the directory for it is not this user's alone.
    """
    directory = _directory(environment)
    directory.mkdir(mode=0o700, exist_ok=True)
    with _locked(directory):
        address = _address(directory, isolation)
        if not listens(address):
            for left in (_socket(directory, isolation), _token(directory, isolation)):
                left.unlink(missing_ok=True)
            _start(environment, directory, isolation)
        return address


def _directory(environment: Mapping[str, str]) -> Path:
    """The engine's own choice of a directory."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and Path(runtime).is_dir():
        return Path(runtime) / "stepbox"
    return Path(environment.get("TMPDIR") or "/tmp") / f"stepbox-{os.geteuid()}"  # noqa: S108 - judged below


def _socket(directory: Path, isolation: str) -> Path:
    return directory / f"standing-{isolation}.sock"


def _token(directory: Path, isolation: str) -> Path:
    return directory / f"standing-{isolation}.token"


def _address(directory: Path, isolation: str) -> Address:
    return _discovery.address_of(str(_socket(directory, isolation)), str(_token(directory, isolation)))


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise EngineError(f"the directory for the standing engine, {directory}: {error.strerror}") from error
    try:
        found = os.fstat(held)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise EngineError(f"{directory} is not a directory of this user's alone; set TMPDIR to a directory that is")
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _start(environment: Mapping[str, str], directory: Path, isolation: str) -> None:
    if sys.platform != "linux":
        raise EngineError("the stepbox engine needs Linux: set STEPBOX_ADDRESS to an engine that runs there")
    binary = _discovery.find_binary(environment)
    # It has no name: it is the engine's alone once this process has read why it did not start.
    with tempfile.TemporaryFile() as words:
        try:
            popen = subprocess.Popen(  # noqa: S603 - the binary is the caller's choice
                [
                    str(binary),
                    "serve",
                    *("--socket", str(_socket(directory, isolation))),
                    *("--token-file", str(_token(directory, isolation))),
                    *("--idle-exit", str(IDLE_EXIT_S)),
                    *(() if isolation == "full" else ("--isolation", isolation)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                bufsize=0,
                cwd="/",
                env=_launch.engine_environment(environment),
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            raise EngineError(f"the stepbox engine {binary} could not be started: {error.strerror}") from error
        # It may end before this process does.
        threading.Thread(target=popen.wait, name="stepbox-standing-engine", daemon=True).start()
        stdout = popen.stdout
        assert stdout is not None  # noqa: S101 - asked for above
        with stdout:
            line = _launch.first_line(stdout)
        if line:
            return
        with contextlib.suppress(OSError):
            popen.terminate()
        words.seek(0)
        said = words.read(16 * 1024).decode("utf-8", "replace").strip()
        why = "was not ready in time" if line is None else "could not start"
        raise EngineError(f"the standing engine {binary} {why}" + (f": {said}" if said else ""))
