"""A real LlamaIndex agent over the real engine, with LlamaIndex's own mock model."""

from __future__ import annotations

import asyncio
import base64

from agent import run_agent
from llama_index.core.base.llms.types import ImageBlock, TextBlock

from llama_index.tools.stepbox import StepboxToolSpec

# The smallest PNG, so that no plotting package is needed.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_agent_makes_a_mistake_recovers_and_gets_the_picture() -> None:
    calls = [
        {"code": "open('table.csv', 'w').write('a,b\\n1,2\\n')\n{}['total']"},
        {"code": "cat table.csv", "language": "bash"},
        {"code": f"import base64\nopen('chart.png', 'wb').write(base64.b64decode('{PNG}'))"},
    ]
    with StepboxToolSpec(memory_mb=256) as spec:
        failed, read, drawn = asyncio.run(run_agent(spec.to_tool_list(), calls))
    assert str(failed.content).startswith("[exit 1]\n[stderr]\nTraceback")
    assert "KeyError: 'total'" in str(failed.content)
    assert read.content == "[exit 0]\n[stdout]\na,b\n1,2"
    text, picture = drawn.blocks
    assert isinstance(text, TextBlock)
    assert "created chart.png" in text.text
    assert isinstance(picture, ImageBlock)
    assert base64.b64decode(PNG) == picture.resolve_image().read()
