"""How the process of a step of Python is started, and a way to have each start for sure.

An engine starts a step as it sees fit: what it started is told by the result, and these look at that, so that no test
runs one start and believes that it saw another.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import stepbox

STARTS = ("cold", "forked", "forked_ahead")
FORKS = STARTS[1:]

_numbers = itertools.count(1)


class Started:
    """An open sandbox each of whose steps of Python is started in one way."""

    def __init__(self, sandbox, start):
        self.sandbox = sandbox
        self.start = start

    def py(self, code, prepare=None, **options):
        """Runs a step. One that was started in another way counts for nothing: it is run anew in an empty workspace.

        `prepare` is called with the sandbox before each.
        """
        limit = time.monotonic() + 60
        pause = 0.01
        while True:
            if prepare is not None:
                prepare(self.sandbox)
            self.prime(pause)
            result = self.sandbox.run_code(code, **options)
            if result.start == self.start:
                return result
            assert time.monotonic() < limit, f"no step was started {self.start}"
            self.empty()
            if self.start == "forked_ahead" or result.start == "cold":
                warm(self.sandbox)
            else:
                self.use_up()
            pause *= 2

    def use_up(self):
        """Runs programs in as many sandboxes as may be ready: in none is something left that was forked ahead."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self.sandbox.run(["sleep", "0.1"]), range(4)))

    def prime(self, pause):
        """Makes it likely that the next step is started as it should be."""
        if self.start == "cold":
            return
        if self.start == "forked":
            # After a program nothing is forked ahead.
            self.sandbox.run(["true"])
        time.sleep(pause)

    def empty(self):
        assert self.sandbox.run(["find", "/workspace", "-mindepth", "1", "-delete"]).success


def warm(sandbox, starts=("forked_ahead",)):
    """Runs short steps until one is started so."""
    limit = time.monotonic() + 30
    while sandbox.run_code("pass").start not in starts:
        assert time.monotonic() < limit, f"no step was started {starts}"
        time.sleep(0.01)


@contextlib.contextmanager
def started(start, **options):
    """A sandbox of its own whose steps of Python are started so."""
    # Unlike any other, so that none of its kind is opened ahead: all interpreters of the engine are this one's.
    options.setdefault("max_output_bytes", (64 << 20) - next(_numbers))
    if start == "cold":
        options["prewarm"] = 0
    with stepbox.Sandbox(**options) as sandbox:
        if start != "cold":
            warm(sandbox)
        yield Started(sandbox, start)
