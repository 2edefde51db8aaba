"""What a sandbox object holds: its hold on the engine, and its open session."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepbox import _discovery, _options, _standing
from stepbox import _operations as operations
from stepbox._errors import SandboxError, SessionLost, StepboxError
from stepbox._operations import SessionFacts
from stepbox._shared import SharedEngine, engine_for

if TYPE_CHECKING:
    from stepbox._engine import Engine


@dataclass(frozen=True)
class Session(SessionFacts):
    """A session that is open, and where."""

    engine: Engine = field(kw_only=True)

    def lost(self, why: str, *, workspace_removed: bool) -> SessionLost:
        """The error of a session that is gone, with what became of its files."""
        if self.workspace is not None:
            return SessionLost(f"{why}; the files are in {self.workspace}", workspace_survived=True)
        if workspace_removed:
            return SessionLost(f"{why}; its private workspace went with it", workspace_survived=False)
        return SessionLost(why)


@dataclass
class _Held:
    """Apart from the lease, so that it can be let go when the lease is forgotten."""

    engines: SharedEngine
    engine: Engine | None = None
    session: Session | None = None


class Lease:
    """The hold of one sandbox object on the engine: from its making until it is closed or forgotten."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._held = _Held(engine_for(options))
        # At exit the engine ends as a whole.
        weakref.finalize(self, _forget, self._held).atexit = False

    @property
    def session(self) -> Session | None:
        """The session, when one was made and not closed."""
        return self._held.session

    def is_open(self) -> bool:
        """Whether there is a session that a call can reach: neither the parent process's nor a dead engine's."""
        session = self.session
        return session is not None and session.engine.owner_pid == os.getpid() and not session.engine.has_ended()

    def engine(self) -> Engine:
        """The engine, started when there is none or when it has died."""
        with self._lock:
            engine = self._held.engine
            if engine is not None and engine.owner_pid == os.getpid() and not engine.has_ended():
                return engine
            self._let_go()
            self._held.engine = self._held.engines.acquire()
            return self._held.engine

    def hold(self, facts: SessionFacts) -> Session:
        """Makes a session this object's own."""
        with self._lock:
            engine = self._held.engine
            if engine is None:
                raise SandboxError("the sandbox was closed while it was being opened")
            known = {**vars(facts), "workspace": facts.workspace or _options.workspace_path(self._options)}
            session = Session(**known, engine=engine)
            if not session.outlives:
                engine.sessions.add(session.id)
            self._held.session = session
            return session

    def require(self) -> Session:
        """The session, when it is open in this very process."""
        session = self.session
        if session is None:
            raise SandboxError("the sandbox is not open; use it in a `with` block, or call open()")
        if session.engine.owner_pid != os.getpid():
            raise session.lost(
                f"the sandbox was opened by process {session.engine.owner_pid}, which this one was forked from; "
                "open a new one here",
                workspace_removed=False,
            )
        return session

    def give_up(self) -> Session | None:
        """Takes the session away; gives it back when its closing can be asked for."""
        reachable = self.is_open()
        session, self._held.session = self._held.session, None
        if session is not None:
            session.engine.sessions.discard(session.id)
        return session if reachable else None

    def release(self) -> None:
        """Ends the hold on the engine."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        engine, self._held.engine = self._held.engine, None
        if engine is not None:
            self._held.engines.release(engine)


def leases_to_find_by() -> list[Lease]:
    """A hold on each engine in which a session of another process's may be. None is started."""
    if _discovery.find_address(os.environ) is not None:
        return [Lease({"name": ""})]
    kinds = (kind for kind in _standing.KINDS if _standing.find(os.environ, kind) is not None)
    return [Lease({"name": "", "isolation_mode": kind}) for kind in kinds]


def _forget(held: _Held) -> None:
    """Lets go of what an object held that nobody closed.

    This runs within a garbage collection, in whatever thread and under whatever lock that one came about: the work,
    which waits, is another thread's. A plain one, because `threading.Thread` takes locks to start.
    """
    if held.engine is not None and held.engine.owner_pid == os.getpid():
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and the engine with it
            _thread.start_new_thread(_clean_up, (held,))


def _clean_up(held: _Held) -> None:
    if held.engine is None:
        return
    if held.session is not None and not held.session.outlives and not held.engine.has_ended():
        with contextlib.suppress(StepboxError):
            held.engine.drive(operations.close_session(held.session))
        held.engine.sessions.discard(held.session.id)
    held.engines.release(held.engine)
