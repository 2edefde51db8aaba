"""How late a call comes back that ran into its deadline with much to kill."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sampling import Series

if TYPE_CHECKING:
    from setting import Setting

_TIMEOUT_S = 0.5
_PROCESSES = 100
_RESIDENT_BYTES = 256 * 1024 * 1024
_STANDS = "all stand\n"

# The children are made before memory is, and wait until all stand: a tree of spinners would take its time to grow.
_CODE = f"""
import os, signal
for number in range(1, signal.NSIG):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
wait, go = os.pipe()
for number in range({_PROCESSES} - 1):
    if os.fork() == 0:
        os.close(go)
        if number % 2:
            os.setsid()
        os.read(wait, 1)
        while True:
            pass
resident = bytearray({_RESIDENT_BYTES})
for page in range(0, len(resident), 4096):
    resident[page] = 1
os.write(1, b"{_STANDS[:-1]}\\n")
os.close(go)
while True:
    pass
"""


def deadlines(setting: Setting) -> None:
    """Seconds past the deadline at which each call returned, and how many trees stood complete by then."""
    series = Series("deadline overshoot, 100 processes, 256 MiB", "stepbox", slow=True)
    complete = 0
    for _ in range(setting.scale.deadlines):
        begun = time.perf_counter()
        result = setting.stepbox.sandbox.run_code(_CODE, timeout_s=_TIMEOUT_S)
        series.samples.append(time.perf_counter() - begun - _TIMEOUT_S)
        if result.fault is None or result.fault.type != "timeout":
            raise RuntimeError(f"a deadline ended as {result.fault}, {result.code_stderr!r}")
        complete += result.stdout == _STANDS
    setting.report.add([series], notes={"stepbox": f"{complete} of {len(series.samples)} trees stood complete"})
