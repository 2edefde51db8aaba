"""One engine a process, shared by all sandboxes and counted; none is ever shared across a fork."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping

from stepbox._engine import Engine, start_engine

# Programs that open one sandbox after another are not to pay for a new engine each time.
LINGER_S = 5.0


class SharedEngine:
    """The engine of this process, started at the first need and stopped some time after the last."""

    def __init__(self, start: Callable[[], Engine], *, linger_s: float = LINGER_S) -> None:
        self._start = start
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._users = 0
        self._timer: threading.Timer | None = None
        # What a forked child inherited: to close it would end calls of the parent, so it is kept and never touched.
        self._inherited: list[object] = []

    def acquire(self) -> Engine:
        """An engine that lives, with one user more. Each is given back once, by `release`."""
        with self._lock:
            self._cancel_timer()
            if self._engine is not None and self._engine.has_ended():
                self._engine.stop()
                self._engine, self._users = None, 0
            if self._engine is None:
                self._engine = self._start()
            self._users += 1
            return self._engine

    def release(self, engine: Engine) -> None:
        """One user less. One of an engine that is gone, or that belongs to the parent, changes nothing."""
        with self._lock:
            if engine is not self._engine:
                return
            self._users -= 1
            if self._users > 0:
                return
            self._cancel_timer()
            self._timer = threading.Timer(self._linger_s, self._stop_unused, (engine,))
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """Stops the engine whoever uses it: the process ends."""
        with self._lock:
            self._cancel_timer()
            engine, self._engine, self._users = self._engine, None, 0
        if engine is not None:
            engine.stop()

    def forget(self) -> None:
        """In a forked child: the engine is the parent's, and so may be whoever holds the lock."""
        self._inherited.append((self._engine, self._timer))
        self._lock = threading.Lock()
        self._engine, self._users, self._timer = None, 0, None

    def _stop_unused(self, engine: Engine) -> None:
        with self._lock:
            if engine is not self._engine or self._users > 0:
                return
            self._engine, self._timer = None, None
        engine.stop()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


shared = SharedEngine(lambda: start_engine(os.environ))
# An engine makes sandboxes of one kind: these have no namespaces.
reduced = SharedEngine(lambda: start_engine(os.environ, isolation="reduced"))
# What outlives this process is in engines that do.
standing = SharedEngine(lambda: start_engine(os.environ, standing=True))
standing_reduced = SharedEngine(lambda: start_engine(os.environ, isolation="reduced", standing=True))


def engine_for(options: Mapping[str, object]) -> SharedEngine:
    """The engine for sandboxes of that kind."""
    reduced_mode = options.get("isolation_mode") == "reduced"
    if options.get("name") is not None or options.get("resident"):
        return standing_reduced if reduced_mode else standing
    return reduced if reduced_mode else shared


for _engine in (shared, reduced, standing, standing_reduced):
    atexit.register(_engine.stop)
    os.register_at_fork(after_in_child=_engine.forget)
