"""The options of a session: their names and defaults, and how Python values become a spec.

Only the *shape* of a value is judged here, because a wrong shape cannot travel. What a value may be is the engine's to
say, in one place for every language. Mistakes of both kinds are reported together.
"""

from __future__ import annotations

import difflib
import inspect
import os
import platform
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from stepbox import _shapes
from stepbox._errors import Violation
from stepbox._pb import sandbox_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepbox._shapes import HostPath

    MountTarget = HostPath | tuple[HostPath, str]


class SandboxOptions(TypedDict, total=False):
    """Every option, by type. One that is left out takes its default; None for a limit is "uncapped", said out loud."""

    image: str
    setup: str | None
    workspace: HostPath | None
    memory_mb: int | None
    cpus: float | None
    pids: int | None
    timeout_s: float
    network: bool | str
    egress_allow: Sequence[str] | None
    mounts: Mapping[HostPath, MountTarget] | None
    tmpfs: Mapping[str, str] | None
    env: Mapping[str, str] | None
    files: Mapping[HostPath, bytes | str] | None
    max_output_bytes: int
    deps_readonly: bool
    enforce_limits: bool
    track_files: bool
    prewarm: int | None
    preload: Sequence[str] | None
    security_profile: str
    cap_drop: Sequence[str]
    user: str | None
    workspace_max_bytes: int | None
    workspace_max_files: int | None
    profiles: Sequence[str] | None
    name: str | None
    resident: bool
    ttl_s: float
    file_diffs: bool
    labels: Mapping[str, str] | None
    setup_network: str | None
    packages: Sequence[str] | None
    npm_packages: Sequence[str] | None
    egress_credentials: Mapping[str, str] | None
    isolation_mode: str
    protect: Sequence[str] | None
    allow_sockets: bool
    host_packages: Sequence[HostPath] | None
    devices: Mapping[str, str] | None


DEFAULTS: dict[str, object] = {
    "image": "host",
    "setup": None,
    "workspace": None,
    "memory_mb": 512,
    "cpus": None,
    "pids": 256,
    "timeout_s": 30,
    "network": False,
    "egress_allow": None,
    "mounts": None,
    "tmpfs": {"/tmp": "64m"},  # noqa: S108 - a path in the sandbox
    "env": None,
    "files": None,
    "max_output_bytes": 64 * 1024 * 1024,
    "deps_readonly": True,
    "enforce_limits": True,
    "track_files": True,
    "prewarm": None,
    "preload": None,
    "security_profile": "default",
    "cap_drop": ("ALL",),
    "user": None,
    "workspace_max_bytes": None,
    "workspace_max_files": None,
    "profiles": None,
    "name": None,
    "resident": False,
    "ttl_s": 3600,
    "file_diffs": True,
    "labels": None,
    "setup_network": None,
    "packages": None,
    "npm_packages": None,
    "egress_credentials": None,
    "isolation_mode": "full",
    "protect": None,
    "allow_sockets": False,
    "host_packages": None,
    "devices": None,
}

SIGNATURE = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for (name, default), annotation in zip(
            DEFAULTS.items(), (SandboxOptions.__annotations__[name] for name in DEFAULTS), strict=True
        )
    ]
)


def check_names(options: Mapping[str, object], *, callee: str = "Sandbox") -> None:
    """Refuses an option that does not exist, naming the ones that do."""
    unknown = [name for name in options if name not in DEFAULTS]
    if not unknown:
        return
    _refuse_unknown(unknown[0], callee)


def _refuse_unknown(name: str, callee: str) -> NoReturn:
    close = difflib.get_close_matches(name, DEFAULTS, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else "."
    raise TypeError(f"{callee}() has no option {name!r}{meant} The options are: {', '.join(DEFAULTS)}")


def workspace_path(options: Mapping[str, object]) -> str | None:
    """The host path of a given workspace, made absolute; None for a private one."""
    given = options.get("workspace")
    if given is None or not isinstance(given, (str, bytes, os.PathLike)):
        return None
    return os.path.abspath(os.path.expanduser(os.fsdecode(given)))  # noqa: PTH100, PTH111 - links are the engine's to judge: nothing is resolved


def build_spec(options: Mapping[str, Any], *, same_host: bool) -> tuple[pb.SandboxSpec, list[Violation]]:
    """The spec that the options make, and the mistakes in their shapes.

    Args:
        options: Names are known already (`check_names`).
        same_host: The engine sees this host's file system, so that the caller's own interpreter means something to it.
    """
    spec = pb.SandboxSpec()
    violations: list[Violation] = []
    for name, value in options.items():
        setter = _SETTERS.get(name)
        if setter is None:
            continue
        try:
            setter(spec, value)
        except _shapes.ShapeError as wrong:
            violations.append(Violation(name, str(wrong)))
    if same_host and options.get("image") in (None, "host"):
        interpreter = callers_interpreter()
        if interpreter is not None:
            spec.interpreter.CopyFrom(interpreter)
    return spec, violations


def callers_interpreter() -> pb.Interpreter | None:
    """The running interpreter as it describes itself; its path is not resolved, so that a venv stays one."""
    if not sys.executable:
        return None
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
    return pb.Interpreter(
        executable=os.fsencode(os.path.abspath(sys.executable)),  # noqa: PTH100 - not resolved: a link is what makes a venv
        prefixes=[os.fsencode(prefix) for prefix in prefixes],
        version=platform.python_version(),
    )


def session_timeout_s(options: Mapping[str, object]) -> float:
    """The time that a step has when its call says nothing."""
    given = options.get("timeout_s")
    return float(given) if isinstance(given, (int, float)) else 30.0


# ---- one setter an option ----


def _plain(name: str, shape: Callable[[Any], Any]) -> Callable[[pb.SandboxSpec, Any], None]:
    """None is the same as leaving the option out."""

    def set_it(spec: pb.SandboxSpec, value: Any) -> None:
        if value is not None:
            setattr(spec, name, shape(value))

    return set_it


def _required(name: str, shape: Callable[[Any], Any], why: str) -> Callable[[pb.SandboxSpec, Any], None]:
    def set_it(spec: pb.SandboxSpec, value: Any) -> None:
        if value is None:
            raise _shapes.ShapeError(why)
        setattr(spec, name, shape(value))

    return set_it


def _cap(name: str) -> Callable[[pb.SandboxSpec, Any], None]:
    """None is "uncapped", said out loud."""

    def set_it(spec: pb.SandboxSpec, value: Any) -> None:
        getattr(spec, name).CopyFrom(_shapes.cap(value))

    return set_it


def _items(name: str, shape: Callable[[Any], Any], *, flag: str | None = None) -> Callable[[pb.SandboxSpec, Any], None]:
    """A list; with a flag, an empty one is not the same as none."""

    def set_it(spec: pb.SandboxSpec, value: Any) -> None:
        if value is None:
            return
        getattr(spec, name).extend(shape(value))
        if flag is not None:
            setattr(spec, flag, True)

    return set_it


def _mapping(name: str) -> Callable[[pb.SandboxSpec, Any], None]:
    def set_it(spec: pb.SandboxSpec, value: Any) -> None:
        if value is not None:
            getattr(spec, name).update(_shapes.text_map(value))

    return set_it


def _set_workspace(spec: pb.SandboxSpec, value: Any) -> None:
    if value is None:
        return
    if not _shapes.path_bytes(value):
        raise _shapes.ShapeError("an empty path; leave it out for a private directory")
    spec.workspace = os.path.abspath(os.path.expanduser(os.fsencode(value)))  # noqa: PTH100, PTH111 - as above


def _set_network(spec: pb.SandboxSpec, value: Any) -> None:
    names = {"none": pb.NETWORK_NONE, "host": pb.NETWORK_HOST, "internet": pb.NETWORK_INTERNET}
    if value is None:
        return
    if isinstance(value, bool):
        spec.network = pb.NETWORK_HOST if value else pb.NETWORK_NONE
    elif isinstance(value, str) and value in names:
        spec.network = names[value]
    else:
        raise _shapes.ShapeError(f'must be True, False, "none", "host" or "internet", got {value!r}')


def _set_security_profile(spec: pb.SandboxSpec, value: Any) -> None:
    names = {"default": pb.SECURITY_PROFILE_DEFAULT, "untrusted": pb.SECURITY_PROFILE_UNTRUSTED}
    if value is not None:
        spec.security_profile = _shapes.choice(value, names)


def _set_isolation_mode(spec: pb.SandboxSpec, value: Any) -> None:
    names = {"full": pb.ISOLATION_MODE_FULL, "reduced": pb.ISOLATION_MODE_REDUCED}
    if value is not None:
        spec.isolation_mode = _shapes.choice(value, names)


def _set_mounts(spec: pb.SandboxSpec, value: Any) -> None:
    if value is not None:
        spec.mounts.extend(_shapes.mounts(value))


def _set_allow_sockets(spec: pb.SandboxSpec, value: Any) -> None:
    if value is not None:
        spec.allow_sockets = _shapes.boolean(value)


_SETTERS: dict[str, Callable[[pb.SandboxSpec, Any], None]] = {
    "image": _required("image", _shapes.nonempty, 'the name of an image is needed; "host" is the default'),
    "setup": _plain("setup", _shapes.text),
    "workspace": _set_workspace,
    "memory_mb": _cap("memory_mb"),
    "cpus": _plain("cpus", _shapes.number),
    "pids": _cap("pids"),
    "timeout_s": _required("timeout_s", _shapes.number, "must be a finite number of seconds above 0, got None"),
    "network": _set_network,
    "egress_allow": _items("egress_allow", _shapes.texts, flag="egress_allow_set"),
    "mounts": _set_mounts,
    "tmpfs": _items("tmpfs", _shapes.tmpfs, flag="tmpfs_set"),
    "env": _mapping("env"),
    "max_output_bytes": _plain("max_output_bytes", _shapes.count),
    "deps_readonly": _plain("deps_readonly", _shapes.boolean),
    "enforce_limits": _plain("enforce_limits", _shapes.boolean),
    "track_files": _plain("track_files", _shapes.boolean),
    "prewarm": _plain("prewarm", _shapes.small_count),
    "preload": _items("preload", _shapes.texts),
    "security_profile": _set_security_profile,
    "cap_drop": _items("cap_drop", _shapes.texts, flag="cap_drop_set"),
    "user": _plain("user", _shapes.user),
    "workspace_max_bytes": _cap("workspace_max_bytes"),
    "workspace_max_files": _cap("workspace_max_files"),
    "profiles": _items("profiles", _shapes.texts),
    "name": _plain("name", _shapes.text),
    "resident": _plain("resident", _shapes.boolean),
    "ttl_s": _plain("ttl_s", _shapes.number),
    "file_diffs": _plain("file_diffs", _shapes.boolean),
    "labels": _mapping("labels"),
    "setup_network": _plain("setup_network", _shapes.text),
    "packages": _items("packages", _shapes.texts),
    "npm_packages": _items("npm_packages", _shapes.texts),
    "egress_credentials": _mapping("egress_credentials"),
    "isolation_mode": _set_isolation_mode,
    "protect": _items("protect", _shapes.texts, flag="protect_set"),
    "allow_sockets": _set_allow_sockets,
    "host_packages": _items("host_packages", _shapes.path_list),
    "devices": _mapping("devices"),
}
