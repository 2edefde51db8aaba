"""The pictures that a step left in the workspace, or showed, ready to be shown to a model."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepbox import ExecutionResult, FileChange

MAX_IMAGES: Final = 4
MAX_IMAGE_BYTES: Final = 1 << 20

# SVG is left out: no model takes it as a picture, and it can be read as the text that it is.
_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp"})


@dataclass(frozen=True)
class Image:
    """A picture in the workspace, or one that was shown, which is named so in the place of a path."""

    path: str
    mime_type: str
    data: bytes = field(repr=False)

    @property
    def base64(self) -> str:
        """The bytes in base64."""
        return base64.b64encode(self.data).decode("ascii")

    @property
    def data_url(self) -> str:
        """The picture as a `data:` URL."""
        return f"data:{self.mime_type};base64,{self.base64}"


def image_paths(files: Sequence[FileChange], limit: int = MAX_IMAGES) -> list[str]:
    """The changed files that may be pictures worth showing, in the order of the change list."""
    shown = [
        change.path
        for change in files
        if change.change != "deleted"
        and change.kind == "file"
        and 0 < change.size <= MAX_IMAGE_BYTES
        and PurePosixPath(change.path).suffix.lower() in _SUFFIXES
    ]
    return shown[:limit]


def figures(result: ExecutionResult, limit: int = MAX_IMAGES) -> list[Image]:
    """The pictures that Python code showed."""
    found: list[Image] = []
    for shown in result.results:
        image = as_image(f"figure {len(found) + 1}", shown.png or shown.jpeg or b"")
        if image is not None and len(found) < limit:
            found.append(image)
    return found


def as_image(path: str, data: bytes) -> Image | None:
    """The picture, or None when the bytes are none: a provider refuses a whole request for that."""
    mime_type = _sniff(data)
    if mime_type is None or len(data) > MAX_IMAGE_BYTES:
        return None
    return Image(path, mime_type, data)


def _sniff(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None
