"""What a sandbox can do, as generators of calls: the logic once, for the synchronous and the asynchronous face."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from stepbox import _calls as calls
from stepbox import _convert, _options, _shapes
from stepbox._calls import Operation, Pull, Push, Unary
from stepbox._errors import EngineError, MountRefused, SandboxError, SessionLost, StepboxError, Violation, refused
from stepbox._pb import sandbox_pb2 as pb
from stepbox._results import ExecutionResult, FileStat, Limit, SessionInfo

QUEUE_S = 30.0  # the engine's `queue_timeout_s`
GRACE_S = 5.0
SHORT_S = 30.0  # a call that does little
SETUP_S = 1800.0  # a session whose image is fetched or whose setup runs
CHUNK = 1024 * 1024
# What one request may carry to the engine, with room for the session's id.
REQUEST_MOST = 8 * 1024 * 1024 - 4096

OnOutput: TypeAlias = "Callable[[bytes], object] | None"


@dataclass(frozen=True)
class CheckedSpec:
    """What a spec would give."""

    limits: Mapping[str, Limit]
    isolation: list[str]


@dataclass(frozen=True)
class SessionFacts(CheckedSpec):
    """What an operation has to know of a session."""

    id: str
    timeout_s: float
    # It lived before, and was found.
    attached: bool = False
    # It lives on when the object that holds it is closed.
    outlives: bool = False
    workspace: str | None = None


# ---- sessions ----


def check_spec(options: Mapping[str, Any], *, same_host: bool) -> Operation[CheckedSpec]:
    """Has the engine judge the options; its findings and those of shape are raised together."""
    spec, violations = _options.build_spec(options, same_host=same_host)
    violations += _file_violations(options)
    try:
        reply = yield Unary(calls.CHECK_SPEC, pb.CheckSpecRequest(spec=spec), SHORT_S)
    except SandboxError as error:
        if not violations:
            raise
        found = (*violations, *(error.violations or (Violation("", str(error)),)))
        kind = MountRefused if isinstance(error, MountRefused) else SandboxError
        raise kind("; ".join(map(str, found)), violations=found) from None
    if violations:
        raise refused(violations)
    return CheckedSpec(limits=_convert.limits(reply.limits), isolation=list(reply.isolation))


def create_session(options: Mapping[str, Any], *, same_host: bool) -> Operation[SessionFacts]:
    """Makes a session and writes its first files; a session whose files cannot be written is closed again."""
    spec, violations = _options.build_spec(options, same_host=same_host)
    violations += _file_violations(options)
    if violations:
        yield from check_spec(options, same_host=same_host)
        raise refused(violations)
    slow = options.get("setup") or options.get("packages") or options.get("image") not in (None, "host")
    deadline = SETUP_S if slow else QUEUE_S + SHORT_S
    named = bool(spec.name)
    reply = yield Unary(calls.CREATE_SESSION, pb.CreateSessionRequest(spec=spec, attach=named), deadline)
    session = _facts(
        reply.session, attached=reply.attached, outlives=named, timeout_s=_options.session_timeout_s(options)
    )
    if session.attached:
        return session
    try:
        files, _ = _shapes.files(options.get("files"))
        for path, data in files:
            yield from write_file(session, path, data)
    except StepboxError:
        yield from close_session(session)
        raise
    return session


def find_session(id_or_name: Any) -> Operation[SessionFacts]:
    """What an operation has to know of a session that somebody else made."""
    try:
        name = _shapes.nonempty(id_or_name)
    except _shapes.ShapeError as wrong:
        raise refused([Violation("id_or_name", str(wrong))]) from None
    reply = yield Unary(calls.GET_SESSION, pb.GetSessionRequest(session_id=name), SHORT_S)
    return _facts(reply.session, attached=True, outlives=True)


def no_such_session(id_or_name: str) -> SessionLost:
    """The error where no engine has it, or where there is no engine."""
    return SessionLost(f"no session {id_or_name!r} lives; stepbox.sessions() lists those that do")


def list_sessions() -> Operation[list[SessionInfo]]:
    """What can be known of each session of an engine."""
    reply = yield Unary(calls.LIST_SESSIONS, pb.ListSessionsRequest(), SHORT_S)
    return [_convert.session_info(session) for session in reply.sessions]


def _facts(session: pb.Session, *, attached: bool, outlives: bool, timeout_s: float = 30.0) -> SessionFacts:
    return SessionFacts(
        id=session.session_id,
        timeout_s=session.timeout_ms / 1000 or timeout_s,
        limits=_convert.limits(session.limits),
        isolation=list(session.isolation),
        attached=attached,
        outlives=outlives,
        workspace=os.fsdecode(session.workspace) or None,
    )


def _file_violations(options: Mapping[str, Any]) -> list[Violation]:
    _, mistakes = _shapes.files(options.get("files"))
    return [Violation("files", mistake) for mistake in mistakes]


def close_session(session: SessionFacts) -> Operation[None]:
    """Removes a session; one that is gone already is no trouble."""
    try:
        yield Unary(calls.CLOSE_SESSION, pb.CloseSessionRequest(session_id=session.id), SHORT_S)
    except SessionLost:
        pass


# ---- steps ----


def step_options(
    timeout_s: Any, memory_mb: Any, env: Any, cwd: Any, user: Any, stdin: Any, on_stdout: Any, on_stderr: Any
) -> tuple[pb.StepOptions, list[Violation]]:
    """What one call may change on the wire, and the mistakes in the shapes of all its options."""
    options = pb.StepOptions()
    violations: list[Violation] = []

    def take(name: str, value: Any, put: Callable[[Any], object]) -> None:
        if value is None:
            return
        try:
            put(value)
        except _shapes.ShapeError as wrong:
            violations.append(Violation(name, str(wrong)))

    take("timeout_s", timeout_s, lambda value: setattr(options, "timeout_s", _shapes.number(value)))
    take("memory_mb", memory_mb, lambda value: options.memory_mb.CopyFrom(_shapes.cap(value)))
    take("env", env, lambda value: options.env.update(_shapes.text_map(value)))
    take("cwd", cwd, lambda value: setattr(options, "cwd", _shapes.path_bytes(value)))
    take("user", user, lambda value: setattr(options, "user", _shapes.user(value)))
    take("stdin", stdin, lambda value: setattr(options, "stdin", bytes(_shapes.data_bytes(value))))
    take("on_stdout", on_stdout, _shapes.listener)
    take("on_stderr", on_stderr, _shapes.listener)
    return options, violations


def run_code_request(
    code: Any, language: Any, args: Any, options: tuple[pb.StepOptions, list[Violation]]
) -> pb.RunCodeRequest:
    """The request of `run_code`, or one error with every mistake in it."""
    step, violations = options
    request = pb.RunCodeRequest(options=step)
    try:
        request.code = checked_source(code)
    except _shapes.ShapeError as wrong:
        violations.append(Violation("code", str(wrong)))
    try:
        request.language = _shapes.text(language)
    except _shapes.ShapeError as wrong:
        violations.append(Violation("language", str(wrong)))
    try:
        request.args.extend(_shapes.arguments(args))
    except _shapes.ShapeError as wrong:
        violations.append(Violation("args", str(wrong)))
    _judge_size(request, violations)
    if violations:
        raise refused(violations)
    return request


def _judge_size(request: pb.RunCodeRequest | pb.RunRequest, violations: list[Violation]) -> None:
    """What does not fit into one message goes through the workspace, where files are of any size."""
    size = request.ByteSize()
    if size <= REQUEST_MOST:
        return
    field = "stdin" if len(request.options.stdin) > REQUEST_MOST // 2 else "code"
    if isinstance(request, pb.RunRequest) and field == "code":
        field = "argv"
    violations.append(
        Violation(
            field, f"{size} bytes do not fit into a call of at most {REQUEST_MOST}; use write_file and read it there"
        )
    )


def checked_source(code: Any) -> str:
    """Source code as it travels."""
    source = _shapes.text(code)
    if "\0" in source:
        raise _shapes.ShapeError(f"holds a NUL character at {source.index(chr(0))}")
    return source


def run_request(argv: Any, options: tuple[pb.StepOptions, list[Violation]]) -> pb.RunRequest:
    """The request of `run`, or one error with every mistake in it."""
    step, violations = options
    request = pb.RunRequest(options=step)
    if isinstance(argv, str):
        shown = argv if len(argv) <= 60 else argv[:57] + "..."
        violations.append(
            Violation(
                "argv",
                f"must be a list of arguments, got str {shown!r}; "
                f'for a shell: run_code({shown!r}, language="bash") or run(["bash", "-c", {shown!r}])',
            )
        )
    else:
        try:
            request.argv.extend(_shapes.arguments(argv))
        except _shapes.ShapeError as wrong:
            violations.append(Violation("argv", str(wrong)))
        else:
            if not request.argv or not request.argv[0]:
                violations.append(Violation("argv", 'names no program; it is spelt ["program", "argument"]'))
    _judge_size(request, violations)
    if violations:
        raise refused(violations)
    return request


def step(
    session: SessionFacts, request: pb.RunCodeRequest | pb.RunRequest, on_stdout: OnOutput, on_stderr: OnOutput
) -> Operation[ExecutionResult]:
    """Runs a step, with its output as it comes when somebody listens, and completes what the reply left out."""
    request.session_id = session.id
    if on_stdout is not None or on_stderr is not None:
        return (yield from _streamed_step(session, request, on_stdout, on_stderr))
    timeout_s = request.options.timeout_s if request.options.HasField("timeout_s") else session.timeout_s
    # What is no sensible time is the engine's to refuse: the call itself must have one all the same.
    deadline = QUEUE_S + GRACE_S + (timeout_s if 0 < timeout_s < 1e9 else 0)
    method = calls.RUN_CODE if isinstance(request, pb.RunCodeRequest) else calls.RUN
    reply = yield Unary(method, request, deadline)
    return (yield from complete(session, reply.result))


def _streamed_step(
    session: SessionFacts,
    request: pb.RunCodeRequest | pb.RunRequest,
    on_stdout: OnOutput,
    on_stderr: OnOutput,
) -> Operation[ExecutionResult]:
    listeners = {pb.STREAM_STDOUT: on_stdout, pb.STREAM_STDERR: on_stderr}
    results: list[pb.StepResult] = []

    def take(message: pb.RunStreamResponse) -> object:
        event = message.WhichOneof("event")
        if event == "output":
            listener = listeners.get(message.output.stream)
            if listener is not None and message.output.data:
                return listener(message.output.data)
        elif event == "result":
            results.append(message.result)
        return None

    if isinstance(request, pb.RunCodeRequest):
        stream = pb.RunStreamRequest(run_code=request)
    else:
        stream = pb.RunStreamRequest(run=request)
    # No deadline: it would count the listeners' own time. The engine keeps that of the step and of the queue, and the
    # stream of an engine that dies breaks.
    yield Pull(calls.RUN_STREAM, stream, take, None)
    if not results:
        raise EngineError("the engine ended the stream of a step without a result")
    return (yield from complete(session, results[-1]))


def complete(session: SessionFacts, result: pb.StepResult) -> Operation[ExecutionResult]:
    """Fetches what a reply of bounded size could not carry, then lets the engine drop it."""
    stdout, stderr = result.stdout.data, result.stderr.data
    files = list(result.files)
    partial = False
    if result.stdout.kept_bytes > len(stdout):
        partial = True
        stdout = yield from _rest_of_output(session, result.step_id, pb.STREAM_STDOUT, result.stdout)
    if result.stderr.kept_bytes > len(stderr):
        partial = True
        stderr = yield from _rest_of_output(session, result.step_id, pb.STREAM_STDERR, result.stderr)
    if result.files_count > len(files):
        partial = True
        request = pb.ListChangesRequest(session_id=session.id, step_id=result.step_id, offset=len(files))
        yield Pull(calls.LIST_CHANGES, request, lambda message: files.extend(message.files), None)
        if len(files) != result.files_count:
            raise EngineError(f"the engine gave {len(files)} of {result.files_count} changed files")
    if partial:
        try:
            yield Unary(
                calls.RELEASE_STEP, pb.ReleaseStepRequest(session_id=session.id, step_id=result.step_id), SHORT_S
            )
        except StepboxError:
            pass  # the result is whole, and the engine drops it by itself in a minute
    return _convert.result(result, stdout, stderr, files)


def _rest_of_output(session: SessionFacts, step_id: str, stream: pb.Stream, first: pb.OutputStream) -> Operation[bytes]:
    pieces = [first.data]
    request = pb.FetchOutputRequest(session_id=session.id, step_id=step_id, stream=stream, offset=len(first.data))
    yield Pull(calls.FETCH_OUTPUT, request, lambda message: pieces.append(message.data), None)
    whole = b"".join(pieces)
    if len(whole) != first.kept_bytes:
        raise EngineError(f"the engine gave {len(whole)} of {first.kept_bytes} bytes of output")
    return whole


# ---- files ----


def _shaped(*arguments: tuple[str, Any, Callable[[Any], Any]]) -> dict[str, Any]:
    """Arguments as they travel, by name, or one error with the mistakes in all of them."""
    shaped: dict[str, Any] = {}
    violations: list[Violation] = []
    for name, value, shape in arguments:
        try:
            shaped[name] = shape(value)
        except _shapes.ShapeError as wrong:
            violations.append(Violation(name, str(wrong)))
    if violations:
        raise refused(violations)
    return shaped


def _optional(shape: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else shape(value)


def _path(path: Any) -> bytes:
    return bytes(_shaped(("path", path, _shapes.path_bytes))["path"])


def write_file(session: SessionFacts, path: Any, data: Any, mode: Any = None) -> Operation[int]:
    """Writes a file from memory."""
    shaped = _shaped(
        ("path", path, _shapes.path_bytes),
        ("data", data, _shapes.data_bytes),
        ("mode", mode, _optional(_shapes.permission_bits)),
    )
    content = memoryview(shaped["data"])
    chunks = (bytes(content[start : start + CHUNK]) for start in range(0, len(content), CHUNK))
    return (yield from _write(session, shaped["path"], chunks, shaped["mode"]))


def upload(session: SessionFacts, local: Any, path: Any) -> Operation[int]:
    """Writes a file from one of the host."""
    target = _path(path)
    with Path(os.fsdecode(local)).open("rb") as source:
        mode = os.fstat(source.fileno()).st_mode & 0o777
        return (yield from _write(session, target, iter(lambda: source.read(CHUNK), b""), mode))


def _write(session: SessionFacts, path: bytes, chunks: Iterator[bytes], mode: int | None) -> Operation[int]:
    def requests() -> Iterator[pb.WriteFileRequest]:
        yield pb.WriteFileRequest(session_id=session.id, path=path, data=next(chunks, b""), mode=mode)
        for chunk in chunks:
            yield pb.WriteFileRequest(data=chunk)

    reply = yield Push(calls.WRITE_FILE, requests(), None)
    return int(reply.size_bytes)


def read_file(
    session: SessionFacts, path: Any, offset: Any = 0, length: Any = None, max_bytes: Any = None
) -> Operation[bytes]:
    """Reads a file into memory."""
    pieces: list[bytes] = []
    shaped = _shaped(
        ("path", path, _shapes.path_bytes),
        ("offset", offset, _shapes.count),
        ("length", length, _optional(_shapes.count)),
        ("max_bytes", max_bytes, _optional(_shapes.count)),
    )
    request = pb.ReadFileRequest(session_id=session.id, **shaped)
    yield Pull(calls.READ_FILE, request, lambda message: pieces.append(message.data), None)
    return b"".join(pieces)


def download(session: SessionFacts, path: Any, local: Any) -> Operation[int]:
    """Reads a file into one of the host, which appears whole or not at all."""
    target = Path(os.fsdecode(local))
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    # No cap: the file does not pass through memory.
    request = pb.ReadFileRequest(session_id=session.id, path=_path(path), max_bytes=2**63)
    try:
        with part.open("xb") as sink:
            yield Pull(calls.READ_FILE, request, lambda message: _append(sink, message.data), None)
            size = sink.tell()
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return size


def _append(sink: Any, data: bytes) -> None:
    sink.write(data)


def list_files(session: SessionFacts, subdir: Any) -> Operation[list[str]]:
    """The regular files below a directory."""
    found: list[str] = []
    cut: list[bool] = []

    def take(message: pb.ListFilesResponse) -> None:
        found.extend(_shapes.decoded_path(item.path) for item in message.files)
        if message.truncated:
            cut.append(True)

    request = pb.ListFilesRequest(session_id=session.id, path=_path(subdir), recursive=True, files_only=True)
    yield Pull(calls.LIST_FILES, request, take, None)
    if cut:
        raise SandboxError(
            f"too many entries: the listing ended at its budget after {len(found)} files", reason="too_large"
        )
    return found


def stat(session: SessionFacts, path: Any) -> Operation[FileStat]:
    """What one entry is."""
    reply = yield Unary(calls.STAT_FILE, pb.StatFileRequest(session_id=session.id, path=_path(path)), SHORT_S)
    return _convert.file_stat(reply.file)


def exists(session: SessionFacts, path: Any) -> Operation[bool]:
    """Whether there is an entry."""
    try:
        yield from stat(session, path)
    except SandboxError as error:
        if error.reason in ("not_found", "not_a_directory"):
            return False
        raise
    return True


def make_dir(session: SessionFacts, path: Any) -> Operation[None]:
    """Makes a directory and its parents."""
    yield Unary(calls.MAKE_DIR, pb.MakeDirRequest(session_id=session.id, path=_path(path)), SHORT_S)


def remove(session: SessionFacts, path: Any, recursive: Any) -> Operation[None]:
    """Removes an entry."""
    shaped = _shaped(
        ("path", path, _shapes.path_bytes),
        ("recursive", recursive, _shapes.boolean),
    )
    request = pb.RemoveRequest(session_id=session.id, **shaped)
    # A large tree takes its time.
    yield Unary(calls.REMOVE, request, None if recursive else SHORT_S)


def move(session: SessionFacts, source: Any, target: Any, replace: Any) -> Operation[None]:
    """Moves an entry."""
    shaped = _shaped(
        ("source", source, _shapes.path_bytes),
        ("target", target, _shapes.path_bytes),
        ("replace", replace, _shapes.boolean),
    )
    request = pb.MoveRequest(session_id=session.id, **shaped)
    yield Unary(calls.MOVE, request, SHORT_S)
