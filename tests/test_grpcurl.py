"""Every command of `examples/grpcurl.md`, run in order against a live engine, prints what the document shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from stepbox._pb import sandbox_pb2

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "examples" / "grpcurl.md"
END = "@@ end of block"
ANYTHING = "…"


class Block(NamedTuple):
    """One command, and what is said to come of it."""

    command: str
    kind: str | None
    shown: str


def blocks() -> list[Block]:
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found: list[Block] = []
    for kind, text in fences:
        if kind == "sh":
            found.append(Block(text, None, ""))
        else:
            found[-1] = found[-1]._replace(kind=kind, shown=text)
    return found


def documents(text: str) -> list[Any]:
    decoder, found = json.JSONDecoder(), []
    text = text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].strip()
    return found


def holds(shown: Any, given: Any) -> bool:
    """Whether all that is shown is there; there may be more of an object, and more behind the shown part of a list."""
    if shown == ANYTHING:
        return True
    if isinstance(shown, dict):
        return isinstance(given, dict) and all(key in given and holds(shown[key], given[key]) for key in shown)
    if isinstance(shown, list):
        return isinstance(given, list) and len(given) >= len(shown) and all(map(holds, shown, given))
    return bool(shown == given)


def pattern(shown: str) -> str:
    lines = [
        r"(.*\n)*?" if line == ANYTHING else r"\s*" + re.escape(line.lstrip()) + r"\n" for line in shown.splitlines()
    ]
    return "".join(lines)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each command printed."""
    tools = tmp_path_factory.mktemp("tools")
    (tools / "grpcurl").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "reflection_client.py"}" "$@"\n')
    (tools / "grpcurl").chmod(0o755)
    (tools / "stepbox").symlink_to(os.environ["STEPBOX_BIN"])
    # An engine that a failed command leaves behind would hold the pipe open.
    start = "set -euo pipefail\ntrap 'jobs -p | xargs -r kill' EXIT\n"
    script = start + "".join(f"{block.command}\necho '{END}'\n" for block in blocks())
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"after {done.stdout[-2000:]}\n{done.stderr}"
    return done.stdout.split(f"{END}\n")[:-1]


@pytest.mark.parametrize("number", range(len(blocks())))
def test_a_command_prints_what_the_document_shows(outputs: list[str], number: int) -> None:
    block = blocks()[number]
    if block.kind == "json":
        given, shown = documents(outputs[number]), documents(block.shown)
        assert len(given) == len(shown), outputs[number]
        for one, other in zip(shown, given, strict=True):
            assert holds(one, other), outputs[number]
    elif block.kind == "text":
        assert re.fullmatch(pattern(block.shown), outputs[number]), outputs[number]


def test_every_method_is_called_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    service = sandbox_pb2.DESCRIPTOR.services_by_name["Sandbox"]
    assert [method.name for method in service.methods if f"call {method.name} " not in text] == []
