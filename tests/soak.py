"""10,000 steps in one session: all right, and the engine no larger at the end than after the first thousand.

soak.py [STEPS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import stepbox

WARM = 1_000
# What an allocator and the kernel's caches may add; a leak of a descriptor or of a buffer a step is far above.
MORE_DESCRIPTORS = 16
MORE_KIB = 32 * 1024


def engine_pids() -> list[Path]:
    """The engine that this process started, and its launcher: children of ours and theirs."""
    found: list[Path] = []
    parents = {"self"}
    parents.add(Path("/proc/self").resolve().name)
    for status in sorted(Path("/proc").glob("[0-9]*/status"), key=lambda path: int(path.parent.name)):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:
            continue
        if fields["PPid"] in parents and fields["Name"].startswith("stepbox"):
            parents.add(status.parent.name)
            found.append(status.parent)
    return found


def size(processes: list[Path]) -> tuple[int, int]:
    """Open descriptors and resident KiB of some processes."""
    descriptors = sum(len(list((process / "fd").iterdir())) for process in processes)
    text = "".join((process / "status").read_text() for process in processes)
    resident = sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))
    return descriptors, resident


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with stepbox.Sandbox() as sandbox:
        before = (0, 0)
        for number in range(steps):
            result = sandbox.run_code(f"echo {number} > last; echo {number}", language="sh")
            if not result.success or result.stdout != f"{number}\n":
                sys.exit(f"step {number}: {result!r}")
            if number == min(WARM, steps // 2):
                before = size(engine_pids()[:2])
        after = size(engine_pids()[:2])
        last = sandbox.read_text("last")
    wrong = []
    if last != f"{steps - 1}\n":
        wrong.append(f"the workspace holds {last!r}")
    if after[0] > before[0] + MORE_DESCRIPTORS:
        wrong.append(f"descriptors grew from {before[0]} to {after[0]}")
    if after[1] > before[1] + MORE_KIB:
        wrong.append(f"memory grew from {before[1]} to {after[1]} KiB")
    sys.stdout.write(f"{steps} steps, {after[0]} descriptors, {after[1]} KiB in engine and launcher\n")
    for line in wrong:
        sys.stdout.write(f"NOT AS IT SHOULD BE: {line}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
