"""These tests need the real engine where it finds no cgroup: `tests/without_cgroups.sh` makes such a place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stepbox

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from evidence import Marker


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture
def sandbox(face):
    with face() as opened:
        yield opened


@pytest.fixture
def marker():
    return Marker()


@pytest.fixture(scope="session", autouse=True)
def _no_cgroups():
    with stepbox.Sandbox() as sandbox:
        kept = {name: limit.enforced_by for name, limit in sandbox.limits.items()}
    assert not {"cgroup1", "cgroup2"} & set(kept.values()), f"cgroups keep limits here: {kept}"
