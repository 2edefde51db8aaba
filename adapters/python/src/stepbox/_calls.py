"""A call of the service as data. An operation (`_operations.py`) yields calls; a transport carries them out.

So the logic of an operation exists once, and the synchronous and the asynchronous side differ only in how they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from google.protobuf.message import Message

from stepbox._pb import sandbox_pb2 as pb

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
T = TypeVar("T")

SERVICE = "stepbox.v1.Sandbox"


@dataclass(frozen=True)
class Method(Generic[Request, Reply]):
    """A method of the service, with its messages."""

    name: str
    request: type[Request]
    reply: type[Reply]

    @property
    def path(self) -> str:
        """What goes into the `:path` header."""
        return f"/{SERVICE}/{self.name}"


CHECK_SPEC = Method("CheckSpec", pb.CheckSpecRequest, pb.CheckSpecResponse)
CREATE_SESSION = Method("CreateSession", pb.CreateSessionRequest, pb.CreateSessionResponse)
GET_SESSION = Method("GetSession", pb.GetSessionRequest, pb.GetSessionResponse)
LIST_SESSIONS = Method("ListSessions", pb.ListSessionsRequest, pb.ListSessionsResponse)
CLOSE_SESSION = Method("CloseSession", pb.CloseSessionRequest, pb.CloseSessionResponse)
RUN_CODE = Method("RunCode", pb.RunCodeRequest, pb.RunCodeResponse)
RUN = Method("Run", pb.RunRequest, pb.RunResponse)
RUN_STREAM = Method("RunStream", pb.RunStreamRequest, pb.RunStreamResponse)
FETCH_OUTPUT = Method("FetchOutput", pb.FetchOutputRequest, pb.FetchOutputResponse)
LIST_CHANGES = Method("ListChanges", pb.ListChangesRequest, pb.ListChangesResponse)
RELEASE_STEP = Method("ReleaseStep", pb.ReleaseStepRequest, pb.ReleaseStepResponse)
START_KERNEL = Method("StartKernel", pb.StartKernelRequest, pb.StartKernelResponse)
RUN_CELL = Method("RunCell", pb.RunCellRequest, pb.RunCellResponse)
RUN_CELL_STREAM = Method("RunCellStream", pb.RunCellRequest, pb.RunCellStreamResponse)
INTERRUPT_KERNEL = Method("InterruptKernel", pb.InterruptKernelRequest, pb.InterruptKernelResponse)
RESTART_KERNEL = Method("RestartKernel", pb.RestartKernelRequest, pb.RestartKernelResponse)
CLOSE_KERNEL = Method("CloseKernel", pb.CloseKernelRequest, pb.CloseKernelResponse)
WRITE_FILE = Method("WriteFile", pb.WriteFileRequest, pb.WriteFileResponse)
READ_FILE = Method("ReadFile", pb.ReadFileRequest, pb.ReadFileResponse)
LIST_FILES = Method("ListFiles", pb.ListFilesRequest, pb.ListFilesResponse)
STAT_FILE = Method("StatFile", pb.StatFileRequest, pb.StatFileResponse)
MAKE_DIR = Method("MakeDir", pb.MakeDirRequest, pb.MakeDirResponse)
REMOVE = Method("Remove", pb.RemoveRequest, pb.RemoveResponse)
MOVE = Method("Move", pb.MoveRequest, pb.MoveResponse)
GLOB_FILES = Method("GlobFiles", pb.GlobFilesRequest, pb.ListFilesResponse)
GREP_FILES = Method("GrepFiles", pb.GrepFilesRequest, pb.GrepFilesResponse)
EDIT_FILE = Method("EditFile", pb.EditFileRequest, pb.EditFileResponse)
GET_INFO = Method("GetInfo", pb.GetInfoRequest, pb.GetInfoResponse)


@dataclass(frozen=True)
class Unary:
    """One request, one reply."""

    method: Method[Any, Any]
    request: Message
    deadline_s: float | None


@dataclass(frozen=True)
class Pull:
    """One request, many replies; each goes to `take` as it comes.

    What `take` gives back is awaited by the asynchronous transport when it can be.
    """

    method: Method[Any, Any]
    request: Message
    take: Callable[[Any], object]
    deadline_s: float | None


@dataclass(frozen=True)
class Push:
    """Many requests, made one by one as the other side takes them; one reply."""

    method: Method[Any, Any]
    requests: Iterator[Message]
    deadline_s: float | None


Call: TypeAlias = Unary | Pull | Push
# Yields calls, is sent their replies (or thrown their errors), and returns what the caller asked for.
Operation: TypeAlias = Generator[Call, Any, T]
