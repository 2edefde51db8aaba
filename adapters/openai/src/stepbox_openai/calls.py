"""A tool call of either API, as an object of the `openai` package or as the dictionary that it travels as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """What both APIs say of a call; `in_responses` tells which of them it came from."""

    id: str
    name: str
    arguments: str
    in_responses: bool


def parse_tool_call(call: Any) -> ToolCall | None:
    """The call, or None for anything that is no call of a function: a message, reasoning, another kind of tool."""
    kind = _get(call, "type")
    if kind == "function_call":
        return ToolCall(_get(call, "call_id"), _get(call, "name"), _get(call, "arguments"), in_responses=True)
    if kind == "function" and (function := _get(call, "function")) is not None:
        return ToolCall(_get(call, "id"), _get(function, "name"), _get(function, "arguments"), in_responses=False)
    return None


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
