"""An engine that this process talks to, and how an operation is driven through it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc

from stepbox import _calls as calls
from stepbox import _discovery, _launch, _standing
from stepbox._calls import Call, Operation, Unary
from stepbox._errors import EngineError, SessionLost, StepboxError
from stepbox._pb import sandbox_pb2 as pb
from stepbox._status import FailedCall, error_of
from stepbox._transport import AsyncTransport, SyncTransport

if TYPE_CHECKING:
    from stepbox._discovery import Address
    from stepbox._launch import EngineProcess
    from stepbox._session import Session

_T = TypeVar("_T")
_ATTACH_S = 10.0
# At exit nobody waits long for an engine that is not this process's own.
_CLOSE_S = 2.0
# How long the death of an engine may show later than the end of its connection.
_DEATH_S = 1.0


class Engine:
    """One engine, started by this process or attached to."""

    def __init__(self, address: Address, process: EngineProcess | None, *, standing: bool = False) -> None:
        self.address = address
        self.process = process
        self.standing = standing
        self.owner_pid = os.getpid()
        token = _read_token(address)
        self._sync = SyncTransport(address.target, token)
        self._async = AsyncTransport(self._sync)
        self._stopped = False
        # Those that objects of this process hold open.
        self.sessions: set[str] = set()

    @property
    def same_host(self) -> bool:
        """Whether paths of this host mean something to the engine."""
        return self.address.is_unix

    def has_ended(self, *, within_s: float = 0.0) -> bool:
        """Whether the engine is known to be gone. Of one that `STEPBOX_ADDRESS` names, nothing is known."""
        if self._stopped:
            return True
        if self.standing:
            return not _standing.listens(self.address)
        return self.process is not None and self.process.has_ended(within_s=within_s)

    def stop(self) -> None:
        """Lets go of the engine. One that this process started is ended; on another, what was left open is closed."""
        if self.process is None:
            for session_id in tuple(self.sessions):
                with contextlib.suppress(StepboxError):
                    self.drive(_close(session_id))
        self._stopped = True
        self._sync.close()
        if self.process is not None:
            self.process.stop()

    # ---- driving ----

    def drive(self, operation: Operation[_T], session: Session | None = None) -> _T:
        """Carries an operation out, call by call."""
        try:
            call = next(operation)
            while True:
                try:
                    reply = self._perform(call, session)
                except Exception as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(reply)
        except StopIteration as done:
            return cast("_T", done.value)
        finally:
            operation.close()

    async def adrive(self, operation: Operation[_T], session: Session | None = None) -> _T:
        """The same, in an event loop."""
        try:
            call = next(operation)
            while True:
                try:
                    reply = await self._aperform(call, session)
                except Exception as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(reply)
        except StopIteration as done:
            return cast("_T", done.value)
        finally:
            operation.close()

    def _perform(self, call: Call, session: Session | None) -> Any:
        try:
            return self._sync.perform(call)
        except grpc.RpcError as failed:
            error = error_of(cast("FailedCall", failed))
        except (grpc.FutureCancelledError, ValueError) as failed:
            # What a channel says that was closed by another thread.
            if not self._stopped:
                raise
            error = EngineError(str(failed), code="UNAVAILABLE")
        raise self._explained(error, session) from None

    async def _aperform(self, call: Call, session: Session | None) -> Any:
        try:
            return await self._async.perform(call)
        except grpc.RpcError as failed:
            error = error_of(cast("FailedCall", failed))
        except (grpc.FutureCancelledError, ValueError) as failed:
            if not self._stopped:
                raise
            error = EngineError(str(failed), code="UNAVAILABLE")
        if _may_be_death(error) and (self.process is not None or self.standing):
            await asyncio.to_thread(self.has_ended, within_s=_DEATH_S)
        raise self._explained(error, session) from None

    def _explained(self, error: StepboxError, session: Session | None) -> StepboxError:
        """The error in terms of what became of the engine and the session."""
        if (
            self.process is None
            and not self.standing
            and isinstance(error, EngineError)
            and error.code == "UNAVAILABLE"
        ):
            return EngineError(f"the engine at {self.address.target}: {error}", code=error.code)
        if isinstance(error, SessionLost) and session is not None:
            return session.lost(str(error), workspace_removed=True)
        if not _may_be_death(error) or not self.has_ended(within_s=_DEATH_S):
            return error
        words = self.process.last_words() if self.process is not None and not self._stopped else ""
        text = f"the stepbox engine is gone: {words}" if words else "the stepbox engine is gone"
        if session is None:
            return EngineError(text, code="UNAVAILABLE")
        return session.lost(text, workspace_removed=True)


def _may_be_death(error: StepboxError) -> bool:
    return isinstance(error, EngineError) and error.code in ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED")


def start_engine(environment: Mapping[str, str], *, isolation: str = "full", standing: bool = False) -> Engine:
    """The engine that the environment names, or else the user's standing one or a new one of this process's own."""
    address = _discovery.find_address(environment)
    if address is not None:
        return _attach(address)
    if standing:
        return _attach(_standing.join(environment, isolation), standing=True)
    process, ready = _launch.launch(_discovery.find_binary(environment), environment, isolation=isolation)
    try:
        return Engine(ready.address, process)
    except BaseException:
        process.stop()
        raise


def find_engines(environment: Mapping[str, str]) -> list[Engine]:
    """The engines that hold what outlives a process: the one that the environment names, or the standing ones."""
    address = _discovery.find_address(environment)
    if address is not None:
        return [_attach(address)]
    found = (_standing.find(environment, kind) for kind in _standing.KINDS)
    return [_attach(address, standing=True) for address in found if address is not None]


def _attach(address: Address, *, standing: bool = False) -> Engine:
    engine = Engine(address, None, standing=standing)
    try:
        info = engine.drive(_version())
        name = "the standing engine" if standing else "the engine"
        _launch.check_version(info, f"{name} at {address.target}")
    except BaseException:
        engine.stop()
        raise
    return engine


def _close(session_id: str) -> Operation[None]:
    yield Unary(calls.CLOSE_SESSION, pb.CloseSessionRequest(session_id=session_id), _CLOSE_S)


def _version() -> Operation[str]:
    reply = yield Unary(calls.GET_INFO, pb.GetInfoRequest(), _ATTACH_S)
    return str(reply.version)


def _read_token(address: Address) -> str | None:
    if address.token_file is None:
        return None
    try:
        return address.token_file.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"the engine's token cannot be read from {address.token_file}: {error}") from error
