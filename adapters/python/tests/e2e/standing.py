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
        return self._pid("full")

    def _pid(self, kind):
        address = _standing.find(os.environ, kind)
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
        _shared.standing_reduced.stop()

    def end(self):
        """Ends it, and waits until it is gone."""
        self.let_go()
        for pid in filter(None, map(self._pid, _standing.KINDS)):
            os.kill(pid, signal.SIGTERM)
            eventually(lambda pid=pid: not is_alive(pid))


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
