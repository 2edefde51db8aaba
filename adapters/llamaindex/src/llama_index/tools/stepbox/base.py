"""`StepboxToolSpec`: LlamaIndex's tool call in, text and image blocks out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from llama_index.core.base.llms.types import ContentBlock, ImageBlock, TextBlock
from llama_index.core.tools import ToolMetadata
from llama_index.core.tools.tool_spec.base import BaseToolSpec
from pydantic import BaseModel, ConfigDict, Field
from stepbox.images import MAX_IMAGES
from stepbox.text import MAX_CHARS
from stepbox.tool import CODE_DESCRIPTION, LANGUAGE_DESCRIPTION, TOOL_NAME, CodeTool, Language, Reply

if TYPE_CHECKING:
    from llama_index.core.tools import FunctionTool
    from stepbox import ExecutionResult
    from stepbox.tool import SandboxSource
    from typing_extensions import Self


class RunCodeInput(BaseModel):
    """What the model gives. An argument that is not here is refused, and nothing runs."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description=CODE_DESCRIPTION)
    language: Language = Field(default="python", description=LANGUAGE_DESCRIPTION)


class NothingRanError(Exception):
    """The call was refused, for a reason that a model can act on. An agent shows it as an error of the tool."""


class Blocks(list[ContentBlock]):
    """What goes to the model; `result` is the whole `stepbox.ExecutionResult` (of a tool's `raw_output`, too)."""

    def __init__(self, blocks: list[ContentBlock], result: ExecutionResult) -> None:
        super().__init__(blocks)
        self.result = result


class StepboxToolSpec(BaseToolSpec):
    """Runs code in a Linux sandbox that is made at the first call and shared by all that follow.

    Args:
        sandbox: An open sandbox to use instead, which stays the caller's to close; or a function that makes an
            `AsyncSandbox`.
        max_chars: The length of the text that goes to the model.
        max_images: How many pictures go with it; 0 turns them off.
        options: The options of `stepbox.Sandbox`, such as `memory_mb=256`; a mistake in one raises here.
    """

    spec_functions: ClassVar[list[str | tuple[str, str]]] = [("run_code", "arun_code")]  # type: ignore[misc]  # theirs is no ClassVar

    def __init__(
        self,
        sandbox: SandboxSource | None = None,
        *,
        max_chars: int = MAX_CHARS,
        max_images: int = MAX_IMAGES,
        **options: Any,
    ) -> None:
        self._tool = CodeTool(sandbox, max_chars=max_chars, max_images=max_images, **options)

    def run_code(self, code: str, language: Language = "python") -> Blocks:
        """Runs code in the sandbox and blocks until it has ended."""
        return _blocks(self._tool.run(code, language))

    async def arun_code(self, code: str, language: Language = "python") -> Blocks:
        """Runs code in the sandbox; cancelling stops it."""
        return _blocks(await self._tool.arun(code, language))

    def to_tool_list(
        self,
        spec_functions: list[str | tuple[str, str]] | None = None,
        func_to_metadata_mapping: dict[str, ToolMetadata] | None = None,
    ) -> list[FunctionTool]:
        """The tool, described as its sandbox is."""
        metadata = ToolMetadata(name=TOOL_NAME, description=self._tool.description, fn_schema=RunCodeInput)
        described = {"run_code": metadata, "arun_code": metadata, **(func_to_metadata_mapping or {})}
        return super().to_tool_list(spec_functions, described)

    def close(self) -> None:
        """Removes the sandbox that was made here and its private workspace."""
        self._tool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.close)


def _blocks(reply: Reply) -> Blocks:
    if reply.result is None:
        raise NothingRanError(reply.text)
    pictures = [ImageBlock(image=image.data, image_mimetype=image.mime_type) for image in reply.images]
    return Blocks([TextBlock(text=reply.text), *pictures], reply.result)
