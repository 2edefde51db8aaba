"""The words of a result: what the code printed, how it ended, what the sandbox did to it, which files changed."""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepbox._errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_REPR_LIMIT = 500


@dataclass(frozen=True)
class SandboxFault:
    """What the sandbox did to the code. Made of kernel evidence; nothing that the code prints can make or hide one.

    Attributes:
        type: `startup_failed`, `exec_failed`, `escape_blocked`, `oom`, `workspace_full`, `timeout`, `cancelled` or
            `killed`.
        message: One sentence of facts, never of the code's output.
        syscall: `escape_blocked`: the name of the system call.
        syscall_args: `escape_blocked`: its arguments.
        pid: `escape_blocked`: the process, in the sandbox's numbers.
        program: `escape_blocked`: the name that the process bore; the code can choose it.
        step: `startup_failed`: the step of the set-up that failed.
        errno: `startup_failed`, `exec_failed`: the kernel's error number.
        path: `exec_failed`: what was asked for.
    """

    type: str
    message: str
    syscall: str | None = None
    syscall_args: tuple[int, ...] = ()
    pid: int | None = None
    program: str | None = None
    step: str | None = None
    errno: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class FileChange:
    """One file, directory or link of the workspace that the step changed.

    Attributes:
        path: Relative to the workspace. Bytes that are not UTF-8 are kept by `surrogateescape`: the path can be given
            back to any file call.
        change: `created`, `modified`, `deleted` or `renamed`.
        kind: `file`, `dir`, `symlink`, `fifo`, `socket` or `device`.
        size: Bytes; of a deleted file, what it had.
        mode: Permission bits.
        old_path: Of a renamed one, where it was.
        path_bytes: The path as it is on disk.
        host_risk: Why the caller's own tools should not trust it, or None.
        diff: What changed in the text of a regular file, as a unified diff with `a/` and `b/` before the names (or
            `/dev/null`), at most 64 KiB; or None.
        diff_reason: Why a regular file has no diff: `binary`, `too_large` (more than 64 KiB, now or before),
            `unknown_before` (the engine had not seen what was in it), `same_content` (moved, touched or given another
            mode), `changed_since` (written to again before it could be read), `too_many` (files or text of one step);
            or, beside a diff, `truncated`: it ends early. None with a whole diff, for what is not a regular file, and
            with `file_diffs=False`.
    """

    path: str
    change: str
    kind: str = "file"
    size: int = 0
    mode: int = 0
    old_path: str | None = None
    path_bytes: bytes = b""
    host_risk: str | None = None
    diff: str | None = None
    diff_reason: str | None = None


FileInfo = FileChange


@dataclass(frozen=True)
class FileStat:
    """What `stat()` tells of one entry of the workspace. A link is not followed."""

    path: str
    kind: str
    size: int
    mode: int
    modified_unix_ns: int
    link_target: str | None = None
    path_bytes: bytes = b""


@dataclass(frozen=True)
class GrepMatch:
    """One line that matched.

    Attributes:
        path: Relative to the workspace, as in `FileChange`.
        line_number: From 1.
        line: Without its end; the first 4 KiB of it. U+FFFD stands for bytes that are not UTF-8.
        path_bytes: The path as it is on disk.
        line_bytes: The line as it is in the file.
    """

    path: str
    line_number: int
    line: str
    path_bytes: bytes = b""
    line_bytes: bytes = b""


class GrepMatches(list[GrepMatch]):
    """What `grep()` found, by path and then by line.

    Attributes:
        truncated: There may be more: `max_count` lines were found, or the search ended at its budget (1 GiB read,
            16 MiB found, 200,000 entries, 5 s).
        binary_files: How many files were passed over because they hold a NUL.
    """

    def __init__(self) -> None:
        super().__init__()
        self.truncated = False
        self.binary_files = 0


@dataclass(frozen=True)
class Edit:
    """What `edit_file()` did.

    Attributes:
        path: As it was given.
        replacements: How many places were replaced.
        diff: A unified diff, as in `FileChange`; None for a file that is not text.
        diff_reason: `binary`, or beside a diff `truncated`; else None.
    """

    path: str
    replacements: int
    diff: str | None = None
    diff_reason: str | None = None


@dataclass(frozen=True)
class Usage:
    """What the step used. None is unknown, never 0.

    Attributes:
        pids_denied: New processes and threads that the limit on tasks refused.
        denied_syscalls: Calls of ptrace, process_vm_readv and process_vm_writev, and new user namespaces, that were
            refused with EPERM. They are no fault: ordinary programs try them and go on.
    """

    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    startup_ms: float | None = None
    queue_ms: float | None = None
    pids_peak: int | None = None
    oom_kills: int | None = None
    pids_denied: int | None = None
    denied_syscalls: int | None = None


@dataclass(frozen=True)
class Limit:
    """A limit and what holds it.

    Attributes:
        resource: `memory` (bytes), `pids` (tasks), `cpu` (thousandths of a core), `workspace` (bytes) or
            `workspace_files`.
        max: None is uncapped.
        enforced_by: `cgroup2`, `cgroup1`, `rlimit`, `watchdog`, `throttle`, `project_quota`, `sized_filesystem` or
            `none`.
    """

    resource: str
    max: int | None
    enforced_by: str


@dataclass(frozen=True)
class SessionInfo:
    """A session that lives, as lists tell of it.

    Attributes:
        id: Nobody can guess it.
        name: What it is found by, or None.
        labels: What its maker wrote on it.
        resident: Its steps share one sandbox.
        workspace: Host path of a given workspace, or None for a private one.
        steps_running: How many run now.
        steps_done: How many have ended.
        created_s: When it was made, in seconds since 1970.
        ttl_s: Seconds that it may be idle before it is closed, or None for as long as its engine lives.
        idle_s: Seconds that it has been idle by now, or None while something runs.
    """

    id: str
    name: str | None
    labels: dict[str, str]
    resident: bool
    workspace: str | None
    steps_running: int
    steps_done: int
    created_s: float
    ttl_s: float | None
    idle_s: float | None


@dataclass(frozen=True)
class RichResult:
    """What Python code shows beside its output, by the word of the code itself. In a notebook it shows as there.

    Attributes:
        data: Bytes by media type: `text/plain`, and of what the object has `text/html`, `text/markdown`, `text/latex`,
            `image/png`, `image/jpeg`, `image/svg+xml`, `application/json` and kinds of its own.
        main: This is the value of the last expression.
    """

    data: Mapping[str, bytes]
    main: bool = False

    @property
    def text(self) -> str:
        """The `text/plain` of it, or an empty string."""
        return self._decoded("text/plain") or ""

    @property
    def html(self) -> str | None:
        """The `text/html` of it: markup of the code's own, which is not to be trusted."""
        return self._decoded("text/html")

    @property
    def markdown(self) -> str | None:
        return self._decoded("text/markdown")

    @property
    def latex(self) -> str | None:
        return self._decoded("text/latex")

    @property
    def svg(self) -> str | None:
        """The `image/svg+xml` of it. It may hold scripts: show it as an image only."""
        return self._decoded("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        return self.data.get("image/png")

    @property
    def jpeg(self) -> bytes | None:
        return self.data.get("image/jpeg")

    @property
    def json(self) -> object:
        """The `application/json` of it as Python's objects. None: there is none, or the code wrote what is not JSON."""
        try:
            return json.loads(self.data["application/json"])
        except (KeyError, ValueError, RecursionError):
            return None

    def _decoded(self, kind: str) -> str | None:
        data = self.data.get(kind)
        return None if data is None else data.decode("utf-8", "replace")

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, object]:
        """For notebooks: what is not text is in base64, as they expect it."""
        bundle: dict[str, object] = {}
        for kind, data in self.data.items():
            if (include and kind not in include) or (exclude and kind in exclude):
                continue
            if kind == "application/json" or kind.endswith("+json"):
                with contextlib.suppress(ValueError, RecursionError):
                    bundle[kind] = json.loads(data)
            elif kind.startswith("text/") or kind == "image/svg+xml":
                bundle[kind] = data.decode("utf-8", "replace")
            else:
                bundle[kind] = base64.b64encode(data).decode()
        return bundle


@dataclass(frozen=True, repr=False)
class ExecutionResult:
    """What came back from one step. `bool(result)` is `result.success`.

    Attributes:
        stdout_bytes: The code's own standard output. Past `max_output_bytes` its head and its tail.
        code_stderr_bytes: The code's own standard error, likewise. The engine never writes there.
        exit_code: As Linux gives it; 128 + signal for a death by signal.
        signal: The signal that ended the code, or None.
        duration_ms: From the start of the sandbox to its end.
        fault: What the sandbox did to the code, or None.
        files: What the step changed in the workspace.
        runtime_notes: Sentences by the engine.
        truncated_stdout: More was written than was kept; `stdout_total_bytes` says how much.
        truncated_stderr: The same of standard error.
        results: What Python code shows beside its output: the value of the last expression, what it gave to `display`,
            and figures. By the word of the interpreter, which is the code's own.
        results_truncated: More was shown than was kept.
        usage: What the step used.
        limits: `memory`, `pids`, `cpu`, `workspace` and `workspace_files`: the value, and what holds it.
        isolation: The layers that were in force.
        image_digest: Of the image that the step ran in; empty for the host's.
        start: How the code's process came to be: `cold` (it executed its program), `forked` (from a booted interpreter,
            when the step was asked for), `forked_ahead` (before, and it waited) or `kernel` (a cell). None: none ran.
        step_id: The engine's name of the step.
        files_shared: Steps overlapped: a change may be another's.
        files_truncated: The scan of the workspace ended at its budget.
        files_tracked: False: `track_files` was off, and `files` is empty because nobody looked.
        stdout_total_bytes: What the code wrote.
        stderr_total_bytes: What the code wrote.
        stdout_head_bytes: Where in `stdout_bytes` the cut is, when it was truncated.
        stderr_head_bytes: Where in `code_stderr_bytes` the cut is, when it was truncated.
    """

    stdout_bytes: bytes = b""
    code_stderr_bytes: bytes = b""
    exit_code: int = 0
    signal: int | None = None
    duration_ms: float = 0
    fault: SandboxFault | None = None
    files: list[FileChange] = field(default_factory=list)
    runtime_notes: list[str] = field(default_factory=list)
    truncated_stdout: bool = False
    truncated_stderr: bool = False
    results: list[RichResult] = field(default_factory=list)
    results_truncated: bool = False
    usage: Usage = field(default_factory=Usage)
    limits: dict[str, Limit] = field(default_factory=dict)
    isolation: list[str] = field(default_factory=list)
    image_digest: str = ""
    step_id: str = ""
    start: str | None = None
    files_shared: bool = False
    files_truncated: bool = False
    files_tracked: bool = True
    stdout_total_bytes: int = 0
    stderr_total_bytes: int = 0
    stdout_head_bytes: int = 0
    stderr_head_bytes: int = 0

    @property
    def success(self) -> bool:
        """Exit code 0 and no fault."""
        return self.exit_code == 0 and self.fault is None

    def __bool__(self) -> bool:
        return self.success

    @property
    def stdout(self) -> str:
        """Standard output as text; U+FFFD stands for what is not UTF-8."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def code_stderr(self) -> str:
        """The code's own standard error as text; U+FFFD stands for what is not UTF-8."""
        return self.code_stderr_bytes.decode("utf-8", "replace")

    @property
    def stderr_bytes(self) -> bytes:
        """The same bytes as `code_stderr_bytes`."""
        return self.code_stderr_bytes

    @property
    def stderr(self) -> str:
        """The code's own standard error, then the engine's notes, a line each: a view for people."""
        if not self.runtime_notes:
            return self.code_stderr
        own = self.code_stderr
        parted = "\n" if own and not own.endswith("\n") else ""
        return own + parted + "".join(f"{note}\n" for note in self.runtime_notes)

    @property
    def truncated(self) -> bool:
        """Either stream was truncated."""
        return self.truncated_stdout or self.truncated_stderr

    @property
    def marked_stdout(self) -> str:
        """Standard output as text, with a line that says how many bytes were cut, where they were cut."""
        return _marked(self.stdout_bytes, self.stdout_head_bytes, self.stdout_total_bytes)

    @property
    def marked_stderr(self) -> str:
        """The code's own standard error as text, with a line that says how many bytes were cut, where they were cut."""
        return _marked(self.code_stderr_bytes, self.stderr_head_bytes, self.stderr_total_bytes)

    def check(self) -> ExecutionResult:
        """Gives the result back when the step succeeded.

        Raises:
            SandboxError: It did not; the error's `result` is this one.
        """
        if self.success:
            return self
        raise SandboxError(self._ending(), result=self)

    def _ending(self) -> str:
        if self.fault is not None:
            return str(self.fault)
        lines = self.code_stderr.strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        return f"exit code {self.exit_code}{last}"

    def __repr__(self) -> str:
        parts = [f"exit_code={self.exit_code}"]
        if self.fault is not None:
            parts.append(f"fault={self.fault.type!r}")
        for name, text in (("stdout", self.stdout_bytes), ("code_stderr", self.code_stderr_bytes)):
            if text:
                parts.append(f"{name}={_shortened(text)}")
        if self.files:
            parts.append(f"files={len(self.files)}")
        if self.truncated:
            parts.append("truncated=True")
        return f"ExecutionResult({', '.join(parts)})"[:_REPR_LIMIT]


def _marked(kept: bytes, head: int, total: int) -> str:
    cut = total - len(kept)
    if cut <= 0:
        return kept.decode("utf-8", "replace")
    before = kept[:head].decode("utf-8", "replace")
    after = kept[head:].decode("utf-8", "replace")
    return f"{before}\n[{cut} bytes cut]\n{after}"


def _shortened(text: bytes) -> str:
    shown = text[:80].decode("utf-8", "replace")
    more = f" +{len(text) - 80} bytes" if len(text) > 80 else ""
    return repr(shown)[:150] + more
