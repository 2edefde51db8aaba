"""Agent loops on the real `openai` client, whose transport is a function: no socket, no key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
from openai import AsyncOpenAI, OpenAI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepbox_openai import StepboxTools


def chat_loop(tools: StepboxTools, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A Chat Completions loop in which the model makes these calls, one a turn; gives back the tool messages."""
    requests: list[dict[str, Any]] = []
    client = OpenAI(
        http_client=httpx2.Client(transport=_transport(_chat, calls, requests)), base_url="http://stub/v1", api_key="x"
    )
    messages: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        completion = client.chat.completions.create(model="stub", messages=messages, tools=[tools.chat_tool()])
        message = completion.choices[0].message
        messages.append(message)
        replies = tools.handle_tool_calls(message.tool_calls)
        if not replies:
            return [sent for sent in requests[-1]["messages"] if sent["role"] == "tool"]
        messages += replies


async def responses_loop(tools: StepboxTools, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A Responses loop in which the model makes these calls, one a turn; gives back the outputs that were sent."""
    requests: list[dict[str, Any]] = []
    http = httpx2.AsyncClient(transport=_transport(_responses, calls, requests))
    client = AsyncOpenAI(http_client=http, base_url="http://stub/v1", api_key="x")
    conversation: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        response = await client.responses.create(model="stub", input=conversation, tools=[tools.responses_tool()])
        conversation += response.output
        replies = await tools.ahandle_tool_calls(response.output)
        if not replies:
            return [sent for sent in requests[-1]["input"] if sent.get("type") == "function_call_output"]
        conversation += replies


def _transport(answer: Any, calls: Sequence[dict[str, Any]], requests: list[dict[str, Any]]) -> httpx2.MockTransport:
    def handle(request: httpx2.Request) -> httpx2.Response:
        requests.append(json.loads(request.content))
        turn = len(requests) - 1
        return httpx2.Response(200, json=answer(turn, json.dumps(calls[turn]) if turn < len(calls) else None))

    return httpx2.MockTransport(handle)


def _chat(turn: int, arguments: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "done"}
    if arguments is not None:
        function = {"name": "stepbox_run_code", "arguments": arguments}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"type": "function", "id": f"call-{turn}", "function": function}]
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]}


def _responses(turn: int, arguments: str | None) -> dict[str, Any]:
    item: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": "done", "annotations": []}]
    if arguments is not None:
        item = {"type": "function_call", "id": f"f{turn}", "call_id": f"call-{turn}", "status": "completed"}
        item |= {"name": "stepbox_run_code", "arguments": arguments}
    response = {"id": "r", "object": "response", "created_at": 0, "model": "stub", "status": "completed"}
    return {**response, "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
