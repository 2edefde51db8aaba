"""Finding files and lines, and replacing text, as generators of calls: the logic once, for both faces."""

from __future__ import annotations

from typing import Any

from stepbox import _calls as calls
from stepbox import _convert, _shapes
from stepbox._calls import Operation, Pull, Unary
from stepbox._errors import SandboxError
from stepbox._operations import SessionFacts, _optional, _shaped
from stepbox._pb import sandbox_pb2 as pb
from stepbox._results import Edit, FileStat, GrepMatch, GrepMatches

# The engine bounds each by itself; this is for one that does not answer.
SEARCH_S = 60.0


def list_dir(session: SessionFacts, path: Any) -> Operation[list[FileStat]]:
    """What is in a directory, not what is below."""
    shaped = _shaped(("path", path, _shapes.path_bytes))
    request = pb.ListFilesRequest(session_id=session.id, **shaped)
    return (yield from _entries(calls.LIST_FILES, request))


def glob(session: SessionFacts, pattern: Any, subdir: Any, files_only: Any) -> Operation[list[str]]:
    """The paths that match."""
    shaped = _shaped(
        ("pattern", pattern, _shapes.text),
        ("subdir", subdir, _shapes.path_bytes),
        ("files_only", files_only, _shapes.boolean),
    )
    request = pb.GlobFilesRequest(session_id=session.id, path=shaped.pop("subdir"), **shaped)
    return [entry.path for entry in (yield from _entries(calls.GLOB_FILES, request))]


def _entries(method: calls.Method[Any, Any], request: Any) -> Operation[list[FileStat]]:
    found: list[FileStat] = []
    cut: list[bool] = []

    def take(message: pb.ListFilesResponse) -> None:
        found.extend(map(_convert.file_stat, message.files))
        if message.truncated:
            cut.append(True)

    yield Pull(method, request, take, SEARCH_S)
    if cut:
        raise SandboxError(
            f"too many entries: the search ended at its budget after {len(found)} that it found; name a directory",
            reason="too_large",
        )
    return found


def grep(
    session: SessionFacts,
    pattern: Any,
    subdir: Any,
    *,
    ignore_case: Any,
    literal: Any,
    glob: Any,
    max_count: Any,
) -> Operation[GrepMatches]:
    """The lines that match."""
    shaped = _shaped(
        ("pattern", pattern, _shapes.text),
        ("subdir", subdir, _shapes.path_bytes),
        ("ignore_case", ignore_case, _shapes.boolean),
        ("literal", literal, _shapes.boolean),
        ("glob", glob, _optional(_shapes.text)),
        ("max_count", max_count, _line_count),
    )
    found = GrepMatches()

    def take(message: pb.GrepFilesResponse) -> None:
        found.extend(map(_grep_match, message.matches))
        found.truncated |= message.truncated
        found.binary_files += message.binary_files_count

    request = pb.GrepFilesRequest(session_id=session.id, path=shaped.pop("subdir"), **shaped)
    yield Pull(calls.GREP_FILES, request, take, SEARCH_S)
    return found


def _line_count(value: Any) -> int:
    count = _shapes.count(value)
    if not 1 <= count < 2**32:
        raise _shapes.ShapeError(f"must be between 1 and {2**32 - 1}, got {count}")
    return count


def _grep_match(message: pb.GrepMatch) -> GrepMatch:
    return GrepMatch(
        path=_shapes.decoded_path(message.path),
        line_number=message.line_number,
        line=message.line.decode("utf-8", "replace"),
        path_bytes=message.path,
        line_bytes=message.line,
    )


def edit_file(session: SessionFacts, path: Any, old: Any, new: Any, replace_all: Any) -> Operation[Edit]:
    """Replaces text in a file."""
    shaped = _shaped(
        ("path", path, _shapes.path_bytes),
        ("old", old, _shapes.data_bytes),
        ("new", new, _shapes.data_bytes),
        ("replace_all", replace_all, _shapes.boolean),
    )
    request = pb.EditFileRequest(
        session_id=session.id,
        path=shaped["path"],
        old_text=bytes(shaped["old"]),
        new_text=bytes(shaped["new"]),
        replace_all=shaped["replace_all"],
    )
    reply = yield Unary(calls.EDIT_FILE, request, SEARCH_S)
    return Edit(
        path=_shapes.decoded_path(shaped["path"]),
        replacements=reply.replacements_count,
        diff=reply.diff if reply.HasField("diff") else None,
        diff_reason=reply.diff_reason if reply.HasField("diff_reason") else None,
    )
