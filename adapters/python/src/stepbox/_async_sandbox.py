"""The asynchronous face: `AsyncSandbox`. Its operations are those of `Sandbox`; only the waiting differs."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, TypeVar

from stepbox import _cells as cells
from stepbox import _operations as operations
from stepbox import _options
from stepbox import _search as search
from stepbox._engine import find_engines
from stepbox._errors import SessionLost
from stepbox._kernel import AsyncKernel
from stepbox._session import Lease, leases_to_find_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from stepbox._calls import Operation
    from stepbox._options import SandboxOptions
    from stepbox._results import Edit, ExecutionResult, FileStat, GrepMatches, Limit, SessionInfo
    from stepbox._session import Session
    from stepbox._shapes import HostPath

_T = TypeVar("_T")


class AsyncSandbox:
    """`Sandbox` for asyncio: the same options, methods and results.

        async with AsyncSandbox(memory_mb=256) as sandbox:
            result = await sandbox.run_code("print(1 + 1)")

    An option that does not exist is refused at once; all others are checked by `async with` or `open()`. Cancelling the
    task that awaits a step kills the step and raises `CancelledError`. One object may be used from several event loops.

    Args:
        **options: As for `Sandbox`.

    Raises:
        TypeError: There is no such option; the text lists the ones there are.
    """

    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        _options.check_names(options, callee="AsyncSandbox")
        self._options: dict[str, Any] = dict(options)
        self._lease = Lease(self._options)

    # ---- life ----

    async def open(self) -> Self:
        """Checks the options and makes the session. Opening one that is open already changes nothing.

        Raises:
            SandboxError: Options are wrong or setup failed; `violations` has all mistakes.
            MountRefused: A mount or the workspace may not be had.
            EngineError: The engine could not be found, started or reached, or the host cannot make sandboxes.
        """
        if self._lease.is_open():
            return self
        engine = await asyncio.to_thread(self._lease.engine)
        facts = await engine.adrive(operations.create_session(self._options, same_host=engine.same_host))
        if self._lease.is_open():  # another task was faster
            if not facts.outlives:
                await engine.adrive(operations.close_session(facts))
        else:
            self._lease.hold(facts)
        return self

    @classmethod
    async def attach(cls, id_or_name: str) -> Self:
        """A session that lives already, whoever made it, open.

        Raises:
            SessionLost: There is none of this id or name, or no engine that could have it.
            EngineError: The engine could not be reached.
        """
        for lease in await asyncio.to_thread(leases_to_find_by):
            try:
                engine = await asyncio.to_thread(lease.engine)
                facts = await engine.adrive(operations.find_session(id_or_name))
            except SessionLost:
                lease.release()
            except BaseException:
                lease.release()
                raise
            else:
                lease.hold(facts)
                found = cls.__new__(cls)
                found._options, found._lease = {}, lease
                return found
        raise operations.no_such_session(id_or_name)

    async def close(self) -> None:
        """Stops the steps that run, and removes the session and what it owns. A given workspace stays.

        A session that has a name, or that was attached to, is only let go of: it lives on until it has been idle for
        its `ttl_s`, or until `destroy()`.
        """
        await self._end(destroy=False)

    async def destroy(self) -> None:
        """The same as `close()`, and removes the session whoever made it and whoever else uses it."""
        await self._end(destroy=True)

    async def _end(self, *, destroy: bool) -> None:
        session = self._lease.give_up()
        try:
            if session is not None and (destroy or not session.outlives):
                await session.engine.adrive(operations.close_session(session), session)
        except SessionLost:
            pass  # what was to be closed is gone
        finally:
            self._lease.release()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- what it is ----

    @property
    def id(self) -> str | None:
        """The session's id, or None when it is not open."""
        session = self._lease.session
        return session.id if session is not None else None

    @property
    def attached(self) -> bool:
        """Whether the session lived before this object opened it."""
        session = self._lease.session
        return session is not None and session.attached

    @property
    def workspace(self) -> str | None:
        """The host path of a given workspace, or None for a private one."""
        session = self._lease.session
        if session is not None:
            return session.workspace
        return _options.workspace_path(self._options)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given, and the defaults of the rest."""
        return {**_options.DEFAULTS, **self._options}

    @property
    def limits(self) -> dict[str, Limit]:
        """What is enforced, and by what: `memory`, `pids`, `cpu`, `workspace`. Empty before it is open."""
        session = self._lease.session
        return dict(session.limits) if session is not None else {}

    @property
    def isolation(self) -> list[str]:
        """The layers that are in force. Empty before it is open."""
        session = self._lease.session
        return list(session.isolation) if session is not None else []

    def __repr__(self) -> str:
        return f"<stepbox.AsyncSandbox {self.id or 'not open'}>"

    # ---- steps ----

    async def run_code(
        self,
        code: str,
        language: str = "python",
        *,
        args: Sequence[str | bytes | os.PathLike[str]] = (),
        timeout_s: float | None = None,
        memory_mb: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: HostPath | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> ExecutionResult:
        """Runs source code in a fresh sandbox on the workspace, as `Sandbox.run_code`.

        What a callback gives back is awaited when it can be.
        """
        options = operations.step_options(timeout_s, memory_mb, env, cwd, user, stdin, on_stdout, on_stderr)
        request = operations.run_code_request(code, language, args, options)
        return await self._drive(lambda session: operations.step(session, request, on_stdout, on_stderr))

    async def run(
        self,
        argv: Sequence[str | bytes | os.PathLike[str]],
        *,
        timeout_s: float | None = None,
        memory_mb: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: HostPath | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> ExecutionResult:
        """Runs a program by its arguments, with no shell. The rest is as for `run_code`."""
        options = operations.step_options(timeout_s, memory_mb, env, cwd, user, stdin, on_stdout, on_stderr)
        request = operations.run_request(argv, options)
        return await self._drive(lambda session: operations.step(session, request, on_stdout, on_stderr))

    async def kernel(
        self, *, memory_mb: int | None = None, env: Mapping[str, str] | None = None, cwd: HostPath | None = None
    ) -> AsyncKernel:
        """Starts a Python interpreter that stays: what one of its cells leaves in memory is there for the next.

        It has a sandbox of its own, and shares nothing with other kernels and with steps but the workspace.

        Args:
            memory_mb: MiB for all of its life; None is the session's.
            env: Added to the session's; the later wins.
            cwd: In the sandbox; relative to `/workspace`.

        Raises:
            SandboxError: It could not start: `fault` says what the sandbox did to it, if it did something.
            EngineError: The engine could not serve the call.
            SessionLost: The session is gone.
        """
        session = self._lease.require()
        facts = await session.engine.adrive(cells.start(session, memory_mb, env, cwd), session)
        return AsyncKernel(session, facts)

    # ---- files of the workspace: as those of `Sandbox` ----

    async def write_file(self, path: HostPath, data: bytes | str, *, mode: int | None = None) -> int:
        """Writes a file: it appears whole or not at all. Parents are made. Gives back its size in bytes."""
        return await self._drive(lambda session: operations.write_file(session, path, data, mode))

    async def read_file(
        self, path: HostPath, *, offset: int = 0, length: int | None = None, max_bytes: int | None = None
    ) -> bytes:
        """Reads a file, or a range of it. A file above `max_bytes` (1 GiB when None) is refused."""
        return await self._drive(lambda session: operations.read_file(session, path, offset, length, max_bytes))

    async def read_text(self, path: HostPath, *, errors: str = "strict") -> str:
        """Reads a file as UTF-8."""
        return (await self.read_file(path)).decode("utf-8", errors)

    async def list_files(self, subdir: HostPath = "") -> list[str]:
        """The regular files below a directory, recursively, each relative to the workspace."""
        return await self._drive(lambda session: operations.list_files(session, subdir))

    async def list_dir(self, path: HostPath = "") -> list[FileStat]:
        """What is in a directory, sorted by path; not what is below its directories. Links are not followed."""
        return await self._drive(lambda session: search.list_dir(session, path))

    async def glob(self, pattern: str, subdir: HostPath = "", *, files_only: bool = False) -> list[str]:
        """The entries below a directory whose path from there matches, sorted, each relative to the workspace.

        `*`, `?` and `[…]` stand for what is between two slashes, `**` for any number of directories, `{a,b}` for one of
        several: `*.py` is at the top alone, `**/*.py` anywhere. With a slash at its end the pattern is one of
        directories. Names that begin with a dot are as others. Links are found and not followed.

        Raises:
            SandboxError: The pattern is none (`violations` says where), there is no such directory, or there are more
                entries than a search looks at (reason `too_large`).
        """
        return await self._drive(lambda session: search.glob(session, pattern, subdir, files_only))

    async def grep(
        self,
        pattern: str,
        subdir: HostPath = "",
        *,
        ignore_case: bool = False,
        literal: bool = False,
        glob: str | None = None,
        max_count: int = 10_000,
    ) -> GrepMatches:
        """The lines that match, of the files below a directory or of one file: a list of `GrepMatch`.

        Lines are searched one by one. Hidden files are searched too; links are not followed; what the sandbox's user
        may not read is passed over, as are files that hold a NUL (the list's `binary_files` says how many).

        Args:
            pattern: A regular expression, without look-around and back-references: it never takes long.
            subdir: A directory or a file.
            ignore_case: Letters of either case match.
            literal: `pattern` is text.
            glob: Only files whose path from `subdir` on matches, as in `glob()`; without a slash, whose name does.
            max_count: Lines at most; when there are more the list's `truncated` is True.

        Raises:
            SandboxError: The pattern is none (`violations` says where), or there is nothing at `subdir`.
        """
        return await self._drive(
            lambda session: search.grep(
                session,
                pattern,
                subdir,
                ignore_case=ignore_case,
                literal=literal,
                glob=glob,
                max_count=max_count,
            )
        )

    async def edit_file(self, path: HostPath, old: bytes | str, new: bytes | str, replace_all: bool = False) -> Edit:
        """Replaces text in a file, the whole file or nothing of it. Its mode and its line ends stay.

        Args:
            path: A file of at most 16 MiB.
            old: The text as it is in the file, with its line ends. It must be there once, unless `replace_all`.
            new: What is to be in its place.
            replace_all: Every place, from the start on.

        Raises:
            SandboxError: Reason `no_match` or `several_matches` (the error's `count` says how many), both ValueErrors
                too; `changed` when somebody else wrote to the file meanwhile; else as for the other file calls.
        """
        return await self._drive(lambda session: search.edit_file(session, path, old, new, replace_all))

    async def stat(self, path: HostPath) -> FileStat:
        """What one entry is. A link is not followed."""
        return await self._drive(lambda session: operations.stat(session, path))

    async def exists(self, path: HostPath) -> bool:
        """Whether there is an entry of this name; a link counts, wherever it leads."""
        return await self._drive(lambda session: operations.exists(session, path))

    async def make_dir(self, path: HostPath) -> None:
        """Makes a directory and its parents; one that is there already is fine."""
        await self._drive(lambda session: operations.make_dir(session, path))

    async def remove(self, path: HostPath, *, recursive: bool = False) -> None:
        """Removes a file, a link or an empty directory; with `recursive`, a directory and what is in it."""
        await self._drive(lambda session: operations.remove(session, path, recursive))

    async def move(self, source: HostPath, target: HostPath, *, replace: bool = False) -> None:
        """Moves an entry; without `replace`, an existing target is refused."""
        await self._drive(lambda session: operations.move(session, source, target, replace))

    async def upload(self, local: HostPath, path: HostPath) -> int:
        """Copies a file of the host into the workspace, in bounded memory. Gives back its size in bytes."""
        return await self._drive(lambda session: operations.upload(session, local, path))

    async def download(self, path: HostPath, local: HostPath) -> int:
        """Copies a file of the workspace to the host, in bounded memory. Gives back its size in bytes."""
        return await self._drive(lambda session: operations.download(session, path, local))

    async def _drive(self, operation: Callable[[Session], Operation[_T]]) -> _T:
        session = self._lease.require()
        return await session.engine.adrive(operation(session), session)


async def sessions_async() -> list[SessionInfo]:
    """`sessions()` for asyncio."""
    found = []
    for engine in await asyncio.to_thread(find_engines, os.environ):
        try:
            found += await engine.adrive(operations.list_sessions())
        finally:
            await asyncio.to_thread(engine.stop)
    return found


AsyncSandbox.__signature__ = _options.SIGNATURE  # type: ignore[attr-defined]  # what `inspect` looks for
