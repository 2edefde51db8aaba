"""Starting the engine as a child process, and ending it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stepbox._discovery import Address, address_of
from stepbox._errors import EngineError
from stepbox._version import __version__

READY_S = 30.0
STOP_S = 5.0
_TAIL_BYTES = 16 * 1024
_READY_BYTES = 64 * 1024

# What the engine needs of the caller's environment. The rest, secrets above all, stays here.
_ENVIRONMENT = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "DBUS_SESSION_BUS_ADDRESS"})
_ENVIRONMENT_PREFIXES = ("LC_", "XDG_", "STEPBOX_")


@dataclass(frozen=True)
class Ready:
    """The line that an engine prints when it serves."""

    address: Address
    pid: int
    version: str


class EngineProcess:
    """An engine that this process started, and the end of what it said on its standard error."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._listener = threading.Thread(target=self._listen, name="stepbox-engine-stderr", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._popen.pid

    def has_ended(self, *, within_s: float = 0.0) -> bool:
        """Whether the engine is gone, or goes within a time: its socket closes a moment before it can be reaped."""
        try:
            self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Asks the engine to end, and makes it end when it does not."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if not self.has_ended():
            self._popen.terminate()
        if not self.has_ended(within_s=STOP_S):
            self._popen.kill()
            self._popen.wait()
        # What the engine left behind may still hold the pipe: not worth waiting for.
        self._listener.join(0.5)

    def last_words(self) -> str:
        """The end of the engine's standard error, and how it ended."""
        if self._popen.poll() is not None:
            self._listener.join(1.0)
        said = b"".join(self._tail)[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        status = self._popen.poll()
        if status is None:
            ending = ""
        elif status < 0:
            ending = f"it was ended by signal {-status}"
        else:
            ending = f"it ended with status {status}"
        return "\n".join(part for part in (ending, said) if part)

    def _listen(self) -> None:
        pipe = self._popen.stderr
        if pipe is None:
            return
        with pipe:
            while piece := os.read(pipe.fileno(), 8192):
                self._tail.append(piece)
                self._tail_size += len(piece)
                while self._tail_size - len(self._tail[0]) >= _TAIL_BYTES:
                    self._tail_size -= len(self._tail.popleft())


def launch(binary: Path, environment: Mapping[str, str], *, isolation: str = "full") -> tuple[EngineProcess, Ready]:
    """Starts an engine that lives as long as this process, and waits until it serves.

    Args:
        binary: The engine.
        environment: What it gets the part of that it needs.
        isolation: "reduced" for an engine whose sandboxes have no namespaces.

    Raises:
        EngineError: It did not start; the text is what it said, which names the cause and what mends it.
    """
    if sys.platform != "linux":
        raise EngineError(
            "the stepbox engine needs Linux: use WSL2 or a Linux machine, "
            "or set STEPBOX_ADDRESS to an engine that runs there"
        )
    try:
        popen = subprocess.Popen(  # noqa: S603 - the binary is the caller's choice
            [
                str(binary),
                "serve",
                "--parent-pid",
                str(os.getpid()),
                *(() if isolation == "full" else ("--isolation", isolation)),
            ],
            # A pipe that nobody writes to: the caller's stdin is not the engine's to read, and its end tells the
            # engine that this process is gone where nothing better does.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=engine_environment(environment),
            start_new_session=True,
            close_fds=True,
        )
    except OSError as error:
        raise EngineError(f"the stepbox engine {binary} could not be started: {error.strerror}") from error
    process = EngineProcess(popen)
    try:
        return process, _await_ready(process, popen.stdout, binary)
    except BaseException:
        process.stop()
        raise


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that the engine gets."""
    return {
        name: value
        for name, value in environment.items()
        if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIXES)
    }


def _await_ready(process: EngineProcess, stdout: IO[bytes] | None, binary: Path) -> Ready:
    line = _first_line(stdout, time.monotonic() + READY_S)
    if line is None:
        raise EngineError(_with_words(f"the stepbox engine {binary} was not ready within {READY_S:g} s", process))
    if not line:
        process.has_ended(within_s=STOP_S)
        raise EngineError(_with_words(f"the stepbox engine {binary} could not start", process))
    try:
        said = json.loads(line)
        token_file = said.get("token_file")
        ready = Ready(address_of(str(said["endpoint"]), token_file), int(said["pid"]), str(said["version"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{binary} is not a stepbox engine: its first line was {line[:200]!r}") from error
    check_version(ready.version, f"the engine {binary}")
    return ready


def check_version(version: str, engine: str) -> None:
    """Refuses an engine of another version: the protocol is one for engine and client."""
    if version != __version__:
        raise EngineError(
            f"{engine} has version {version}, this client has version {__version__}; install the same version of both"
        )


def _with_words(message: str, process: EngineProcess) -> str:
    words = process.last_words()
    return f"{message}: {words}" if words else message


def first_line(stdout: IO[bytes]) -> bytes | None:
    """What an engine says when it serves; empty when it ended before that, None when it took too long."""
    return _first_line(stdout, time.monotonic() + READY_S)


def _first_line(stdout: IO[bytes] | None, deadline: float) -> bytes | None:
    """The first line; empty when the pipe ended before one, None when the time did."""
    if stdout is None:
        return b""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while b"\n" not in line:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            piece = os.read(stdout.fileno(), 4096)
            if not piece or len(line) > _READY_BYTES:
                return b""
            line += piece
    return line.split(b"\n", 1)[0]
