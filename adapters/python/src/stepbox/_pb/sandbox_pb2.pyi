from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Network(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NETWORK_UNSPECIFIED: _ClassVar[Network]
    NETWORK_NONE: _ClassVar[Network]
    NETWORK_HOST: _ClassVar[Network]
    NETWORK_INTERNET: _ClassVar[Network]

class SecurityProfile(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SECURITY_PROFILE_UNSPECIFIED: _ClassVar[SecurityProfile]
    SECURITY_PROFILE_DEFAULT: _ClassVar[SecurityProfile]
    SECURITY_PROFILE_UNTRUSTED: _ClassVar[SecurityProfile]

class IsolationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_MODE_UNSPECIFIED: _ClassVar[IsolationMode]
    ISOLATION_MODE_FULL: _ClassVar[IsolationMode]
    ISOLATION_MODE_REDUCED: _ClassVar[IsolationMode]

class Stream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STREAM_UNSPECIFIED: _ClassVar[Stream]
    STREAM_STDOUT: _ClassVar[Stream]
    STREAM_STDERR: _ClassVar[Stream]

class FaultType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAULT_TYPE_UNSPECIFIED: _ClassVar[FaultType]
    FAULT_TYPE_STARTUP_FAILED: _ClassVar[FaultType]
    FAULT_TYPE_EXEC_FAILED: _ClassVar[FaultType]
    FAULT_TYPE_ESCAPE_BLOCKED: _ClassVar[FaultType]
    FAULT_TYPE_OOM: _ClassVar[FaultType]
    FAULT_TYPE_WORKSPACE_FULL: _ClassVar[FaultType]
    FAULT_TYPE_TIMEOUT: _ClassVar[FaultType]
    FAULT_TYPE_CANCELLED: _ClassVar[FaultType]
    FAULT_TYPE_KILLED: _ClassVar[FaultType]

class Start(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_UNSPECIFIED: _ClassVar[Start]
    START_COLD: _ClassVar[Start]
    START_FORKED: _ClassVar[Start]
    START_FORKED_AHEAD: _ClassVar[Start]
    START_KERNEL: _ClassVar[Start]
    START_RESIDENT: _ClassVar[Start]

class Resource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_UNSPECIFIED: _ClassVar[Resource]
    RESOURCE_MEMORY: _ClassVar[Resource]
    RESOURCE_PIDS: _ClassVar[Resource]
    RESOURCE_CPU: _ClassVar[Resource]
    RESOURCE_WORKSPACE: _ClassVar[Resource]
    RESOURCE_WORKSPACE_FILES: _ClassVar[Resource]

class EnforcedBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENFORCED_BY_UNSPECIFIED: _ClassVar[EnforcedBy]
    ENFORCED_BY_NONE: _ClassVar[EnforcedBy]
    ENFORCED_BY_CGROUP2: _ClassVar[EnforcedBy]
    ENFORCED_BY_CGROUP1: _ClassVar[EnforcedBy]
    ENFORCED_BY_RLIMIT: _ClassVar[EnforcedBy]
    ENFORCED_BY_WATCHDOG: _ClassVar[EnforcedBy]
    ENFORCED_BY_THROTTLE: _ClassVar[EnforcedBy]
    ENFORCED_BY_PROJECT_QUOTA: _ClassVar[EnforcedBy]
    ENFORCED_BY_SIZED_FILESYSTEM: _ClassVar[EnforcedBy]

class ChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_KIND_UNSPECIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_CREATED: _ClassVar[ChangeKind]
    CHANGE_KIND_MODIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_DELETED: _ClassVar[ChangeKind]
    CHANGE_KIND_RENAMED: _ClassVar[ChangeKind]

class FileKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILE_KIND_UNSPECIFIED: _ClassVar[FileKind]
    FILE_KIND_FILE: _ClassVar[FileKind]
    FILE_KIND_DIR: _ClassVar[FileKind]
    FILE_KIND_SYMLINK: _ClassVar[FileKind]
    FILE_KIND_FIFO: _ClassVar[FileKind]
    FILE_KIND_SOCKET: _ClassVar[FileKind]
    FILE_KIND_DEVICE: _ClassVar[FileKind]
NETWORK_UNSPECIFIED: Network
NETWORK_NONE: Network
NETWORK_HOST: Network
NETWORK_INTERNET: Network
SECURITY_PROFILE_UNSPECIFIED: SecurityProfile
SECURITY_PROFILE_DEFAULT: SecurityProfile
SECURITY_PROFILE_UNTRUSTED: SecurityProfile
ISOLATION_MODE_UNSPECIFIED: IsolationMode
ISOLATION_MODE_FULL: IsolationMode
ISOLATION_MODE_REDUCED: IsolationMode
STREAM_UNSPECIFIED: Stream
STREAM_STDOUT: Stream
STREAM_STDERR: Stream
FAULT_TYPE_UNSPECIFIED: FaultType
FAULT_TYPE_STARTUP_FAILED: FaultType
FAULT_TYPE_EXEC_FAILED: FaultType
FAULT_TYPE_ESCAPE_BLOCKED: FaultType
FAULT_TYPE_OOM: FaultType
FAULT_TYPE_WORKSPACE_FULL: FaultType
FAULT_TYPE_TIMEOUT: FaultType
FAULT_TYPE_CANCELLED: FaultType
FAULT_TYPE_KILLED: FaultType
START_UNSPECIFIED: Start
START_COLD: Start
START_FORKED: Start
START_FORKED_AHEAD: Start
START_KERNEL: Start
START_RESIDENT: Start
RESOURCE_UNSPECIFIED: Resource
RESOURCE_MEMORY: Resource
RESOURCE_PIDS: Resource
RESOURCE_CPU: Resource
RESOURCE_WORKSPACE: Resource
RESOURCE_WORKSPACE_FILES: Resource
ENFORCED_BY_UNSPECIFIED: EnforcedBy
ENFORCED_BY_NONE: EnforcedBy
ENFORCED_BY_CGROUP2: EnforcedBy
ENFORCED_BY_CGROUP1: EnforcedBy
ENFORCED_BY_RLIMIT: EnforcedBy
ENFORCED_BY_WATCHDOG: EnforcedBy
ENFORCED_BY_THROTTLE: EnforcedBy
ENFORCED_BY_PROJECT_QUOTA: EnforcedBy
ENFORCED_BY_SIZED_FILESYSTEM: EnforcedBy
CHANGE_KIND_UNSPECIFIED: ChangeKind
CHANGE_KIND_CREATED: ChangeKind
CHANGE_KIND_MODIFIED: ChangeKind
CHANGE_KIND_DELETED: ChangeKind
CHANGE_KIND_RENAMED: ChangeKind
FILE_KIND_UNSPECIFIED: FileKind
FILE_KIND_FILE: FileKind
FILE_KIND_DIR: FileKind
FILE_KIND_SYMLINK: FileKind
FILE_KIND_FIFO: FileKind
FILE_KIND_SOCKET: FileKind
FILE_KIND_DEVICE: FileKind

class Cap(_message.Message):
    __slots__ = ("max", "uncapped")
    MAX_FIELD_NUMBER: _ClassVar[int]
    UNCAPPED_FIELD_NUMBER: _ClassVar[int]
    max: int
    uncapped: bool
    def __init__(self, max: _Optional[int] = ..., uncapped: bool = ...) -> None: ...

class Mount(_message.Message):
    __slots__ = ("source", "target", "read_only", "allow_sockets")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    ALLOW_SOCKETS_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    target: bytes
    read_only: bool
    allow_sockets: bool
    def __init__(self, source: _Optional[bytes] = ..., target: _Optional[bytes] = ..., read_only: bool = ..., allow_sockets: bool = ...) -> None: ...

class Tmpfs(_message.Message):
    __slots__ = ("target", "size")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    target: bytes
    size: str
    def __init__(self, target: _Optional[bytes] = ..., size: _Optional[str] = ...) -> None: ...

class Interpreter(_message.Message):
    __slots__ = ("executable", "prefixes", "version")
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    executable: bytes
    prefixes: _containers.RepeatedScalarFieldContainer[bytes]
    version: str
    def __init__(self, executable: _Optional[bytes] = ..., prefixes: _Optional[_Iterable[bytes]] = ..., version: _Optional[str] = ...) -> None: ...

class SandboxSpec(_message.Message):
    __slots__ = ("image", "setup", "workspace", "memory_mb", "cpus", "pids", "timeout_s", "network", "egress_allow", "egress_allow_set", "mounts", "tmpfs", "tmpfs_set", "env", "max_output_bytes", "deps_readonly", "enforce_limits", "track_files", "prewarm", "preload", "security_profile", "cap_drop", "cap_drop_set", "user", "workspace_max_bytes", "workspace_max_files", "profiles", "name", "resident", "ttl_s", "file_diffs", "labels", "setup_network", "packages", "npm_packages", "egress_credentials", "isolation_mode", "protect", "protect_set", "allow_sockets", "interpreter", "host_packages", "devices")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EgressCredentialsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class DevicesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    EGRESS_ALLOW_FIELD_NUMBER: _ClassVar[int]
    EGRESS_ALLOW_SET_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    TMPFS_FIELD_NUMBER: _ClassVar[int]
    TMPFS_SET_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEPS_READONLY_FIELD_NUMBER: _ClassVar[int]
    ENFORCE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    TRACK_FILES_FIELD_NUMBER: _ClassVar[int]
    PREWARM_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    SECURITY_PROFILE_FIELD_NUMBER: _ClassVar[int]
    CAP_DROP_FIELD_NUMBER: _ClassVar[int]
    CAP_DROP_SET_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_MAX_FILES_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    FILE_DIFFS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SETUP_NETWORK_FIELD_NUMBER: _ClassVar[int]
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    NPM_PACKAGES_FIELD_NUMBER: _ClassVar[int]
    EGRESS_CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_MODE_FIELD_NUMBER: _ClassVar[int]
    PROTECT_FIELD_NUMBER: _ClassVar[int]
    PROTECT_SET_FIELD_NUMBER: _ClassVar[int]
    ALLOW_SOCKETS_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    HOST_PACKAGES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    image: str
    setup: str
    workspace: bytes
    memory_mb: Cap
    cpus: float
    pids: Cap
    timeout_s: float
    network: Network
    egress_allow: _containers.RepeatedScalarFieldContainer[str]
    egress_allow_set: bool
    mounts: _containers.RepeatedCompositeFieldContainer[Mount]
    tmpfs: _containers.RepeatedCompositeFieldContainer[Tmpfs]
    tmpfs_set: bool
    env: _containers.ScalarMap[str, str]
    max_output_bytes: int
    deps_readonly: bool
    enforce_limits: bool
    track_files: bool
    prewarm: int
    preload: _containers.RepeatedScalarFieldContainer[str]
    security_profile: SecurityProfile
    cap_drop: _containers.RepeatedScalarFieldContainer[str]
    cap_drop_set: bool
    user: str
    workspace_max_bytes: Cap
    workspace_max_files: Cap
    profiles: _containers.RepeatedScalarFieldContainer[str]
    name: str
    resident: bool
    ttl_s: float
    file_diffs: bool
    labels: _containers.ScalarMap[str, str]
    setup_network: str
    packages: _containers.RepeatedScalarFieldContainer[str]
    npm_packages: _containers.RepeatedScalarFieldContainer[str]
    egress_credentials: _containers.ScalarMap[str, str]
    isolation_mode: IsolationMode
    protect: _containers.RepeatedScalarFieldContainer[str]
    protect_set: bool
    allow_sockets: bool
    interpreter: Interpreter
    host_packages: _containers.RepeatedScalarFieldContainer[bytes]
    devices: _containers.ScalarMap[str, str]
    def __init__(self, image: _Optional[str] = ..., setup: _Optional[str] = ..., workspace: _Optional[bytes] = ..., memory_mb: _Optional[_Union[Cap, _Mapping]] = ..., cpus: _Optional[float] = ..., pids: _Optional[_Union[Cap, _Mapping]] = ..., timeout_s: _Optional[float] = ..., network: _Optional[_Union[Network, str]] = ..., egress_allow: _Optional[_Iterable[str]] = ..., egress_allow_set: bool = ..., mounts: _Optional[_Iterable[_Union[Mount, _Mapping]]] = ..., tmpfs: _Optional[_Iterable[_Union[Tmpfs, _Mapping]]] = ..., tmpfs_set: bool = ..., env: _Optional[_Mapping[str, str]] = ..., max_output_bytes: _Optional[int] = ..., deps_readonly: bool = ..., enforce_limits: bool = ..., track_files: bool = ..., prewarm: _Optional[int] = ..., preload: _Optional[_Iterable[str]] = ..., security_profile: _Optional[_Union[SecurityProfile, str]] = ..., cap_drop: _Optional[_Iterable[str]] = ..., cap_drop_set: bool = ..., user: _Optional[str] = ..., workspace_max_bytes: _Optional[_Union[Cap, _Mapping]] = ..., workspace_max_files: _Optional[_Union[Cap, _Mapping]] = ..., profiles: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., resident: bool = ..., ttl_s: _Optional[float] = ..., file_diffs: bool = ..., labels: _Optional[_Mapping[str, str]] = ..., setup_network: _Optional[str] = ..., packages: _Optional[_Iterable[str]] = ..., npm_packages: _Optional[_Iterable[str]] = ..., egress_credentials: _Optional[_Mapping[str, str]] = ..., isolation_mode: _Optional[_Union[IsolationMode, str]] = ..., protect: _Optional[_Iterable[str]] = ..., protect_set: bool = ..., allow_sockets: bool = ..., interpreter: _Optional[_Union[Interpreter, _Mapping]] = ..., host_packages: _Optional[_Iterable[bytes]] = ..., devices: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CheckSpecRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: SandboxSpec
    def __init__(self, spec: _Optional[_Union[SandboxSpec, _Mapping]] = ...) -> None: ...

class CheckSpecResponse(_message.Message):
    __slots__ = ("limits", "isolation")
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    isolation: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., isolation: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateSessionRequest(_message.Message):
    __slots__ = ("spec", "attach")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    spec: SandboxSpec
    attach: bool
    def __init__(self, spec: _Optional[_Union[SandboxSpec, _Mapping]] = ..., attach: bool = ...) -> None: ...

class CreateSessionResponse(_message.Message):
    __slots__ = ("session", "attached")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    session: Session
    attached: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., attached: bool = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("session_id", "name", "labels", "workspace", "steps_running_count", "steps_done_count", "created_unix_ms", "image", "image_digest", "limits", "isolation", "resident", "ttl_ms", "idle_ms", "timeout_ms")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    STEPS_RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    name: str
    labels: _containers.ScalarMap[str, str]
    workspace: bytes
    steps_running_count: int
    steps_done_count: int
    created_unix_ms: int
    image: str
    image_digest: str
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    isolation: _containers.RepeatedScalarFieldContainer[str]
    resident: bool
    ttl_ms: int
    idle_ms: int
    timeout_ms: int
    def __init__(self, session_id: _Optional[str] = ..., name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., workspace: _Optional[bytes] = ..., steps_running_count: _Optional[int] = ..., steps_done_count: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., image: _Optional[str] = ..., image_digest: _Optional[str] = ..., limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., isolation: _Optional[_Iterable[str]] = ..., resident: bool = ..., ttl_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class StepOptions(_message.Message):
    __slots__ = ("timeout_s", "memory_mb", "env", "cwd", "stdin", "user")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    memory_mb: Cap
    env: _containers.ScalarMap[str, str]
    cwd: bytes
    stdin: bytes
    user: str
    def __init__(self, timeout_s: _Optional[float] = ..., memory_mb: _Optional[_Union[Cap, _Mapping]] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[bytes] = ..., stdin: _Optional[bytes] = ..., user: _Optional[str] = ...) -> None: ...

class RunCodeRequest(_message.Message):
    __slots__ = ("session_id", "code", "language", "options", "args")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    code: str
    language: str
    options: StepOptions
    args: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session_id: _Optional[str] = ..., code: _Optional[str] = ..., language: _Optional[str] = ..., options: _Optional[_Union[StepOptions, _Mapping]] = ..., args: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RunCodeResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: StepResult
    def __init__(self, result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("session_id", "argv", "options")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    argv: _containers.RepeatedScalarFieldContainer[bytes]
    options: StepOptions
    def __init__(self, session_id: _Optional[str] = ..., argv: _Optional[_Iterable[bytes]] = ..., options: _Optional[_Union[StepOptions, _Mapping]] = ...) -> None: ...

class RunResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: StepResult
    def __init__(self, result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class RunStreamRequest(_message.Message):
    __slots__ = ("run_code", "run")
    RUN_CODE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run_code: RunCodeRequest
    run: RunRequest
    def __init__(self, run_code: _Optional[_Union[RunCodeRequest, _Mapping]] = ..., run: _Optional[_Union[RunRequest, _Mapping]] = ...) -> None: ...

class RunStreamResponse(_message.Message):
    __slots__ = ("started", "output", "result")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    started: StepStarted
    output: OutputChunk
    result: StepResult
    def __init__(self, started: _Optional[_Union[StepStarted, _Mapping]] = ..., output: _Optional[_Union[OutputChunk, _Mapping]] = ..., result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class StepStarted(_message.Message):
    __slots__ = ("step_id",)
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    step_id: str
    def __init__(self, step_id: _Optional[str] = ...) -> None: ...

class OutputChunk(_message.Message):
    __slots__ = ("stream", "sequence", "data", "dropped_bytes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    stream: Stream
    sequence: int
    data: bytes
    dropped_bytes: int
    def __init__(self, stream: _Optional[_Union[Stream, str]] = ..., sequence: _Optional[int] = ..., data: _Optional[bytes] = ..., dropped_bytes: _Optional[int] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("type", "message", "syscall", "syscall_args", "pid", "program", "step", "errno", "path")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SYSCALL_FIELD_NUMBER: _ClassVar[int]
    SYSCALL_ARGS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERRNO_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    type: FaultType
    message: str
    syscall: str
    syscall_args: _containers.RepeatedScalarFieldContainer[int]
    pid: int
    program: str
    step: str
    errno: int
    path: bytes
    def __init__(self, type: _Optional[_Union[FaultType, str]] = ..., message: _Optional[str] = ..., syscall: _Optional[str] = ..., syscall_args: _Optional[_Iterable[int]] = ..., pid: _Optional[int] = ..., program: _Optional[str] = ..., step: _Optional[str] = ..., errno: _Optional[int] = ..., path: _Optional[bytes] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step_id", "stdout", "stderr", "runtime_notes", "exit_code", "signal", "duration_ms", "duration_us", "fault", "files", "files_count", "files_truncated", "files_shared", "files_tracked", "usage", "limits", "isolation", "image_digest", "start", "results", "results_truncated")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_NOTES_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FILES_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILES_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    FILES_SHARED_FIELD_NUMBER: _ClassVar[int]
    FILES_TRACKED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    step_id: str
    stdout: OutputStream
    stderr: OutputStream
    runtime_notes: _containers.RepeatedScalarFieldContainer[str]
    exit_code: int
    signal: int
    duration_ms: int
    duration_us: int
    fault: Fault
    files: _containers.RepeatedCompositeFieldContainer[FileChange]
    files_count: int
    files_truncated: bool
    files_shared: bool
    files_tracked: bool
    usage: Usage
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    isolation: _containers.RepeatedScalarFieldContainer[str]
    image_digest: str
    start: Start
    results: _containers.RepeatedCompositeFieldContainer[RichResult]
    results_truncated: bool
    def __init__(self, step_id: _Optional[str] = ..., stdout: _Optional[_Union[OutputStream, _Mapping]] = ..., stderr: _Optional[_Union[OutputStream, _Mapping]] = ..., runtime_notes: _Optional[_Iterable[str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., duration_ms: _Optional[int] = ..., duration_us: _Optional[int] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., files: _Optional[_Iterable[_Union[FileChange, _Mapping]]] = ..., files_count: _Optional[int] = ..., files_truncated: bool = ..., files_shared: bool = ..., files_tracked: bool = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., isolation: _Optional[_Iterable[str]] = ..., image_digest: _Optional[str] = ..., start: _Optional[_Union[Start, str]] = ..., results: _Optional[_Iterable[_Union[RichResult, _Mapping]]] = ..., results_truncated: bool = ...) -> None: ...

class OutputStream(_message.Message):
    __slots__ = ("data", "kept_bytes", "total_bytes", "head_bytes", "truncated")
    DATA_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    kept_bytes: int
    total_bytes: int
    head_bytes: int
    truncated: bool
    def __init__(self, data: _Optional[bytes] = ..., kept_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., head_bytes: _Optional[int] = ..., truncated: bool = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("cpu_ms", "peak_memory_bytes", "startup_us", "queue_us", "pids_peak", "oom_kills", "pids_denied", "denied_syscalls")
    CPU_MS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTUP_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PIDS_PEAK_FIELD_NUMBER: _ClassVar[int]
    OOM_KILLS_FIELD_NUMBER: _ClassVar[int]
    PIDS_DENIED_FIELD_NUMBER: _ClassVar[int]
    DENIED_SYSCALLS_FIELD_NUMBER: _ClassVar[int]
    cpu_ms: int
    peak_memory_bytes: int
    startup_us: int
    queue_us: int
    pids_peak: int
    oom_kills: int
    pids_denied: int
    denied_syscalls: int
    def __init__(self, cpu_ms: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., startup_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., pids_peak: _Optional[int] = ..., oom_kills: _Optional[int] = ..., pids_denied: _Optional[int] = ..., denied_syscalls: _Optional[int] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("resource", "max", "enforced_by")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_BY_FIELD_NUMBER: _ClassVar[int]
    resource: Resource
    max: int
    enforced_by: EnforcedBy
    def __init__(self, resource: _Optional[_Union[Resource, str]] = ..., max: _Optional[int] = ..., enforced_by: _Optional[_Union[EnforcedBy, str]] = ...) -> None: ...

class FileChange(_message.Message):
    __slots__ = ("path", "display_path", "change", "kind", "size", "mode", "old_path", "host_risk", "diff", "diff_reason")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_PATH_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    OLD_PATH_FIELD_NUMBER: _ClassVar[int]
    HOST_RISK_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    DIFF_REASON_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    display_path: str
    change: ChangeKind
    kind: FileKind
    size: int
    mode: int
    old_path: bytes
    host_risk: str
    diff: str
    diff_reason: str
    def __init__(self, path: _Optional[bytes] = ..., display_path: _Optional[str] = ..., change: _Optional[_Union[ChangeKind, str]] = ..., kind: _Optional[_Union[FileKind, str]] = ..., size: _Optional[int] = ..., mode: _Optional[int] = ..., old_path: _Optional[bytes] = ..., host_risk: _Optional[str] = ..., diff: _Optional[str] = ..., diff_reason: _Optional[str] = ...) -> None: ...

class FetchOutputRequest(_message.Message):
    __slots__ = ("session_id", "step_id", "stream", "offset")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step_id: str
    stream: Stream
    offset: int
    def __init__(self, session_id: _Optional[str] = ..., step_id: _Optional[str] = ..., stream: _Optional[_Union[Stream, str]] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchOutputResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("session_id", "step_id", "offset")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step_id: str
    offset: int
    def __init__(self, session_id: _Optional[str] = ..., step_id: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ListChangesResponse(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileChange]
    def __init__(self, files: _Optional[_Iterable[_Union[FileChange, _Mapping]]] = ...) -> None: ...

class ReleaseStepRequest(_message.Message):
    __slots__ = ("session_id", "step_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step_id: str
    def __init__(self, session_id: _Optional[str] = ..., step_id: _Optional[str] = ...) -> None: ...

class ReleaseStepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KernelOptions(_message.Message):
    __slots__ = ("memory_mb", "env", "cwd")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    memory_mb: Cap
    env: _containers.ScalarMap[str, str]
    cwd: bytes
    def __init__(self, memory_mb: _Optional[_Union[Cap, _Mapping]] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[bytes] = ...) -> None: ...

class StartKernelRequest(_message.Message):
    __slots__ = ("session_id", "options")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    options: KernelOptions
    def __init__(self, session_id: _Optional[str] = ..., options: _Optional[_Union[KernelOptions, _Mapping]] = ...) -> None: ...

class StartKernelResponse(_message.Message):
    __slots__ = ("kernel_id", "start")
    KERNEL_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    kernel_id: str
    start: Start
    def __init__(self, kernel_id: _Optional[str] = ..., start: _Optional[_Union[Start, str]] = ...) -> None: ...

class RunCellRequest(_message.Message):
    __slots__ = ("session_id", "kernel_id", "code", "timeout_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    kernel_id: str
    code: str
    timeout_s: float
    def __init__(self, session_id: _Optional[str] = ..., kernel_id: _Optional[str] = ..., code: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class RunCellResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: StepResult
    def __init__(self, result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class RunCellStreamResponse(_message.Message):
    __slots__ = ("started", "output", "result")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    started: StepStarted
    output: OutputChunk
    result: RunCellResponse
    def __init__(self, started: _Optional[_Union[StepStarted, _Mapping]] = ..., output: _Optional[_Union[OutputChunk, _Mapping]] = ..., result: _Optional[_Union[RunCellResponse, _Mapping]] = ...) -> None: ...

class RichResult(_message.Message):
    __slots__ = ("data", "main")
    class DataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    DATA_FIELD_NUMBER: _ClassVar[int]
    MAIN_FIELD_NUMBER: _ClassVar[int]
    data: _containers.ScalarMap[str, bytes]
    main: bool
    def __init__(self, data: _Optional[_Mapping[str, bytes]] = ..., main: bool = ...) -> None: ...

class InterruptKernelRequest(_message.Message):
    __slots__ = ("session_id", "kernel_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    kernel_id: str
    def __init__(self, session_id: _Optional[str] = ..., kernel_id: _Optional[str] = ...) -> None: ...

class InterruptKernelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestartKernelRequest(_message.Message):
    __slots__ = ("session_id", "kernel_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    kernel_id: str
    def __init__(self, session_id: _Optional[str] = ..., kernel_id: _Optional[str] = ...) -> None: ...

class RestartKernelResponse(_message.Message):
    __slots__ = ("start",)
    START_FIELD_NUMBER: _ClassVar[int]
    start: Start
    def __init__(self, start: _Optional[_Union[Start, str]] = ...) -> None: ...

class CloseKernelRequest(_message.Message):
    __slots__ = ("session_id", "kernel_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KERNEL_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    kernel_id: str
    def __init__(self, session_id: _Optional[str] = ..., kernel_id: _Optional[str] = ...) -> None: ...

class CloseKernelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "data", "mode")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: bytes
    data: bytes
    mode: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[bytes] = ..., data: _Optional[bytes] = ..., mode: _Optional[int] = ...) -> None: ...

class WriteFileResponse(_message.Message):
    __slots__ = ("size_bytes",)
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    def __init__(self, size_bytes: _Optional[int] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "offset", "length", "max_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: bytes
    offset: int
    length: int
    max_bytes: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("data", "size_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    size_bytes: int
    def __init__(self, data: _Optional[bytes] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("session_id", "path", "recursive", "files_only")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    FILES_ONLY_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: bytes
    recursive: bool
    files_only: bool
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[bytes] = ..., recursive: bool = ..., files_only: bool = ...) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("files", "truncated")
    FILES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileStat]
    truncated: bool
    def __init__(self, files: _Optional[_Iterable[_Union[FileStat, _Mapping]]] = ..., truncated: bool = ...) -> None: ...

class FileStat(_message.Message):
    __slots__ = ("path", "display_path", "kind", "size", "mode", "modified_unix_ns", "link_target")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LINK_TARGET_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    display_path: str
    kind: FileKind
    size: int
    mode: int
    modified_unix_ns: int
    link_target: bytes
    def __init__(self, path: _Optional[bytes] = ..., display_path: _Optional[str] = ..., kind: _Optional[_Union[FileKind, str]] = ..., size: _Optional[int] = ..., mode: _Optional[int] = ..., modified_unix_ns: _Optional[int] = ..., link_target: _Optional[bytes] = ...) -> None: ...

class StatFileRequest(_message.Message):
    __slots__ = ("session_id", "path")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[bytes] = ...) -> None: ...

class StatFileResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: FileStat
    def __init__(self, file: _Optional[_Union[FileStat, _Mapping]] = ...) -> None: ...

class MakeDirRequest(_message.Message):
    __slots__ = ("session_id", "path")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[bytes] = ...) -> None: ...

class MakeDirResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("session_id", "path", "recursive")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: bytes
    recursive: bool
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[bytes] = ..., recursive: bool = ...) -> None: ...

class RemoveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("session_id", "source", "target", "replace")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    source: bytes
    target: bytes
    replace: bool
    def __init__(self, session_id: _Optional[str] = ..., source: _Optional[bytes] = ..., target: _Optional[bytes] = ..., replace: bool = ...) -> None: ...

class MoveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GlobFilesRequest(_message.Message):
    __slots__ = ("session_id", "pattern", "path", "files_only")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FILES_ONLY_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    pattern: str
    path: bytes
    files_only: bool
    def __init__(self, session_id: _Optional[str] = ..., pattern: _Optional[str] = ..., path: _Optional[bytes] = ..., files_only: bool = ...) -> None: ...

class GrepFilesRequest(_message.Message):
    __slots__ = ("session_id", "pattern", "path", "literal", "ignore_case", "glob", "max_count")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    IGNORE_CASE_FIELD_NUMBER: _ClassVar[int]
    GLOB_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    pattern: str
    path: bytes
    literal: bool
    ignore_case: bool
    glob: str
    max_count: int
    def __init__(self, session_id: _Optional[str] = ..., pattern: _Optional[str] = ..., path: _Optional[bytes] = ..., literal: bool = ..., ignore_case: bool = ..., glob: _Optional[str] = ..., max_count: _Optional[int] = ...) -> None: ...

class GrepFilesResponse(_message.Message):
    __slots__ = ("matches", "truncated", "binary_files_count")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    BINARY_FILES_COUNT_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[GrepMatch]
    truncated: bool
    binary_files_count: int
    def __init__(self, matches: _Optional[_Iterable[_Union[GrepMatch, _Mapping]]] = ..., truncated: bool = ..., binary_files_count: _Optional[int] = ...) -> None: ...

class GrepMatch(_message.Message):
    __slots__ = ("path", "line_number", "line", "display_path")
    PATH_FIELD_NUMBER: _ClassVar[int]
    LINE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_PATH_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    line_number: int
    line: bytes
    display_path: str
    def __init__(self, path: _Optional[bytes] = ..., line_number: _Optional[int] = ..., line: _Optional[bytes] = ..., display_path: _Optional[str] = ...) -> None: ...

class EditFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "old_text", "new_text", "replace_all")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OLD_TEXT_FIELD_NUMBER: _ClassVar[int]
    NEW_TEXT_FIELD_NUMBER: _ClassVar[int]
    REPLACE_ALL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: bytes
    old_text: bytes
    new_text: bytes
    replace_all: bool
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[bytes] = ..., old_text: _Optional[bytes] = ..., new_text: _Optional[bytes] = ..., replace_all: bool = ...) -> None: ...

class EditFileResponse(_message.Message):
    __slots__ = ("replacements_count", "diff", "diff_reason")
    REPLACEMENTS_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    DIFF_REASON_FIELD_NUMBER: _ClassVar[int]
    replacements_count: int
    diff: str
    diff_reason: str
    def __init__(self, replacements_count: _Optional[int] = ..., diff: _Optional[str] = ..., diff_reason: _Optional[str] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("version", "pid", "kernel", "mode", "probes", "limit_mechanisms", "live")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MECHANISMS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    version: str
    pid: int
    kernel: str
    mode: str
    probes: _containers.RepeatedCompositeFieldContainer[Probe]
    limit_mechanisms: _containers.RepeatedCompositeFieldContainer[Limit]
    live: Live
    def __init__(self, version: _Optional[str] = ..., pid: _Optional[int] = ..., kernel: _Optional[str] = ..., mode: _Optional[str] = ..., probes: _Optional[_Iterable[_Union[Probe, _Mapping]]] = ..., limit_mechanisms: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., live: _Optional[_Union[Live, _Mapping]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("name", "available", "detail", "mend")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MEND_FIELD_NUMBER: _ClassVar[int]
    name: str
    available: bool
    detail: str
    mend: str
    def __init__(self, name: _Optional[str] = ..., available: bool = ..., detail: _Optional[str] = ..., mend: _Optional[str] = ...) -> None: ...

class Live(_message.Message):
    __slots__ = ("sessions_count", "steps_count", "slots_count", "steps_done_count", "templates")
    SESSIONS_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEPS_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    sessions_count: int
    steps_count: int
    slots_count: int
    steps_done_count: int
    templates: _containers.RepeatedCompositeFieldContainer[Template]
    def __init__(self, sessions_count: _Optional[int] = ..., steps_count: _Optional[int] = ..., slots_count: _Optional[int] = ..., steps_done_count: _Optional[int] = ..., templates: _Optional[_Iterable[_Union[Template, _Mapping]]] = ...) -> None: ...

class Template(_message.Message):
    __slots__ = ("executable", "preload", "memory_bytes", "forks_count", "age_ms")
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORKS_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    executable: bytes
    preload: _containers.RepeatedScalarFieldContainer[str]
    memory_bytes: int
    forks_count: int
    age_ms: int
    def __init__(self, executable: _Optional[bytes] = ..., preload: _Optional[_Iterable[str]] = ..., memory_bytes: _Optional[int] = ..., forks_count: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...
