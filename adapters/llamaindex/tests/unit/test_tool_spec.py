"""The LlamaIndex tool spec over a scripted sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent import run_agent
from llama_index.core.base.llms.types import ImageBlock, TextBlock
from llama_index.core.tools.tool_spec.base import BaseToolSpec
from stepbox import SandboxError
from stepbox.testing import AsyncScriptedSandbox, Call, created, result

from llama_index.tools.stepbox import NothingRanError, StepboxToolSpec

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def test_class_is_a_tool_spec() -> None:
    assert BaseToolSpec in StepboxToolSpec.__mro__


def test_tool_has_the_description_and_the_schema() -> None:
    (tool,) = StepboxToolSpec(AsyncScriptedSandbox).to_tool_list()
    assert tool.metadata.name == "stepbox_run_code"
    assert "State: files below /workspace" in tool.metadata.description
    schema = tool.metadata.get_parameters_dict()
    assert schema["required"] == ["code"]
    assert schema["properties"]["language"]["enum"] == ["python", "bash", "sh", "javascript"]


def test_agent_gets_text_and_pictures_and_recovers_from_an_error() -> None:
    failed = result(stderr="KeyError: 'x'\n", exit_code=1)
    drawn = result("drawn\n", files=[created("a.png", len(PNG))])
    sandbox = AsyncScriptedSandbox(failed, drawn, files={"a.png": PNG})
    with StepboxToolSpec(lambda: sandbox) as spec:
        messages = asyncio.run(run_agent(spec.to_tool_list(), [{"code": "wrong"}, {"code": "right"}]))
    assert messages[0].content == "[exit 1]\n[stderr]\nKeyError: 'x'"
    assert [type(block) for block in messages[1].blocks] == [TextBlock, ImageBlock]
    assert sandbox.calls == [Call("wrong", "python"), Call("right", "python")]
    assert sandbox.times_closed == 1


def test_unknown_argument_runs_nothing_and_is_told_to_the_model() -> None:
    sandbox = AsyncScriptedSandbox()
    with StepboxToolSpec(lambda: sandbox) as spec:
        calls: list[dict[str, Any]] = [
            {"code": "x", "timeout": 5},
            {"code": "x", "language": "cobol"},
            {"language": "sh"},
        ]
        messages = asyncio.run(run_agent(spec.to_tool_list(), calls))
    assert "timeout" in str(messages[0].content)
    assert "cobol" in str(messages[1].content)
    assert "code" in str(messages[2].content)
    assert sandbox.calls == []


def test_result_is_kept_beside_the_blocks() -> None:
    answer = result("1")
    (tool,) = StepboxToolSpec(lambda: AsyncScriptedSandbox(answer)).to_tool_list()
    output = tool.call(code="print(1)")
    assert output.content == "[exit 0]\n[stdout]\n1"
    assert output.raw_output.result is answer


def test_refused_call_raises_what_the_agent_shows_as_an_error() -> None:
    spec = StepboxToolSpec(lambda: AsyncScriptedSandbox(SandboxError("too large")))
    with pytest.raises(NothingRanError, match="Nothing ran: too large"):
        spec.run_code("x")
