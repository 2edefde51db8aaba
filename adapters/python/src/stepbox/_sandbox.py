"""The synchronous face: `Sandbox` and the one-shot `run_code`."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from stepbox import _cells as cells
from stepbox import _operations as operations
from stepbox import _options
from stepbox import _search as search
from stepbox._engine import find_engines
from stepbox._errors import SessionLost
from stepbox._kernel import Kernel
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


class Sandbox:
    """A session of sandboxes: a workspace, limits and an image that outlive its steps.

        with Sandbox(memory_mb=256, timeout_s=10) as sandbox:
            result = sandbox.run_code("print(1 + 1)")

    Options are given by keyword. A limit that is left out takes its default; None is "uncapped". All options are
    checked when the object is made, and all mistakes are reported together; nothing is made before `with` or `open()`.
    The object is thread-safe and its steps may overlap.

    Args:
        **options: `image`, `workspace`, `memory_mb`, `cpus`, `pids`, `timeout_s`, `network`, `mounts`, `tmpfs`, `env`,
            `files` (written when it opens), and the rest: see the signature.

    Raises:
        TypeError: There is no such option; the text lists the ones there are.
        SandboxError: Options are wrong; `violations` has all mistakes.
        MountRefused: A mount or the workspace may not be had.
        EngineError: The engine could not be found, started or reached.
    """

    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        _options.check_names(options)
        self._options: dict[str, Any] = dict(options)
        self._lease = Lease(self._options)
        self._opening = threading.Lock()
        try:
            engine = self._lease.engine()
            self._checked = engine.drive(operations.check_spec(self._options, same_host=engine.same_host))
        except BaseException:
            self._lease.release()
            raise

    # ---- life ----

    def open(self) -> Self:
        """Makes the session. Opening one that is open already changes nothing.

        Raises:
            SandboxError: Setup failed or options are refused.
            EngineError: The host cannot make sandboxes: the text says why, and what mends it.
        """
        with self._opening:
            if not self._lease.is_open():
                engine = self._lease.engine()
                self._lease.hold(engine.drive(operations.create_session(self._options, same_host=engine.same_host)))
        return self

    @classmethod
    def attach(cls, id_or_name: str) -> Self:
        """A session that lives already, whoever made it, open.

        Raises:
            SessionLost: There is none of this id or name, or no engine that could have it.
            EngineError: The engine could not be reached.
        """
        for lease in leases_to_find_by():
            try:
                engine = lease.engine()
                facts = engine.drive(operations.find_session(id_or_name))
            except SessionLost:
                lease.release()
            except BaseException:
                lease.release()
                raise
            else:
                lease.hold(facts)
                found = cls.__new__(cls)
                found._adopt(lease, facts)
                return found
        raise operations.no_such_session(id_or_name)

    def _adopt(self, lease: Lease, facts: operations.SessionFacts) -> None:
        self._options = {}
        self._lease = lease
        self._opening = threading.Lock()
        self._checked = facts

    def close(self) -> None:
        """Stops the steps that run, and removes the session and what it owns. A given workspace stays.

        A session that has a name, or that was attached to, is only let go of: it lives on until it has been idle for
        its `ttl_s`, or until `destroy()`.
        """
        self._end(destroy=False)

    def destroy(self) -> None:
        """The same as `close()`, and removes the session whoever made it and whoever else uses it."""
        self._end(destroy=True)

    def _end(self, *, destroy: bool) -> None:
        with self._opening:
            session = self._lease.give_up()
            try:
                if session is not None and (destroy or not session.outlives):
                    session.engine.drive(operations.close_session(session), session)
            except SessionLost:
                pass  # what was to be closed is gone
            finally:
                self._lease.release()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        """What is enforced, and by what: `memory`, `pids`, `cpu`, `workspace`."""
        return dict((self._lease.session or self._checked).limits)

    @property
    def isolation(self) -> list[str]:
        """The layers that are in force."""
        return list((self._lease.session or self._checked).isolation)

    def __repr__(self) -> str:
        return f"<stepbox.Sandbox {self.id or 'not open'}>"

    # ---- steps ----

    def run_code(
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
        """Runs source code in a fresh sandbox on the workspace.

        Args:
            code: The source, of any size.
            language: `python`, `bash`, `sh` or `javascript`.
            args: What the code sees after its own name.
            timeout_s: Seconds for this step; None is the session's.
            memory_mb: MiB for this step; None is the session's.
            env: Added to the session's; the later wins.
            cwd: In the sandbox; relative to `/workspace`.
            user: Name or `uid[:gid]` in the image.
            stdin: What the code reads; None is end of file at once.
            on_stdout: Called with each piece of standard output as it comes.
            on_stderr: The same of standard error.

        Raises:
            SandboxError: A wrong argument, or the sandbox is not open. The code did not run.
            EngineError: The engine could not serve the call.
            SessionLost: The session is gone.
        """
        options = operations.step_options(timeout_s, memory_mb, env, cwd, user, stdin, on_stdout, on_stderr)
        request = operations.run_code_request(code, language, args, options)
        return self._drive(lambda session: operations.step(session, request, on_stdout, on_stderr))

    def run(
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
        return self._drive(lambda session: operations.step(session, request, on_stdout, on_stderr))

    def kernel(
        self, *, memory_mb: int | None = None, env: Mapping[str, str] | None = None, cwd: HostPath | None = None
    ) -> Kernel:
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
        facts = session.engine.drive(cells.start(session, memory_mb, env, cwd), session)
        return Kernel(session, facts)

    # ---- files of the workspace ----
    # A path is relative to the workspace, or absolute below /workspace. A failed call raises a SandboxError that bears
    # a `reason` and is also the builtin of the same meaning (FileNotFoundError, IsADirectoryError, …).

    def write_file(self, path: HostPath, data: bytes | str, *, mode: int | None = None) -> int:
        """Writes a file: it appears whole or not at all. Parents are made. Gives back its size in bytes."""
        return self._drive(lambda session: operations.write_file(session, path, data, mode))

    def read_file(
        self, path: HostPath, *, offset: int = 0, length: int | None = None, max_bytes: int | None = None
    ) -> bytes:
        """Reads a file, or a range of it. A file above `max_bytes` (1 GiB when None) is refused."""
        return self._drive(lambda session: operations.read_file(session, path, offset, length, max_bytes))

    def read_text(self, path: HostPath, *, errors: str = "strict") -> str:
        """Reads a file as UTF-8."""
        return self.read_file(path).decode("utf-8", errors)

    def list_files(self, subdir: HostPath = "") -> list[str]:
        """The regular files below a directory, recursively, each relative to the workspace."""
        return self._drive(lambda session: operations.list_files(session, subdir))

    def list_dir(self, path: HostPath = "") -> list[FileStat]:
        """What is in a directory, sorted by path; not what is below its directories. Links are not followed."""
        return self._drive(lambda session: search.list_dir(session, path))

    def glob(self, pattern: str, subdir: HostPath = "", *, files_only: bool = False) -> list[str]:
        """The entries below a directory whose path from there matches, sorted, each relative to the workspace.

        `*`, `?` and `[…]` stand for what is between two slashes, `**` for any number of directories, `{a,b}` for one of
        several: `*.py` is at the top alone, `**/*.py` anywhere. With a slash at its end the pattern is one of
        directories. Names that begin with a dot are as others. Links are found and not followed.

        Raises:
            SandboxError: The pattern is none (`violations` says where), there is no such directory, or there are more
                entries than a search looks at (reason `too_large`).
        """
        return self._drive(lambda session: search.glob(session, pattern, subdir, files_only))

    def grep(
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
        return self._drive(
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

    def edit_file(self, path: HostPath, old: bytes | str, new: bytes | str, replace_all: bool = False) -> Edit:
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
        return self._drive(lambda session: search.edit_file(session, path, old, new, replace_all))

    def stat(self, path: HostPath) -> FileStat:
        """What one entry is. A link is not followed."""
        return self._drive(lambda session: operations.stat(session, path))

    def exists(self, path: HostPath) -> bool:
        """Whether there is an entry of this name; a link counts, wherever it leads."""
        return self._drive(lambda session: operations.exists(session, path))

    def make_dir(self, path: HostPath) -> None:
        """Makes a directory and its parents; one that is there already is fine."""
        self._drive(lambda session: operations.make_dir(session, path))

    def remove(self, path: HostPath, *, recursive: bool = False) -> None:
        """Removes a file, a link or an empty directory; with `recursive`, a directory and what is in it."""
        self._drive(lambda session: operations.remove(session, path, recursive))

    def move(self, source: HostPath, target: HostPath, *, replace: bool = False) -> None:
        """Moves an entry; without `replace`, an existing target is refused."""
        self._drive(lambda session: operations.move(session, source, target, replace))

    def upload(self, local: HostPath, path: HostPath) -> int:
        """Copies a file of the host into the workspace, in bounded memory. Gives back its size in bytes."""
        return self._drive(lambda session: operations.upload(session, local, path))

    def download(self, path: HostPath, local: HostPath) -> int:
        """Copies a file of the workspace to the host, in bounded memory. Gives back its size in bytes."""
        return self._drive(lambda session: operations.download(session, path, local))

    def _drive(self, operation: Callable[[Session], Operation[_T]]) -> _T:
        session = self._lease.require()
        return session.engine.drive(operation(session), session)


def sessions() -> list[SessionInfo]:
    """The sessions of the engine that `STEPBOX_ADDRESS` names, or else of the user's standing engines.

    No engine is started for it, and no session is kept from becoming idle.
    """
    found = []
    for engine in find_engines(os.environ):
        try:
            found += engine.drive(operations.list_sessions())
        finally:
            engine.stop()
    return found


def run_code(code: str, language: str = "python", **options: Unpack[SandboxOptions]) -> ExecutionResult:
    """Runs source code once, in a session of its own that is gone when this returns.

    Args:
        code: The source, of any size.
        language: `python`, `bash`, `sh` or `javascript`.
        **options: Those of `Sandbox`.
    """
    with Sandbox(**options) as sandbox:
        return sandbox.run_code(code, language)


Sandbox.__signature__ = _options.SIGNATURE  # type: ignore[attr-defined]  # what `inspect` looks for
