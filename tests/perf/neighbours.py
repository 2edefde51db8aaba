"""What a session that means harm costs the one beside it, set against one that does nothing but compute."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import stepbox
from sampling import Series

if TYPE_CHECKING:
    from setting import Setting

_CPUS = 1
# What the neighbour does outlasts what is measured beside it.
_LASTS_S = 120
_VICTIM = """
import hashlib, os
data = os.urandom(1 << 20)
for number in range(40):
    data = hashlib.sha256(data).digest() * 32768
    open(f'file-{number % 8}', 'wb').write(data)
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
"""
_SPINNER = "print('on', flush=True)\nwhile True: pass"
_ATTACKER = """
import contextlib, os, socket
print('on', flush=True)
def quietly(call, *arguments):
    with contextlib.suppress(OSError): return call(*arguments)
for name in 'abc':
    if os.fork() == 0:
        while True:
            # Processes, file system, scratch, pipes, sockets and writes to disk, in turn.
            if quietly(os.fork) == 0: os._exit(0)
            quietly(os.wait)
            with contextlib.suppress(OSError), open(f'{name}-flood', 'wb') as file:
                file.write(b'x' * (1 << 20)); os.fsync(file.fileno())
            with contextlib.suppress(OSError), open(f'/tmp/{name}', 'wb') as file: file.write(b'x' * (1 << 22))
            for number in range(200): quietly(os.mkdir, f'{name}-{number}'); quietly(os.rmdir, f'{name}-{number}')
            kept = [quietly(os.pipe) for _ in range(200)] + [quietly(socket.socketpair) for _ in range(200)]
            for ends in kept:
                for end in ends or (): quietly(end.close if hasattr(end, 'close') else lambda: os.close(end))
            quietly(os.open, '/proc/self/mountinfo', 0)
while True: pass
"""


def neighbours(setting: Setting) -> None:
    """One job, in turn beside a neighbour that spins and one that attacks, both with the same share of a processor."""
    series = [
        Series("a job beside one that spins", "stepbox", slow=True),
        Series("a job beside one that attacks", "stepbox", slow=True),
    ]
    for _ in range(setting.scale.deadlines):
        for one, code in zip(series, (_SPINNER, _ATTACKER), strict=True):
            one.samples.append(_beside(code))
    spins, attacks = (sorted(one.samples)[len(one.samples) // 2] for one in series)
    setting.report.add(series, notes={"stepbox": f"{attacks / spins:.2f} of it beside an attacker; to be at most 1.5"})


def _beside(code: str) -> float:
    try:
        neighbour = stepbox.Sandbox(cpus=_CPUS)
    except stepbox.SandboxError:
        neighbour = stepbox.Sandbox(cpus=_CPUS, enforce_limits=False)
    begun = threading.Event()
    with stepbox.Sandbox() as victim, neighbour:
        victim.run_code("pass")
        thread = threading.Thread(
            target=lambda: neighbour.run_code(code, on_stdout=lambda _: begun.set(), timeout_s=_LASTS_S), daemon=True
        )
        thread.start()
        begun.wait(30)
        time.sleep(0.2)
        start = time.perf_counter()
        result = victim.run_code(_VICTIM)
        took = time.perf_counter() - start
        if not result.success:
            raise RuntimeError(f"the job ended as {result.fault}, {result.code_stderr!r}")
        neighbour.close()
        thread.join()
    return took
