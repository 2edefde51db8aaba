from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from faces import FACES


@pytest.fixture(params=sorted(FACES))
def face(request):
    """Makes an open sandbox, once for each face of the client."""
    return FACES[request.param]
