"""LangChain's own agent loop over a scripted sandbox, with LangChain's own fake model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from stepbox.testing import AsyncScriptedSandbox, created, result

from langchain_stepbox import StepboxTool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import Runnable

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


class Model(FakeMessagesListChatModel):
    """LangChain's fake, which lacks this method."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        return self


def asks(number: int, **args: Any) -> AIMessage:
    call = ToolCall(name="stepbox_run_code", args=args, id=f"call-{number}", type="tool_call")
    return AIMessage(content="", tool_calls=[call])


def test_agent_recovers_from_each_kind_of_mistake_and_gets_the_picture() -> None:
    failed = result(stderr="KeyError: 'x'\n", exit_code=1)
    drawn = result("drawn\n", files=[created("a.png", len(PNG))])
    sandbox = AsyncScriptedSandbox(failed, drawn, files={"a.png": PNG})
    script = [asks(1, code="wrong"), asks(2, code="x", timeout=3), asks(3, code="right"), AIMessage(content="done")]
    with StepboxTool(lambda: sandbox) as tool:
        agent = create_agent(Model(responses=list(script)), tools=[tool])
        messages = asyncio.run(agent.ainvoke({"messages": [HumanMessage("go")]}))["messages"]
    first, refused, last = (message for message in messages if isinstance(message, ToolMessage))
    assert first.content == "[exit 1]\n[stderr]\nKeyError: 'x'"
    assert refused.status == "error"
    assert "timeout" in str(refused.content)
    assert [block["type"] for block in last.content if isinstance(block, dict)] == ["text", "image"]
    assert last.artifact is drawn
    assert messages[-1].content == "done"
    assert len(sandbox.calls) == 2
