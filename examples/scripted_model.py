"""A chat model that follows a script: no key, no network, the same words every time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.callbacks import CallbackManagerForLLMRun
    from langchain_core.runnables import Runnable


class Turn(NamedTuple):
    """What the model says, and the code that it then wants to run; no code ends the conversation."""

    says: str
    code: str | None = None
    language: str = "python"


class ScriptedModel(BaseChatModel):
    """Answers with the turn that follows as many tool replies as it has been given."""

    turns: list[Turn]
    tool_name: str

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        """The script knows its tool already."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        answered = sum(isinstance(message, ToolMessage) for message in messages)
        turn = self.turns[answered]
        calls = []
        if turn.code is not None:
            args = {"code": turn.code, "language": turn.language}
            calls = [ToolCall(name=self.tool_name, args=args, id=f"call-{answered + 1}", type="tool_call")]
        message = AIMessage(content=turn.says, tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])
