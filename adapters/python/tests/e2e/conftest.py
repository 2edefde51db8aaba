"""These tests need the real engine, found as the client finds it, on a host that can make sandboxes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evidence import Marker

import stepbox


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture(scope="session", autouse=True)
def _engine():
    """Without an engine the tests are skipped by name; where all are required they fail."""
    try:
        with stepbox.Sandbox() as sandbox:
            sandbox.run(["true"])
    except stepbox.EngineError as error:
        if os.environ.get("STEPBOX_TEST_REQUIRE") == "all":
            raise
        pytest.skip(f"no engine: {error}")


@pytest.fixture
def sandbox(face):
    with face() as opened:
        yield opened


@pytest.fixture
def marker():
    return Marker()
