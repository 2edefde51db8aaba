"""Both faces of the client as one, so that a test is written once and holds for both."""

from __future__ import annotations

import asyncio
import contextlib
import inspect

import stepbox


class Opened:
    """An open sandbox whose methods are called the same way whichever face it has."""

    def __init__(self, sandbox, resolve):
        self.sandbox = sandbox
        self._resolve = resolve

    def __getattr__(self, name):
        value = getattr(self.sandbox, name)
        if not inspect.ismethod(value):
            return value
        return lambda *args, **kwargs: self._resolve(value(*args, **kwargs))

    def py(self, code, **kwargs):
        return self.run_code(code, **kwargs)

    def sh(self, code, **kwargs):
        return self.run_code(code, language="bash", **kwargs)


@contextlib.contextmanager
def sync_face(**options):
    with stepbox.Sandbox(**options) as sandbox:
        yield Opened(sandbox, lambda value: value)


@contextlib.contextmanager
def async_face(**options):
    loop = asyncio.new_event_loop()
    try:
        sandbox = stepbox.AsyncSandbox(**options)
        loop.run_until_complete(sandbox.__aenter__())
        try:
            yield Opened(sandbox, lambda value: loop.run_until_complete(value) if inspect.isawaitable(value) else value)
        finally:
            loop.run_until_complete(sandbox.close())
    finally:
        loop.close()


FACES = {"sync": sync_face, "async": async_face}
