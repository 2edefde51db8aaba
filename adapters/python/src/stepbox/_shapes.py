"""Python values to what the wire carries, or a sentence with the right spelling."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from stepbox._pb import sandbox_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

HostPath: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

_T = TypeVar("_T")
_UINT64_MAX = 2**64 - 1
_UINT32_MAX = 2**32 - 1


class ShapeError(ValueError):
    """A value that cannot travel; the text says how it is spelt right."""


def text(value: Any) -> str:
    """A str that UTF-8 can hold."""
    if not isinstance(value, str):
        raise ShapeError(f"must be a str, got {_seen(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ShapeError("must be text that UTF-8 can hold; it has a lone surrogate") from None
    return value


def nonempty(value: Any) -> str:
    """A str with something in it; on the wire an empty one is one that was left out."""
    if not text(value):
        raise ShapeError("must not be empty")
    return str(value)


def texts(value: Any) -> list[str]:
    """A list of str; a bare str is not a list of its letters."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ShapeError(f'must be a list of str such as ["a", "b"], got {_seen(value)}')
    return [text(item) for item in value]


def text_map(value: Any) -> dict[str, str]:
    """A mapping of str to str."""
    if not isinstance(value, Mapping):
        raise ShapeError(f'must be a mapping such as {{"NAME": "value"}}, got {_seen(value)}')
    checked = {}
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise ShapeError(f'must map str to str such as {{"NAME": "1"}}, got {_shown(key)}: {_seen(item)}')
        checked[text(key)] = text(item)
    return checked


def boolean(value: Any) -> bool:
    """True or False, nothing that is merely like them."""
    if not isinstance(value, bool):
        raise ShapeError(f"must be True or False, got {_seen(value)}")
    return value


def number(value: Any) -> float:
    """A number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ShapeError(f"must be a number, got {_seen(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ShapeError("is too large a number") from None


def count(value: Any) -> int:
    """A whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ShapeError(f"must be a whole number, got {_seen(value)}")
    if value < 0:
        raise ShapeError(f"must be a whole number from 0, got {_shown(value)}")
    if value > _UINT64_MAX:
        raise ShapeError(f"must be a whole number from 0 to {_UINT64_MAX}, got {_shown(value)}")
    return value


def small_count(value: Any) -> int:
    """A whole number from 0 that 32 bits hold."""
    if count(value) > _UINT32_MAX:
        raise ShapeError(f"must be at most {_UINT32_MAX}, got {value}")
    return int(value)


def permission_bits(value: Any) -> int:
    """The mode of a file, in full or a part of it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ShapeError(f"must be a whole number such as 0o644, got {_seen(value)}")
    if not 0 <= value <= _UINT32_MAX:
        raise ShapeError(f"must be permission bits such as 0o644, got {_shown(value)}")
    return value


def cap(value: Any) -> pb.Cap:
    """A cap; None is the word that there is none."""
    if value is None:
        return pb.Cap(uncapped=True)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ShapeError(f"must be a whole number, or None for no cap, got {_seen(value)}")
    return pb.Cap(max=count(value))


def user(value: Any) -> str:
    """A name, or a number with or without a group."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(count(value))
    if not isinstance(value, str):
        raise ShapeError(f'must be a name or a uid such as "1000" or "1000:1000", got {_seen(value)}')
    return text(value)


def choice(value: Any, names: Mapping[str, _T]) -> _T:
    """One of some words."""
    if not isinstance(value, str) or value not in names:
        raise ShapeError(f"must be {' or '.join(repr(name) for name in names)}, got {_seen(value)}")
    return names[value]


def path_bytes(value: Any) -> bytes:
    """A path as bytes; what `surrogateescape` made of odd bytes goes back to them."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise ShapeError(f"must be a path, got {_seen(value)}")
    path = os.fspath(value)
    if isinstance(path, bytes):
        return path
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ShapeError(f"cannot be a file name: {path!r}") from None


def path_list(value: Any) -> list[bytes]:
    """A list of paths; a bare path is not one."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ShapeError(f'must be a list of paths such as ["/a", "/b"], got {_seen(value)}')
    return [path_bytes(item) for item in value]


def arguments(value: Any) -> list[bytes]:
    """A list of arguments: str, bytes or paths; a bare str is not a list of its letters."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ShapeError(f'must be a list such as ["a", "b"], got {_seen(value)}')
    checked = [_argument(item) for item in value]
    for item in checked:
        if b"\0" in item:
            raise ShapeError(f"holds a NUL byte: {_shown(item)}")
    return checked


def _argument(value: Any) -> bytes:
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise ShapeError(f"must hold str, bytes or paths, got {_seen(value)}")
    return path_bytes(value)


def data_bytes(value: Any) -> bytes | memoryview:
    """What is to be written: text as UTF-8, or anything that has bytes."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ShapeError("must be text that UTF-8 can hold, or bytes; it has a lone surrogate") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).cast("B") if not isinstance(value, bytes) else value
    raise ShapeError(f"must be bytes or str, got {_seen(value)}")


_MOUNTS = 'must be {"/host/dir": "/box/dir"} or {"/host/dir": ("/box/dir", "ro")}'


def mounts(value: Any) -> list[pb.Mount]:
    """`{host: box}` or `{host: (box, "ro" | "rw")}`."""
    if not isinstance(value, Mapping):
        raise ShapeError(f"{_MOUNTS}, got {_seen(value)}")
    return [_mount(source, target) for source, target in value.items()]


def _mount(source: Any, given: Any) -> pb.Mount:
    mode: Any = "rw"
    target = given
    if isinstance(given, (tuple, list)):
        if len(given) != 2:
            raise ShapeError(f"{_MOUNTS}, got {_shown(source)}: {_seen(given)}")
        target, mode = given
    if not isinstance(source, (str, bytes, os.PathLike)) or not isinstance(target, (str, bytes, os.PathLike)):
        raise ShapeError(f"{_MOUNTS}, got {_shown(source)}: {_seen(given)}")
    if mode not in ("ro", "rw"):
        raise ShapeError(f'the mode of {_shown(source)} must be "ro" or "rw", got {_seen(mode)}')
    box = path_bytes(target)
    if box.endswith((b":ro", b":rw")):
        right = os.fsdecode(box[:-3])
        raise ShapeError(f'the mode is apart: {{{_shown(source)}: ("{right}", "{os.fsdecode(box[-2:])}")}}')
    return pb.Mount(source=path_bytes(source), target=box, read_only=mode == "ro")


_TMPFS = 'must be {"/path": "64m"}, with a unit of k, m or g'


def tmpfs(value: Any) -> list[pb.Tmpfs]:
    """`{path: "512m"}`."""
    if not isinstance(value, Mapping):
        raise ShapeError(f"{_TMPFS}, got {_seen(value)}")
    checked = []
    for target, size in value.items():
        if not isinstance(target, (str, bytes, os.PathLike)) or not isinstance(size, str):
            raise ShapeError(f"{_TMPFS}, got {_shown(target)}: {_seen(size)}")
        checked.append(pb.Tmpfs(target=path_bytes(target), size=text(size)))
    return checked


def listener(value: Any) -> None:
    """What is called with each piece of output."""
    if not callable(value):
        raise ShapeError(f"must be a function that takes bytes, got {_seen(value)}")


def files(value: Any) -> tuple[list[tuple[bytes, bytes | memoryview]], list[str]]:
    """`{path: data}`, and all that is wrong in it: what can never be written is told before a session is made."""
    if value is None:
        return [], []
    if not isinstance(value, Mapping):
        return [], [f'must be {{"path": "text or bytes"}}, got {_seen(value)}']
    checked: list[tuple[bytes, bytes | memoryview]] = []
    mistakes: list[str] = []
    shown: dict[tuple[bytes, ...], str] = {}
    for name, data in value.items():
        try:
            path = path_bytes(name)
        except ShapeError as wrong:
            mistakes.append(str(wrong))
            continue
        try:
            shown[_file_names(path)] = _shown(name)
            checked.append((path, data_bytes(data)))
        except ShapeError as wrong:
            mistakes.append(f"{_shown(name)}: {wrong}")
    for names, name in shown.items():
        above = next((names[:length] for length in range(1, len(names)) if names[:length] in shown), None)
        if above is not None:
            mistakes.append(f"{shown[above]} is a file, so that {name} cannot be below it")
    return checked, mistakes


# What Linux holds, as the engine has it.
_PATH_MOST = 4096
_NAME_MOST = 255


def _file_names(path: bytes) -> tuple[bytes, ...]:
    """The names that lead from the workspace to a file, as the engine reads a path."""
    if not path:
        raise ShapeError("an empty path")
    if len(path) > _PATH_MOST:
        raise ShapeError(f"a path of {len(path)} bytes; at most {_PATH_MOST}")
    if b"\0" in path:
        raise ShapeError(f"holds a NUL byte at {path.index(0)}")
    below = path
    if path.startswith(b"/"):
        below = path.removeprefix(b"/workspace")
        if below == path or below[:1] not in (b"", b"/"):
            raise ShapeError("is outside the workspace; a path is relative to it, or absolute below /workspace")
    parts = below.split(b"/")
    if b".." in parts:
        raise ShapeError('".." is not allowed in a path')
    if parts[-1] in (b"", b"."):
        raise ShapeError("names a directory, not a file")
    names = tuple(part for part in parts if part not in (b"", b"."))
    longest = max(map(len, names))
    if longest > _NAME_MOST:
        raise ShapeError(f"a name of {longest} bytes; at most {_NAME_MOST}")
    return names


def decoded_path(path: bytes) -> str:
    """A path as text that `path_bytes` makes the same bytes of again."""
    return path.decode("utf-8", "surrogateescape")


def decoded_paths(paths: Sequence[bytes]) -> list[str]:
    """The same of each."""
    return [decoded_path(path) for path in paths]


def _seen(value: Any) -> str:
    return f"{type(value).__name__} {_shown(value)}"


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python writes no int of more than some thousands of digits
        return "one that is too long to be written"
    return shown if len(shown) <= 80 else shown[:77] + "..."
