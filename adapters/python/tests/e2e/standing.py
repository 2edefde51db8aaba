"""A standing engine of a test's own, whatever engines the user has."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import tempfile
from pathlib import Path

from evidence import eventually, is_alive

from stepbox import _shared, _standing


class Standing:
    """Where it is, and who it is."""

    def __init__(self, runtime):
        self.runtime = runtime

    @property
    def pid(self):
        """The process that listens, or None."""
        address = _standing.find(os.environ, "full")
        if address is None:
            return None
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(address.target.removeprefix("unix:"))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", credentials)[0]

    @property
    def directory(self):
        """Where its socket and its token are."""
        return self.runtime / f"stepbox-{os.geteuid()}"

    def let_go(self):
        """This process's own hold on it."""
        _shared.standing.stop()

    def end(self, number=signal.SIGTERM):
        """Ends it, and waits until it is gone."""
        self.let_go()
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)
            eventually(lambda: not is_alive(pid))


@contextlib.contextmanager
def standing_engine():
    # Short: the path of a socket is bounded. Its data is there too: no other engine of the user's is concerned.
    runtime = Path(tempfile.mkdtemp(prefix="sb"))
    before = {name: os.environ.pop(name, None) for name in ("XDG_RUNTIME_DIR", "TMPDIR")}
    os.environ["TMPDIR"] = str(runtime)
    _shared.standing.stop()
    engine = Standing(runtime)
    try:
        yield engine
    finally:
        engine.end()
        del os.environ["TMPDIR"]
        os.environ.update({name: value for name, value in before.items() if value is not None})
        shutil.rmtree(runtime)
