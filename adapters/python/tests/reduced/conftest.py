"""These tests need the real engine, and no namespace: they run where no other sandbox can be made too."""

from __future__ import annotations

from pathlib import Path


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")
