from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from stepbox._shared import shared


class EngineLog:
    """What the fake engine was asked since the test began."""

    def __init__(self, path):
        self._path = path
        self._start = path.stat().st_size if path.exists() else 0

    def events(self, name=None):
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8")[self._start :].splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if name is None or event["event"] == name]

    def wait_for(self, name):
        """The first event of a name; the test's own time limit ends a wait in vain."""
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            if found := self.events(name):
                return found[0]
            time.sleep(0.01)
        raise AssertionError(f"no {name} among {self.events()}")


@pytest.fixture(scope="session", autouse=True)
def _fake_engine(tmp_path_factory):
    directory = tmp_path_factory.mktemp("engine")
    binary = directory / "stepbox"
    fake = Path(__file__).with_name("fake_engine.py")
    binary.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@"\n')
    binary.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("STEPBOX_")]:
            patch.delenv(name)
        patch.setenv("STEPBOX_BIN", str(binary))
        patch.setenv("STEPBOX_FAKE_LOG", str(directory / "log"))
        yield
        shared.stop()


@pytest.fixture
def engine_log():
    return EngineLog(Path(os.environ["STEPBOX_FAKE_LOG"]))


@pytest.fixture
def fresh_engine():
    """The test starts with no engine, and leaves none."""
    shared.stop()
    yield shared
    shared.stop()
