"""Places to attack from, and what the code of an attack begins with."""

from __future__ import annotations

import contextlib

from starts import started

import stepbox

# `attempt` prints how a call ended, `raw` makes a system call by its number. Nothing here does harm where a sandbox is
# broken: files are opened and not written to, calls are made with arguments that no kernel accepts.
PRELUDE = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, call, *arguments):
    try: found = call(*arguments)
    except OSError as error: print(name, errno.errorcode.get(error.errno, error.errno))
    else:
        print(name, 'done')
        return found
def raw(number, *arguments):
    ctypes.set_errno(0)
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    found = libc.syscall(ctypes.c_long(number), *words)
    if found == -1: raise OSError(ctypes.get_errno(), 'refused')
    return found
"""

# Every way in which code is started, a cell of a kernel among them.
PLACES = ("cold", "forked", "forked_ahead", "kernel")


class Attacker:
    """An open sandbox whose code is started in one way."""

    def __init__(self, sandbox, run):
        self.sandbox = sandbox
        self._run = run

    def py(self, code, **options):
        return self._run(PRELUDE + code, **options)

    def lines(self, code, **options):
        """What an attack that ends of itself printed."""
        result = self.py(code, **options)
        assert (result.exit_code, result.fault) == (0, None), (result.stdout, result.code_stderr, result.fault)
        return result.stdout.splitlines()


@contextlib.contextmanager
def attacker(place, **options):
    if place == "kernel":
        with stepbox.Sandbox(**options) as sandbox, sandbox.kernel() as kernel:
            yield Attacker(sandbox, kernel.run_code)
        return
    with started(place, **options) as found:
        # What is mounted in a workspace stays there.
        found.empty = lambda: found.sandbox.run(["find", "/workspace", "-mindepth", "1", "-delete"])
        yield Attacker(found.sandbox, found.py)
