"""An engine that makes no sandboxes: it answers as the real one does, and writes down what it was asked.

Code that it "runs" is a line of words: see `_Service._act`. Its conduct at start is set by `STEPBOX_FAKE_*`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from stepbox._pb import sandbox_pb2 as pb
from stepbox._pb import sandbox_pb2_grpc as pb_grpc
from stepbox._pb import status_pb2
from stepbox._version import __version__

TOKEN = "fake-token"
INLINE = 1 << 20
_LOG = os.environ.get("STEPBOX_FAKE_LOG")
_log_lock = threading.Lock()


def log(event, **facts):
    if _LOG:
        with _log_lock, Path(_LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), **facts}) + "\n")


def abort(context, code, text, *details):
    status = status_pb2.Status(code=code.value[0], message=text)
    for name, detail in details:
        status.details.add(type_url=f"type.googleapis.com/google.rpc.{name}", value=detail.SerializeToString())
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, text)


def abort_file(context, code, reason, text):
    abort(context, code, text, ("ErrorInfo", status_pb2.ErrorInfo(reason=reason)))


def _seconds_left(context):
    left = context.time_remaining()
    # A call without a deadline has one that is beyond any life.
    return round(left) if left is not None and left < 10**9 else None


class _Service(pb_grpc.SandboxServicer):
    def __init__(self):
        self.sessions = {}
        self.kept = {}

    def _session(self, context, session_id):
        if session_id not in self.sessions:
            abort(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"no session {session_id}",
                ("ErrorInfo", status_pb2.ErrorInfo(reason="NO_SESSION")),
            )
        return self.sessions[session_id]

    # ---- sessions ----

    def _check(self, spec, context):
        bad, mount_refused = status_pb2.BadRequest(), False
        if spec.memory_mb.WhichOneof("cap") == "max" and spec.memory_mb.max < 16:
            bad.field_violations.add(field="memory_mb", description=f"must be at least 16, got {spec.memory_mb.max}")
        if spec.HasField("timeout_s") and not spec.timeout_s > 0:
            bad.field_violations.add(field="timeout_s", description=f"must be above 0, got {spec.timeout_s}")
        for index, mount in enumerate(spec.mounts):
            if not mount.source.startswith(b"/"):
                bad.field_violations.add(field=f"mounts[{index}].source", description="must be absolute")
                mount_refused = True
        if spec.workspace == b"/etc":
            bad.field_violations.add(field="workspace", description="/etc is refused")
            mount_refused = True
        if bad.field_violations:
            info = status_pb2.ErrorInfo(reason="MOUNT_REFUSED" if mount_refused else "INVALID_SPEC")
            text = "; ".join(f"{item.field}: {item.description}" for item in bad.field_violations)
            abort(context, grpc.StatusCode.INVALID_ARGUMENT, text, ("BadRequest", bad), ("ErrorInfo", info))
        return [pb.Limit(resource=pb.RESOURCE_MEMORY, max=spec.memory_mb.max << 20, enforced_by=pb.ENFORCED_BY_CGROUP1)]

    def CheckSpec(self, request, context):
        log("CheckSpec")
        return pb.CheckSpecResponse(limits=self._check(request.spec, context), isolation=["seccomp"])

    def CreateSession(self, request, context):
        limits = self._check(request.spec, context)
        session_id = uuid.uuid4().hex
        log("CreateSession", id=session_id, interpreter=request.spec.interpreter.executable.decode())
        self.sessions[session_id] = {}
        session = pb.Session(session_id=session_id, limits=limits, isolation=["seccomp"])
        return pb.CreateSessionResponse(session=session)

    def CloseSession(self, request, context):
        log("CloseSession", id=request.session_id)
        self._session(context, request.session_id)
        del self.sessions[request.session_id]
        return pb.CloseSessionResponse()

    def GetInfo(self, request, context):
        return pb.GetInfoResponse(version=os.environ.get("STEPBOX_FAKE_VERSION", __version__), pid=os.getpid())

    # ---- steps ----

    def _act(self, words, request, context):
        """The result of a step; `words` say what it is to be."""
        result = pb.StepResult(step_id=uuid.uuid4().hex, files_tracked=True, duration_us=1500)
        stdout, stderr = b"", b""
        verb, *rest = words
        if verb == "print":
            stdout = " ".join(rest).encode() + b"\n"
        elif verb == "raw":
            stdout = bytes.fromhex(rest[0])
        elif verb == "big":
            stdout, stderr = b"a" * int(rest[0]), b"b" * int(rest[1])
        elif verb == "many":
            self.kept[result.step_id, "files"] = [
                pb.FileChange(path=b"f%d" % index, change=pb.CHANGE_KIND_CREATED, kind=pb.FILE_KIND_FILE)
                for index in range(int(rest[0]))
            ]
        elif verb == "fail":
            result.exit_code = int(rest[0])
            stderr = b"Traceback\nValueError: no\n"
        elif verb == "fault":
            result.exit_code, result.signal = 137, 9
            result.fault.type = pb.FaultType.Value(f"FAULT_TYPE_{rest[0].upper()}")
            result.fault.message = "the facts"
            result.runtime_notes.append("a note")
            stderr = b"own"
        elif verb == "blocked":
            result.exit_code = 159
            result.fault.CopyFrom(
                pb.Fault(type=pb.FAULT_TYPE_ESCAPE_BLOCKED, message="mount", syscall="mount", pid=7, program="x")
            )
        elif verb == "echo":
            options = request.options
            stdout = json.dumps(
                {
                    "env": dict(options.env),
                    "stdin": options.stdin.decode() if options.HasField("stdin") else None,
                    "cwd": options.cwd.decode() if options.HasField("cwd") else None,
                    "memory_mb": options.memory_mb.max,
                    "timeout_s": options.timeout_s if options.HasField("timeout_s") else None,
                    "args": [item.decode() for item in getattr(request, "args", ())],
                    "deadline": _seconds_left(context),
                    "token": dict(context.invocation_metadata()).get("authorization"),
                    "environment": dict(os.environ),
                }
            ).encode()
        elif verb == "hang":
            ended = threading.Event()
            if not context.add_callback(ended.set):
                ended.set()  # it was cancelled before it came here
            log("hanging")
            ended.wait()
            log("cancelled")
        elif verb == "die":
            print("last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        elif verb == "full":
            retry = status_pb2.RetryInfo()
            retry.retry_delay.seconds, retry.retry_delay.nanos = 1, 500_000_000
            abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "all slots are in use", ("RetryInfo", retry))
        for name, stream, data in (("stdout", result.stdout, stdout), ("stderr", result.stderr, stderr)):
            stream.data, stream.kept_bytes, stream.total_bytes = data[:INLINE], len(data), len(data)
            if len(data) > INLINE:
                self.kept[result.step_id, name] = data
        files = self.kept.get((result.step_id, "files"), [])
        result.files.extend(files[:5000])
        result.files_count = len(files)
        return result

    def RunCode(self, request, context):
        self._session(context, request.session_id)
        if request.language not in ("python", "bash"):
            bad = status_pb2.BadRequest()
            bad.field_violations.add(field="language", description=f"unknown language {request.language}")
            abort(context, grpc.StatusCode.INVALID_ARGUMENT, "", ("BadRequest", bad))
        return pb.RunCodeResponse(result=self._act(request.code.split(), request, context))

    def Run(self, request, context):
        self._session(context, request.session_id)
        return pb.RunResponse(result=self._act([item.decode() for item in request.argv], request, context))

    def RunStream(self, request, context):
        step = request.run_code if request.WhichOneof("step") == "run_code" else request.run
        words = step.code.split() if hasattr(step, "code") else [item.decode() for item in step.argv]
        yield pb.RunStreamResponse(started=pb.StepStarted(step_id="s"))
        for sequence in range(3):
            stream = pb.STREAM_STDERR if sequence == 1 else pb.STREAM_STDOUT
            yield pb.RunStreamResponse(
                output=pb.OutputChunk(stream=stream, sequence=sequence, data=b"piece%d" % sequence)
            )
        yield pb.RunStreamResponse(result=self._act(words, step, context))

    def FetchOutput(self, request, context):
        name = "stdout" if request.stream == pb.STREAM_STDOUT else "stderr"
        data = self.kept[request.step_id, name]
        for start in range(request.offset, len(data), INLINE):
            yield pb.FetchOutputResponse(data=data[start : start + INLINE])

    def ListChanges(self, request, context):
        files = self.kept[request.step_id, "files"]
        for start in range(request.offset, len(files), 5000):
            yield pb.ListChangesResponse(files=files[start : start + 5000])

    def ReleaseStep(self, request, context):
        log("ReleaseStep")
        for name in ("stdout", "stderr", "files"):
            self.kept.pop((request.step_id, name), None)
        return pb.ReleaseStepResponse()

    # ---- files ----

    def _file(self, context, files, path):
        if path.startswith(b"..") or b"\0" in path:
            abort_file(context, grpc.StatusCode.INVALID_ARGUMENT, "invalid_path", "leaves the workspace")
        if any(name.startswith(path.rstrip(b"/") + b"/") for name in files):
            abort_file(context, grpc.StatusCode.FAILED_PRECONDITION, "is_directory", "is a directory")
        if path == b"secret":
            abort_file(context, grpc.StatusCode.PERMISSION_DENIED, "permission_denied", "not yours")
        if path not in files:
            abort_file(context, grpc.StatusCode.NOT_FOUND, "not_found", f"no file {path!r}")
        return files[path]

    def WriteFile(self, request_iterator, context):
        first = next(request_iterator)
        files = self._session(context, first.session_id)
        if first.path.startswith(b"../"):
            abort_file(context, grpc.StatusCode.INVALID_ARGUMENT, "invalid_path", "leaves the workspace")
        if first.path == b"secret":
            abort_file(context, grpc.StatusCode.PERMISSION_DENIED, "permission_denied", "not yours")
        data, largest = bytearray(first.data), len(first.data)
        for request in request_iterator:
            data += request.data
            largest = max(largest, len(request.data))
        if first.path == b"cut":
            # This server cannot tell at once whether the client was done or was cut off; the real one can.
            ended = threading.Event()
            if not context.add_callback(ended.set) or ended.wait(5):
                return pb.WriteFileResponse()
        log("WriteFile", largest=largest)
        files[first.path] = bytes(data)
        return pb.WriteFileResponse(size_bytes=len(data))

    def ReadFile(self, request, context):
        data = self._file(context, self._session(context, request.session_id), request.path)
        end = request.offset + request.length if request.HasField("length") else len(data)
        if len(data) > (request.max_bytes if request.HasField("max_bytes") else 1 << 30):
            abort_file(context, grpc.StatusCode.FAILED_PRECONDITION, "too_large", "is too large")
        data = data[request.offset : end]
        for start in range(0, max(len(data), 1), INLINE):
            yield pb.ReadFileResponse(data=data[start : start + INLINE], size_bytes=len(data))

    def ListFiles(self, request, context):
        for name in sorted(self._session(context, request.session_id)):
            if name.startswith(request.path):
                yield pb.ListFilesResponse(files=[pb.FileStat(path=name, kind=pb.FILE_KIND_FILE)])

    def GlobFiles(self, request, context):
        log("GlobFiles", pattern=request.pattern, path=request.path.decode(), files_only=request.files_only)
        if "[" in request.pattern:
            bad = status_pb2.BadRequest()
            bad.field_violations.add(field="pattern", description="unclosed, at character 1")
            abort(context, grpc.StatusCode.INVALID_ARGUMENT, "", ("BadRequest", bad))
        for name in sorted(self._session(context, request.session_id)):
            yield pb.ListFilesResponse(files=[pb.FileStat(path=name, kind=pb.FILE_KIND_FILE)])
        yield pb.ListFilesResponse(truncated=request.pattern == "**")

    def GrepFiles(self, request, context):
        log(
            "GrepFiles",
            glob=request.glob if request.HasField("glob") else None,
            literal=request.literal,
            ignore_case=request.ignore_case,
            max_count=request.max_count,
        )
        for name, data in sorted(self._session(context, request.session_id).items()):
            for number, line in enumerate(data.splitlines(), 1):
                if request.pattern.encode() in line:
                    match = pb.GrepMatch(path=name, line_number=number, line=line)
                    yield pb.GrepFilesResponse(matches=[match])
        yield pb.GrepFilesResponse(truncated=True, binary_files_count=2)

    def EditFile(self, request, context):
        files = self._session(context, request.session_id)
        data = self._file(context, files, request.path)
        count = data.count(request.old_text)
        if count == 0:
            abort_file(context, grpc.StatusCode.FAILED_PRECONDITION, "no_match", "not there")
        if count > 1 and not request.replace_all:
            info = status_pb2.ErrorInfo(reason="several_matches", metadata={"count": str(count)})
            abort(context, grpc.StatusCode.FAILED_PRECONDITION, "several", ("ErrorInfo", info))
        files[request.path] = data.replace(request.old_text, request.new_text)
        return pb.EditFileResponse(replacements_count=count, diff="--- a\n+++ b\n")

    def StatFile(self, request, context):
        data = self._file(context, self._session(context, request.session_id), request.path)
        stat = pb.FileStat(path=request.path, kind=pb.FILE_KIND_FILE, size=len(data), mode=0o644)
        return pb.StatFileResponse(file=stat)

    def MakeDir(self, request, context):
        return pb.MakeDirResponse()

    def Remove(self, request, context):
        files = self._session(context, request.session_id)
        self._file(context, files, request.path)
        del files[request.path]
        return pb.RemoveResponse()

    def Move(self, request, context):
        files = self._session(context, request.session_id)
        if request.target in files and not request.replace:
            abort_file(context, grpc.StatusCode.ALREADY_EXISTS, "exists", "the target exists")
        files[request.target] = files.pop(request.source)
        return pb.MoveResponse()


class _Token(grpc.ServerInterceptor):
    def intercept_service(self, continuation, details):
        if dict(details.invocation_metadata).get("authorization") == f"Bearer {TOKEN}":
            return continuation(details)

        def refuse(request, context):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")

        return grpc.unary_unary_rpc_method_handler(refuse)


def main():
    if "STEPBOX_FAKE_FAIL" in os.environ:
        print(os.environ["STEPBOX_FAKE_FAIL"], file=sys.stderr)
        return 3
    if "STEPBOX_FAKE_LINE" in os.environ:
        print(os.environ["STEPBOX_FAKE_LINE"], flush=True)
        time.sleep(60)
    # Waited for by a thread, so blocked in all: a handler that runs while this thread leaves `ended.wait` would wait
    # for a lock that it holds itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    directory = tempfile.TemporaryDirectory(prefix="fake-", dir=Path(_LOG).parent if _LOG else None)
    token = Path(directory.name, "token")
    token.write_text(TOKEN + "\n")
    server = grpc.server(ThreadPoolExecutor(32), interceptors=(_Token(),), options=(("grpc.so_reuseport", 0),))
    pb_grpc.add_SandboxServicer_to_server(_Service(), server)
    endpoint = f"unix:{directory.name}/engine.sock"
    server.add_insecure_port(endpoint)
    server.start()
    log("serving", argv=sys.argv[1:], stdin=str(Path("/proc/self/fd/0").readlink()), sid=os.getsid(0))
    version = os.environ.get("STEPBOX_FAKE_VERSION", __version__)
    ready = {"endpoint": endpoint, "pid": os.getpid(), "version": version, "token_file": str(token)}
    print(json.dumps(ready), flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (signal.sigwait({signal.SIGTERM}), ended.set()), daemon=True).start()
    # The real engine watches the process that it was told of; the end of this pipe is its fallback.
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    ended.wait()
    server.stop(0.2).wait()
    directory.cleanup()
    log("stopped")
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
