"""The ways in which Python code gets to run in a session, one and the same call for each."""

from __future__ import annotations

import contextlib
import functools
import os
import textwrap

from starts import STARTS, started

import stepbox

WAYS = (*STARTS, "kernel")


@contextlib.contextmanager
def running(way, **options):
    """Gives the sandbox, and what runs code in it in that way. A kernel that was stopped is followed by another."""
    if way != "kernel":
        with started(way, **options) as opened:
            yield opened.sandbox, lambda code: opened.py(textwrap.dedent(code))
        return
    with stepbox.Sandbox(**options) as sandbox, contextlib.ExitStack() as kernels:
        current = []

        def run(code):
            if not current:
                current.append(kernels.enter_context(sandbox.kernel()))
            result = current[0].run_code(textwrap.dedent(code))
            if result.fault is not None:
                current.clear()
            return result

        yield sandbox, run


@functools.cache
def why_no_range():
    """Why code cannot keep capabilities here; none, where it can. As root it always can."""
    try:
        stepbox.Sandbox(cap_drop=(), pids=None)
    except stepbox.StepboxError as refused:
        why = str(refused)
    else:
        return None
    # Said by who set the user up.
    assert os.environ.get("STEPBOX_TEST_IDS") != "range", why
    return why


def where_ids_are(test):
    """Where the host has no range of ids for this user, that is what the refusal says, and nothing is made."""

    @functools.wraps(test)
    def look_first(*args, **options):
        refused = why_no_range()
        if refused is not None:
            assert "/etc/subuid" in refused
            assert "newuidmap" in refused
            return None
        return test(*args, **options)

    return look_first
