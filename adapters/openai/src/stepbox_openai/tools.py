"""`StepboxTools`: a tool call of Chat Completions or Responses in, the message that answers it out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from stepbox.images import MAX_IMAGES
from stepbox.text import MAX_CHARS
from stepbox.tool import TOOL_NAME, CodeTool, Reply, refusal

from stepbox_openai.calls import ToolCall, parse_tool_call
from stepbox_openai.schema import RunCode, strict_schema

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam
    from openai.types.responses import FunctionToolParam
    from stepbox.tool import SandboxSource
    from typing_extensions import Self


class StepboxTools:
    """Runs code in a Linux sandbox that is made at the first call and shared by all that follow.

    Args:
        sandbox: An open sandbox to use instead, which stays the caller's to close; or a function that makes an
            `AsyncSandbox`.
        max_chars: The length of the text that goes to the model.
        max_images: How many pictures go with it, in Responses; 0 turns them off. Chat Completions takes text alone.
        options: The options of `stepbox.Sandbox`, such as `memory_mb=256`; a mistake in one raises here.
    """

    def __init__(
        self,
        sandbox: SandboxSource | None = None,
        *,
        max_chars: int = MAX_CHARS,
        max_images: int = MAX_IMAGES,
        **options: Any,
    ) -> None:
        self._tool = CodeTool(sandbox, max_chars=max_chars, max_images=max_images, **options)

    def chat_tool(self) -> ChatCompletionFunctionToolParam:
        """The tool for `client.chat.completions.create(tools=[...])`."""
        return {
            "type": "function",
            "function": {
                "name": TOOL_NAME,
                "description": self._tool.description,
                "parameters": strict_schema(),
                "strict": True,
            },
        }

    def responses_tool(self) -> FunctionToolParam:
        """The tool for `client.responses.create(tools=[...])`."""
        return {
            "type": "function",
            "name": TOOL_NAME,
            "description": self._tool.description,
            "parameters": strict_schema(),
            "strict": True,
        }

    def handle_tool_call(self, call: Any) -> dict[str, Any]:
        """Runs one call of this tool and gives back the message that answers it.

        Args:
            call: An item of `message.tool_calls` or of `response.output`, or the dictionary that it travels as.

        Raises:
            ValueError: It is not a call of this tool; nothing ran.
            StepboxError: The sandbox cannot be made or the engine cannot be reached: the operator's to mend.
        """
        ours = _ours(call)
        return _message(ours, self._run(ours))

    async def ahandle_tool_call(self, call: Any) -> dict[str, Any]:
        """The same, awaited; cancelling stops the code."""
        ours = _ours(call)
        return _message(ours, await self._arun(ours))

    def handle_tool_calls(self, calls: Iterable[Any] | None) -> list[dict[str, Any]]:
        """The answers to those of the calls that are for this tool, one after the other; the rest is passed over."""
        return [self.handle_tool_call(call) for call in _listed(calls) if is_ours(call)]

    async def ahandle_tool_calls(self, calls: Iterable[Any] | None) -> list[dict[str, Any]]:
        """The same at once; the answers are in the order of the calls."""
        return await asyncio.gather(*(self.ahandle_tool_call(call) for call in _listed(calls) if is_ours(call)))

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

    def _run(self, call: ToolCall) -> Reply:
        parsed = _parse(call.arguments)
        return parsed if isinstance(parsed, Reply) else self._tool.run(parsed.code, parsed.language or "python")

    async def _arun(self, call: ToolCall) -> Reply:
        parsed = _parse(call.arguments)
        return parsed if isinstance(parsed, Reply) else await self._tool.arun(parsed.code, parsed.language or "python")


def is_ours(call: Any) -> bool:
    """Whether this is a call of the tool."""
    parsed = parse_tool_call(call)
    return parsed is not None and parsed.name == TOOL_NAME


def _ours(call: Any) -> ToolCall:
    parsed = parse_tool_call(call)
    if parsed is None or parsed.name != TOOL_NAME:
        raise ValueError(f"not a call of {TOOL_NAME}: {str(call)[:200]}")
    return parsed


def _listed(calls: Iterable[Any] | None) -> Iterable[Any]:
    if calls is None:
        return ()
    # A model of the SDK is iterable too: by its fields.
    single = isinstance(calls, (str, bytes, Mapping)) or hasattr(calls, "model_dump")
    if single or not isinstance(calls, Iterable):
        raise TypeError(f"calls must be a list of tool calls, got {type(calls).__name__}; write [call]")
    return calls


def _parse(arguments: str) -> RunCode | Reply:
    try:
        return RunCode.model_validate_json(arguments)
    except ValidationError as error:
        return Reply(refusal((".".join(map(str, mistake["loc"])), mistake["msg"]) for mistake in error.errors()))


def _message(call: ToolCall, reply: Reply) -> dict[str, Any]:
    if not call.in_responses:
        return {"role": "tool", "tool_call_id": call.id, "content": reply.text}
    output: str | list[dict[str, Any]] = reply.text
    if reply.images:
        output = [{"type": "input_text", "text": reply.text}]
        output += [{"type": "input_image", "image_url": image.data_url, "detail": "auto"} for image in reply.images]
    return {"type": "function_call_output", "call_id": call.id, "output": output}
