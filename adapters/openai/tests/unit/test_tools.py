"""The OpenAI tool over a scripted sandbox."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel
from stepbox import SandboxError
from stepbox.testing import AsyncScriptedSandbox, Call, created, result

from stepbox_openai import RunCode, StepboxTools

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def chat_call(arguments: Any, name: str = "stepbox_run_code") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function", "id": "call-1", "function": {"name": name, "arguments": text}}


def responses_call(arguments: Any, name: str = "stepbox_run_code") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function_call", "call_id": "call-1", "name": name, "arguments": text}


class _Schema(BaseModel):
    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        parameters = StepboxTools(AsyncScriptedSandbox).responses_tool()["parameters"]
        assert parameters is not None
        return parameters


def test_schemas_are_fixed_points_of_the_sdks_strict_form() -> None:
    tools = StepboxTools(AsyncScriptedSandbox)
    chat, responses = tools.chat_tool()["function"], tools.responses_tool()
    assert chat["strict"] is responses["strict"] is True
    assert chat["parameters"] == responses["parameters"] == to_strict_json_schema(_Schema)
    assert chat["parameters"]["required"] == ["code", "language"]
    assert chat["parameters"]["additionalProperties"] is False
    assert to_strict_json_schema(RunCode)["properties"] == chat["parameters"]["properties"]


def test_chat_call_is_answered_with_a_tool_message() -> None:
    sandbox = AsyncScriptedSandbox(result("1\n"))
    with StepboxTools(lambda: sandbox) as tools:
        message = tools.handle_tool_call(chat_call({"code": "print(1)", "language": None}))
    assert message == {"role": "tool", "tool_call_id": "call-1", "content": "[exit 0]\n[stdout]\n1"}
    assert sandbox.calls == [Call("print(1)", "python")]


def test_responses_call_is_answered_with_text_and_pictures() -> None:
    sandbox = AsyncScriptedSandbox(result(files=[created("a.png", len(PNG))]), files={"a.png": PNG})
    with StepboxTools(lambda: sandbox) as tools:
        message = asyncio.run(tools.ahandle_tool_call(responses_call({"code": "draw", "language": "python"})))
    assert (message["type"], message["call_id"]) == ("function_call_output", "call-1")
    text, image = message["output"]
    assert text["text"].endswith("[images] a.png")
    assert image["image_url"].startswith("data:image/png;base64,iVBORw0KGgo")


@pytest.mark.parametrize(
    "arguments",
    ["", "{", "null", "[]", '{"code": 1}', '{"code": "x", "timeout": 3}', '{"code": "x", "language": "cobol"}', "{}"],
)
@pytest.mark.parametrize("shape", [chat_call, responses_call])
def test_wrong_arguments_are_told_to_the_model_and_nothing_runs(arguments: str, shape: Any) -> None:
    sandbox = AsyncScriptedSandbox()
    with StepboxTools(lambda: sandbox) as tools:
        for message in (
            tools.handle_tool_call(shape(arguments)),
            asyncio.run(tools.ahandle_tool_call(shape(arguments))),
        ):
            text = message["content" if shape is chat_call else "output"]
            assert text.startswith("[sandbox] Nothing ran, the arguments are wrong: ")
    assert sandbox.times_opened == 0


def test_items_that_are_not_for_this_tool_are_passed_over() -> None:
    items = [
        {"type": "reasoning", "id": "r"},
        responses_call({"code": "1", "language": None}),
        responses_call({}, name="other"),
        {"type": "message", "content": []},
    ]
    with StepboxTools(AsyncScriptedSandbox) as tools:
        assert [reply["call_id"] for reply in tools.handle_tool_calls(items)] == ["call-1"]
        assert len(asyncio.run(tools.ahandle_tool_calls(items))) == 1
        assert tools.handle_tool_calls(None) == []
        with pytest.raises(ValueError, match="not a call of stepbox_run_code"):
            tools.handle_tool_call(items[2])


def test_refused_call_is_told_to_the_model() -> None:
    with StepboxTools(lambda: AsyncScriptedSandbox(SandboxError("too large"))) as tools:
        message = tools.handle_tool_call(chat_call({"code": "x", "language": None}))
    assert message["content"] == "[sandbox] Nothing ran: too large"
