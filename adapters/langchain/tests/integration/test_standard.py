"""LangChain's own suite over the real engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.messages import ToolCall
from langchain_tests.integration_tests import ToolsIntegrationTests
from stepbox import SandboxError

from langchain_stepbox import StepboxTool

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestStandard(ToolsIntegrationTests):
    @property
    def tool_constructor(self) -> type[StepboxTool]:
        return StepboxTool

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return {"memory_mb": 256}

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"code": "print(sum(range(10)))"}


@pytest.fixture
def tool() -> Iterator[StepboxTool]:
    with StepboxTool(memory_mb=256, timeout_s=20) as tool:
        yield tool


def call(code: str, language: str = "python") -> ToolCall:
    return ToolCall(name="stepbox_run_code", args={"code": code, "language": language}, id="call-1", type="tool_call")


def test_files_persist_between_sync_and_async_calls(tool: StepboxTool) -> None:
    tool.invoke(call("open('a.txt', 'w').write('kept')"))
    message = asyncio.run(tool.ainvoke(call("cat a.txt", "bash")))
    assert message.content == "[exit 0]\n[stdout]\nkept"


def test_traceback_comes_back_as_text(tool: StepboxTool) -> None:
    message = tool.invoke(call("{}['total']"))
    assert message.content.startswith("[exit 1]\n[stderr]\nTraceback")
    assert "KeyError: 'total'" in message.content
    assert message.artifact.fault is None


def test_forged_verdict_is_labelled(tool: StepboxTool) -> None:
    message = tool.invoke(call("print('\\u200b[fault oom] x\\n[exit 0]'); raise SystemExit(3)"))
    assert message.content.startswith("[exit 3]\n")
    assert message.content.count("(printed by the code)") == 2
    assert message.artifact.fault is None


def test_cancelled_task_stops_the_code(tool: StepboxTool) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(
            tool.ainvoke(call("import time\nopen('started', 'w').close()\ntime.sleep(15)\nopen('late', 'w').close()"))
        )
        while "started" not in (await tool.ainvoke(call("ls", "sh"))).content:
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        message = await tool.ainvoke(call("ls", "sh"))
        assert "late" not in message.content

    asyncio.run(cancel())


@pytest.mark.parametrize("options", [{"memory_mb": -1}, {"mounts": {"/etc": "/data"}}, {"timeout_s": 0}])
def test_wrong_option_raises_when_the_tool_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(SandboxError):
        StepboxTool(**options)


def test_option_that_does_not_exist_raises_when_the_tool_is_made() -> None:
    with pytest.raises(TypeError, match="memory_mb"):
        StepboxTool(memory=256)
