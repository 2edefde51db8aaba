"""Steps beside many files: what telling changes costs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from contenders import Stepbox
from sampling import take_turns
from setting import task
from stepbox import Sandbox
from work import TRUE

if TYPE_CHECKING:
    from setting import Setting

_FEW = 1_000
_PER_DIRECTORY = 100
_GAP_S = 0.02
_FILL = f"""
import os
for number in range(COUNT):
    if number % {_PER_DIRECTORY} == 0:
        place = os.path.join(PLACE, f"d{{number // {_PER_DIRECTORY}}}")
        os.mkdir(place)
    with open(os.path.join(place, f"f{{number}}"), "w") as file:
        file.write(str(number))
print("filled")
"""


def workspaces(setting: Setting) -> None:
    """`true` in workspaces of three sizes, the engine's own and the caller's, in turns."""
    counts = (0, _FEW, setting.scale.many_files)
    with contextlib.ExitStack() as stack:
        rows = []
        for owner in ("engine", "caller"):
            for count in counts:
                if owner == "engine":
                    sandbox = stack.enter_context(Sandbox())
                    filled = sandbox.run_code(_filling("/workspace", count), timeout_s=300)
                    if filled.stdout != "filled\n":
                        raise RuntimeError(f"filling a workspace gave {filled!r}")
                else:
                    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="stepbox-bench-"))
                    # For a session of another host id.
                    Path(place).chmod(0o755)
                    exec(compile(_filling(place, count), "filling", "exec"), {"print": lambda _: None})
                    sandbox = stack.enter_context(Sandbox(workspace=place))
                title = f"{TRUE.title}, {owner}'s workspace of {count:,} files"
                rows.append(task(title, Stepbox(sandbox), TRUE))
        take_turns(rows, setting.scale.calls, _GAP_S)
        empty: dict[str, float] = {}
        for row in rows:
            series = row.series
            if series.failure is None:
                owner = series.work.split("'")[0].rpartition(" ")[2]
                median = empty.setdefault(owner, series.quantile(0.5))
                ratio = {"stepbox": f"{series.quantile(0.5) / median:.2f} of an empty one"}
            else:
                ratio = {}
            setting.report.add([series], notes=ratio)


def _filling(place: str, count: int) -> str:
    return _FILL.replace("COUNT", str(count)).replace("PLACE", repr(os.fspath(place)))
