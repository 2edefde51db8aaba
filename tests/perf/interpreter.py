"""An interpreter that has numpy and pandas, made once below `target/`, and sessions that get it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLACE = Path(__file__).resolve().parents[2] / "target" / "bench" / "venv"
_PACKAGES = ("numpy", "pandas")
_INSTALL_S = 600


class NoInterpreterError(Exception):
    """Why there is none."""


def venv_with_pandas() -> Path:
    """The virtual environment; it is made where it is missing.

    Raises:
        NoInterpreterError: It cannot be made here.
    """
    python = os.fspath(_PLACE / "bin" / "python")
    # Also false when the interpreter that it was made from is gone.
    works = [python, "-c", f"import {', '.join(_PACKAGES)}"]
    with contextlib.suppress(NoInterpreterError):
        _run(works)
        return _PLACE
    sys.stderr.write("installing numpy and pandas below target/bench, once\n")
    _run([sys.executable, "-m", "venv", "--clear", os.fspath(_PLACE)])
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_PACKAGES])
    _run(works)
    return _PLACE


def _run(line: list[str]) -> None:
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise NoInterpreterError(f"no interpreter with numpy and pandas: {failure}") from failure
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NoInterpreterError(f"numpy and pandas cannot be had: {last[:120]}")


@contextlib.contextmanager
def running_in(venv: Path) -> Iterator[None]:
    """Sessions that are opened within get that interpreter: the client gives them the one that it runs in itself."""
    place = os.fspath(venv)
    with (
        mock.patch.object(sys, "executable", os.fspath(venv / "bin" / "python")),
        mock.patch.object(sys, "prefix", place),
        mock.patch.object(sys, "exec_prefix", place),
    ):
        yield
