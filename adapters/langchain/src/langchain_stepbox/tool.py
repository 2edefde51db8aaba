"""`StepboxTool`: LangChain's tool call in, content for the model and the whole result for the program out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from langchain_core.tools import ArgsSchema, BaseTool, ToolException
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation
from stepbox.images import MAX_IMAGES
from stepbox.text import MAX_CHARS
from stepbox.tool import CODE_DESCRIPTION, LANGUAGE_DESCRIPTION, TOOL_NAME, CodeTool, Language, Reply, refusal

if TYPE_CHECKING:
    from typing import Self

    from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
    from pydantic import ValidationError
    from pydantic.v1 import ValidationError as ValidationErrorV1
    from stepbox import ExecutionResult
    from stepbox.tool import SandboxSource

    Answer = tuple[str | list[dict[str, Any]], ExecutionResult]


class RunCodeInput(BaseModel):
    """What the model gives. An argument that is not here is refused, and nothing runs."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description=CODE_DESCRIPTION)
    language: Language = Field(default="python", description=LANGUAGE_DESCRIPTION)


class StepboxTool(BaseTool):
    """Runs code in a Linux sandbox that is made at the first call and shared by all that follow.

    The message to the model is the rendered result, with the pictures that the code saved as image blocks. Its artifact
    is the `stepbox.ExecutionResult`. Code that fails is an answer like any other; only when nothing ran does
    the message have `status="error"`. Cancelling the task of an asynchronous call stops the code.

    Args:
        sandbox: An open sandbox to use instead, which stays the caller's to close; or a function that makes an
            `AsyncSandbox`.
        max_chars: The length of the text that goes to the model.
        max_images: How many pictures go with it; 0 turns them off.
        fields: The fields of `BaseTool` (`name`, `description`, `callbacks`, ...); everything else is an option of
            `stepbox.Sandbox`, such as `memory_mb=256`, and a mistake in one raises here.
    """

    name: str = TOOL_NAME
    description: str = ""
    args_schema: Annotated[ArgsSchema | None, SkipValidation()] = RunCodeInput
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: bool | str | Callable[[ToolException], Any] | None = True
    handle_validation_error: bool | str | Callable[[Any], str] | None = Field(default_factory=lambda: _refused)

    _tool: CodeTool = PrivateAttr()

    def __init__(
        self,
        sandbox: SandboxSource | None = None,
        *,
        max_chars: int = MAX_CHARS,
        max_images: int = MAX_IMAGES,
        **fields: Any,
    ) -> None:
        own = {name: fields.pop(name) for name in type(self).model_fields if name in fields}
        tool = CodeTool(sandbox, max_chars=max_chars, max_images=max_images, **fields)
        super().__init__(**{"description": tool.description, **own})
        self._tool = tool

    def _run(
        self,
        code: str,
        language: Language = "python",
        run_manager: CallbackManagerForToolRun | None = None,  # noqa: ARG002 - LangChain gives it by name
    ) -> Answer:
        return _answer(self._tool.run(code, language))

    async def _arun(
        self,
        code: str,
        language: Language = "python",
        run_manager: AsyncCallbackManagerForToolRun | None = None,  # noqa: ARG002 - LangChain gives it by name
    ) -> Answer:
        return _answer(await self._tool.arun(code, language))

    def close(self) -> None:
        """Removes the sandbox that was made here and its private workspace."""
        self._tool.close()

    async def aclose(self) -> None:
        """The same, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def _answer(reply: Reply) -> Answer:
    if reply.result is None:
        raise ToolException(reply.text)
    if not reply.images:
        return reply.text, reply.result
    blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}]
    blocks += [{"type": "image", "base64": image.base64, "mime_type": image.mime_type} for image in reply.images]
    return blocks, reply.result


def _refused(error: ValidationError | ValidationErrorV1) -> str:
    return refusal((".".join(map(str, mistake["loc"])), mistake["msg"]) for mistake in error.errors())
