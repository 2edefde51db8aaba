"""The LangChain tool over a scripted sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import ToolCall, ToolMessage
from langchain_tests.unit_tests import ToolsUnitTests
from stepbox import EngineError, ExecutionResult, SandboxError, SandboxFault
from stepbox.testing import AsyncScriptedSandbox, Call, created, result

from langchain_stepbox import StepboxTool

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


class TestStandard(ToolsUnitTests):
    @property
    def tool_constructor(self) -> type[StepboxTool]:
        return StepboxTool

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return {"sandbox": AsyncScriptedSandbox}

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"code": "print(1)", "language": "python"}


def call(**args: Any) -> ToolCall:
    return ToolCall(name="stepbox_run_code", args=args, id="call-1", type="tool_call")


def test_exception_of_the_code_is_an_ordinary_answer() -> None:
    answer = result(stderr="KeyError: 'x'\n", exit_code=1)
    message = StepboxTool(lambda: AsyncScriptedSandbox(answer)).invoke(call(code="{}['x']"))
    assert isinstance(message, ToolMessage)
    assert message.content == "[exit 1]\n[stderr]\nKeyError: 'x'"
    assert message.status == "success"
    assert message.artifact is answer


def test_fault_is_labelled_and_in_the_artifact() -> None:
    fault = SandboxFault("oom", "more than 64 MiB of memory")
    message = StepboxTool(lambda: AsyncScriptedSandbox(result(exit_code=137, fault=fault))).invoke(call(code="x"))
    assert message.content.startswith("[fault oom] more than 64 MiB of memory\n")
    assert message.artifact.fault is fault


def test_pictures_are_image_blocks() -> None:
    sandbox = AsyncScriptedSandbox(result(files=[created("a.png", len(PNG))]), files={"a.png": PNG})
    message = asyncio.run(StepboxTool(lambda: sandbox).ainvoke(call(code="draw")))
    assert [block["type"] for block in message.content] == ["text", "image"]
    assert message.content[1]["mime_type"] == "image/png"
    assert message.content_blocks[1]["base64"].startswith("iVBORw0KGgo")


@pytest.mark.parametrize(
    "args", [{"code": "x", "timeout": 5}, {"language": "bash"}, {"code": "x", "language": "cobol"}, {"code": ["x"]}]
)
def test_wrong_arguments_are_told_to_the_model_and_nothing_runs(args: dict[str, Any]) -> None:
    sandbox = AsyncScriptedSandbox()
    tool = StepboxTool(lambda: sandbox)
    for message in (tool.invoke(call(**args)), asyncio.run(tool.ainvoke(call(**args)))):
        assert message.content.startswith("[sandbox] Nothing ran, the arguments are wrong: ")
        assert message.status == "error"
    assert sandbox.times_opened == 0


def test_fenced_code_is_accepted() -> None:
    sandbox = AsyncScriptedSandbox()
    StepboxTool(lambda: sandbox).invoke({"code": "```python\nprint(1)\n```"})
    assert sandbox.calls == [Call("print(1)\n", "python")]


def test_refused_call_is_an_error_message_and_a_dead_engine_is_raised() -> None:
    tool = StepboxTool(lambda: AsyncScriptedSandbox(SandboxError("too large"), EngineError("engine not found")))
    message = tool.invoke(call(code="x"))
    assert (message.status, message.content) == ("error", "[sandbox] Nothing ran: too large")
    with pytest.raises(EngineError):
        tool.invoke(call(code="x"))


def test_cancelled_task_cancels_the_step() -> None:
    sandbox = AsyncScriptedSandbox()
    sandbox.hangs = True

    async def cancel() -> None:
        task = asyncio.create_task(StepboxTool(lambda: sandbox).ainvoke(call(code="wait")))
        await asyncio.to_thread(sandbox.called.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert sandbox.times_cancelled == 1


def test_context_manager_closes_the_sandbox() -> None:
    sandbox = AsyncScriptedSandbox()
    with StepboxTool(lambda: sandbox) as tool:
        assert isinstance(tool.invoke(call(code="x")).artifact, ExecutionResult)
    assert sandbox.times_closed == 1


def test_name_and_description_can_be_given() -> None:
    tool = StepboxTool(AsyncScriptedSandbox, name="python", description="Runs Python.")
    assert (tool.name, tool.description) == ("python", "Runs Python.")
    assert "State: files below /workspace" in StepboxTool(AsyncScriptedSandbox).description
