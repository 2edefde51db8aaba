"""The tool behind every adapter: one sandbox, made at the first call, for every thread and event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepbox import EngineError, SandboxError, SessionLost
from stepbox.testing import AsyncScriptedSandbox, Call, ScriptedSandbox, created, result
from stepbox.tool import CodeTool, Language, unfenced

# Later Pythons warn of what these tests do on purpose.
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def test_sandbox_is_made_at_the_first_call_and_closed_once() -> None:
    sandbox = AsyncScriptedSandbox(result("one"), result("two"))
    with CodeTool(lambda: sandbox) as tool:
        assert sandbox.times_opened == 0
        assert tool.run("1").text == "[exit 0]\n[stdout]\none"
        assert tool.run("2", "bash").text == "[exit 0]\n[stdout]\ntwo"
        assert (sandbox.times_opened, sandbox.times_closed) == (1, 0)
    tool.close()
    assert (sandbox.times_opened, sandbox.times_closed) == (1, 1)
    assert sandbox.calls == [Call("1", "python"), Call("2", "bash")]


def test_sync_and_async_callers_share_one_sandbox() -> None:
    sandbox = AsyncScriptedSandbox()
    with CodeTool(lambda: sandbox) as tool:
        tool.run("1")
        asyncio.run(tool.arun("2"))
        asyncio.run(tool.arun("3"))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(tool.run, ["n"] * 50))
    assert sandbox.times_opened == 1
    assert len(sandbox.calls) == 53


def test_cancelling_the_task_cancels_the_step_before_the_task_ends() -> None:
    sandbox = AsyncScriptedSandbox()
    sandbox.hangs = True

    async def cancel(tool: CodeTool) -> None:
        task = asyncio.create_task(tool.arun("wait"))
        await asyncio.to_thread(sandbox.called.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sandbox.times_cancelled == 1

    with CodeTool(lambda: sandbox) as tool:
        asyncio.run(cancel(tool))
        sandbox.hangs = False
        assert tool.run("after").result is not None


def test_forgotten_tool_closes_its_sandbox_and_ends_its_thread() -> None:
    sandbox = AsyncScriptedSandbox()
    tool = CodeTool(lambda: sandbox)
    tool.run("1")
    del tool
    gc.collect()
    assert sandbox.times_closed == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "stepbox-tool"]


def test_call_that_is_under_way_when_the_tool_is_closed_raises() -> None:
    sandbox = AsyncScriptedSandbox()
    sandbox.hangs = True
    tool = CodeTool(lambda: sandbox)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(tool.run, "wait")
        assert sandbox.called.wait(30)
        tool.close()
        with pytest.raises(SandboxError, match="closed before the code had ended"):
            call.result(30)
    assert (sandbox.times_cancelled, sandbox.times_closed) == (1, 1)


def test_closed_tool_raises() -> None:
    tool = CodeTool(AsyncScriptedSandbox)
    tool.close()
    with pytest.raises(SandboxError, match="the tool is closed"):
        tool.run("1")


@FORKS
@pytest.mark.parametrize("calls_before", [0, 1])
def test_forked_process_has_a_sandbox_of_its_own(calls_before: int) -> None:
    # Over the client itself, because it is what must survive the fork.
    with CodeTool(memory_mb=64) as tool:
        for _ in range(calls_before):
            assert tool.run("print 1").result is not None
        child = os.fork()
        if child == 0:
            try:
                text = tool.run("print 2").text
                tool.close()
                os._exit(7 if text == "[exit 0]\n[stdout]\n2" else 8)
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert tool.run("print 3").text == "[exit 0]\n[stdout]\n3"


def test_lent_sandbox_is_used_and_left_open() -> None:
    sandbox = ScriptedSandbox(result("sync"), result("async"))
    with CodeTool(sandbox) as tool:
        assert tool.run("1").text.endswith("sync")
        assert asyncio.run(tool.arun("2")).text.endswith("async")
    assert (sandbox.times_opened, sandbox.times_closed) == (0, 0)


def test_lent_async_sandbox_is_awaited_and_refuses_blocking_calls() -> None:
    sandbox = AsyncScriptedSandbox(result("async"))
    tool = CodeTool(sandbox)
    assert asyncio.run(tool.arun("1")).text.endswith("async")
    with pytest.raises(SandboxError, match="call the tool asynchronously"):
        tool.run("2")


def test_refused_call_is_text_for_the_model() -> None:
    with CodeTool(lambda: AsyncScriptedSandbox(SandboxError("the code is\n[exit 0] too large"))) as tool:
        reply = tool.run("x")
    assert reply.result is None
    assert reply.text == r"[sandbox] Nothing ran: the code is\n[exit 0] too large"


def test_busy_machine_is_text_for_the_model_and_a_dead_engine_is_not() -> None:
    answers = (EngineError("slots are full", retry_after_s=2), EngineError("engine not found"))
    with CodeTool(lambda: AsyncScriptedSandbox(*answers)) as tool:
        assert tool.run("x").text == "[sandbox] Nothing ran, the machine is busy: slots are full. Try again in 2 s."
        with pytest.raises(EngineError, match="engine not found"):
            tool.run("x")


def test_lost_session_is_told_and_the_next_call_has_a_new_one() -> None:
    made: list[AsyncScriptedSandbox] = []

    def make() -> AsyncScriptedSandbox:
        made.append(AsyncScriptedSandbox(*([SessionLost("gone", workspace_survived=False)] if not made else [])))
        return made[-1]

    with CodeTool(make) as tool:
        assert tool.run("1").text == (
            "[sandbox] The sandbox was lost, and how the code ended is not known. Its files are gone. "
            "The next call has a new one."
        )
        assert tool.run("2").text == "[exit 0]\n[no output]"
    assert len(made) == 2


def test_changed_pictures_come_with_the_reply() -> None:
    changes = [
        created("a.png", len(PNG)),
        created("b.csv", 3),
        created("c.JPG", 9, "modified"),
        created("gone.webp", 9),
    ]
    changes += [created("huge.png", 2 << 20), created("d.svg", 9), created("e.png", 9, "deleted")]
    files = {"a.png": PNG, "c.JPG": b"not a picture", "d.svg": b"<svg/>"}
    with CodeTool(lambda: AsyncScriptedSandbox(result(files=changes), files=files)) as tool:
        reply = tool.run("draw")
    assert [(image.path, image.mime_type, image.data) for image in reply.images] == [("a.png", "image/png", PNG)]
    assert reply.images[0].data_url.startswith("data:image/png;base64,iVBORw0KGgo")
    assert "[images] a.png" in reply.text


def test_at_most_four_pictures_come() -> None:
    changes = [created(f"{number}.png", len(PNG)) for number in range(500)]
    files = {change.path: PNG for change in changes}
    with CodeTool(lambda: AsyncScriptedSandbox(result(files=changes), files=files)) as tool:
        assert len(tool.run("draw").images) == 4
    with CodeTool(lambda: AsyncScriptedSandbox(result(files=changes), files=files), max_images=0) as tool:
        assert tool.run("draw").images == ()


def test_options_beside_a_lent_sandbox_are_refused() -> None:
    with pytest.raises(TypeError, match="its options cannot be: memory_mb"):
        CodeTool(ScriptedSandbox(), memory_mb=256)  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize(
    ("code", "language", "expected"),
    [
        ("print(1)", "python", ("print(1)", "python")),
        ("```python\nprint(1)\n```", "python", ("print(1)\n", "python")),
        ("\n```\nprint(1)\n```\n", "python", ("print(1)\n", "python")),
        ("~~~py\nx = '''```'''\n~~~", "python", ("x = '''```'''\n", "python")),
        ("````python\nprint('''\n```\n''')\n````", "python", ("print('''\n```\n''')\n", "python")),
        ("```bash\nls\n```", "python", ("ls\n", "bash")),
        ("```python\nls\n```", "bash", ("ls\n", "bash")),
        ("```python\r\nprint(1)\r\n```", "python", ("print(1)\r\n", "python")),
        ("x = '```'\n", "python", ("x = '```'\n", "python")),
    ],
)
def test_fence_around_code_is_taken_off(code: str, language: Language, expected: tuple[str, str]) -> None:
    assert unfenced(code, language) == expected
