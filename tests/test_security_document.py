"""Each test that `engine/SECURITY.md` names is there: a claim without its test would be one that nothing holds."""

from __future__ import annotations

import re
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent / "engine"
E2E = ENGINE.parent / "adapters" / "python" / "tests" / "e2e"
# `place/file.py::name`, or a file alone; without a directory it is one of the end-to-end tests.
NAMED = re.compile(r"`(?P<file>[\w./]*\btests/[\w./]+\.(?:py|rs)|test_\w+\.py)(?:::(?P<name>\w+))?`")


def test_every_test_that_the_document_names_exists() -> None:
    named = NAMED.finditer((ENGINE / "SECURITY.md").read_text())
    seen = 0
    missing = []
    for match in named:
        seen += 1
        file, name = match["file"], match["name"]
        path = (ENGINE if "/" in file else E2E) / file
        if not path.is_file() or (name and not re.search(rf"\b(?:def|fn) {name}\(", path.read_text())):
            missing.append(match[0])
    assert missing == []
    assert seen > 50
