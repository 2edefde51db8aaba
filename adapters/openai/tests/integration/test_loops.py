"""Both APIs from end to end of the real `openai` client, over the real engine."""

from __future__ import annotations

import asyncio
from typing import Any

from loops import chat_loop, responses_loop

from stepbox_openai import StepboxTools

# The smallest PNG, so that no plotting package is needed.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CALLS: list[dict[str, Any]] = [
    {"code": "open('table.csv', 'w').write('a,b\\n1,2\\n')\n{}['total']", "language": None},
    {"code": "cat table.csv", "language": "bash"},
    {"code": f"import base64\nopen('chart.png', 'wb').write(base64.b64decode('{PNG}'))", "language": "python"},
    {"code": "import time\ntime.sleep(60)", "language": "python"},
]


def test_chat_completions_loop() -> None:
    with StepboxTools(memory_mb=256, timeout_s=3) as tools:
        failed, read, drawn, stopped = (message["content"] for message in chat_loop(tools, CALLS))
    assert failed.startswith("[exit 1]\n[stderr]\nTraceback")
    assert read == "[exit 0]\n[stdout]\na,b\n1,2"
    assert "created chart.png" in drawn
    assert stopped.startswith("[fault timeout] ")


def test_responses_loop() -> None:
    with StepboxTools(memory_mb=256, timeout_s=3) as tools:
        failed, read, drawn, stopped = (message["output"] for message in asyncio.run(responses_loop(tools, CALLS)))
    assert failed.startswith("[exit 1]\n[stderr]\nTraceback")
    assert read == "[exit 0]\n[stdout]\na,b\n1,2"
    assert drawn[1] == {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    assert stopped.startswith("[fault timeout] ")
