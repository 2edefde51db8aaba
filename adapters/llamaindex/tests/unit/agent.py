"""A scripted model of LlamaIndex's own, and an agent around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.tools import FunctionTool


async def run_agent(tools: Sequence[FunctionTool], calls: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    """Has the agent make these calls, one a turn; gives back the tool messages that its model got."""
    seen: list[ChatMessage] = []

    def respond(messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
        seen[:] = [message for message in messages if message.role == "tool"]
        turn = len(seen)
        if turn == len(calls):
            return ChatMessage(role="assistant", blocks=[TextBlock(text="done")])
        call = ToolCallBlock(tool_call_id=f"call-{turn}", tool_name="stepbox_run_code", tool_kwargs=calls[turn])
        return ChatMessage(role="assistant", blocks=[call])

    model = MockFunctionCallingLLM(response_generator=respond, is_chat_model=True)
    await FunctionAgent(tools=list(tools), llm=model, streaming=False).run("go")
    return seen
