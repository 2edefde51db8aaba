"""Both APIs from end to end of the real `openai` client, over a scripted sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

from loops import chat_loop, responses_loop
from stepbox.testing import AsyncScriptedSandbox, created, result

from stepbox_openai import StepboxTools

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
CALLS: list[dict[str, Any]] = [
    {"code": "wrong", "language": None},
    {"code": "right", "language": "bash", "timeout": 1},
    {"code": "x", "language": "sh"},
]


def scripted() -> AsyncScriptedSandbox:
    failed = result(stderr="KeyError: 'x'\n", exit_code=1)
    drawn = result("drawn\n", files=[created("a.png", len(PNG))])
    return AsyncScriptedSandbox(failed, drawn, files={"a.png": PNG})


def test_chat_completions_loop_recovers_from_each_kind_of_mistake() -> None:
    with StepboxTools(scripted) as tools:
        texts = [message["content"] for message in chat_loop(tools, CALLS)]
    assert texts[0] == "[exit 1]\n[stderr]\nKeyError: 'x'"
    assert texts[1].startswith("[sandbox] Nothing ran, the arguments are wrong: timeout: ")
    assert texts[2].startswith("[exit 0]\n[stdout]\ndrawn\n")


def test_responses_loop_recovers_from_each_kind_of_mistake_and_gets_the_picture() -> None:
    with StepboxTools(scripted) as tools:
        outputs = [message["output"] for message in asyncio.run(responses_loop(tools, CALLS))]
    assert outputs[0] == "[exit 1]\n[stderr]\nKeyError: 'x'"
    assert outputs[1].startswith("[sandbox] Nothing ran, the arguments are wrong: timeout: ")
    assert [part["type"] for part in outputs[2]] == ["input_text", "input_image"]
