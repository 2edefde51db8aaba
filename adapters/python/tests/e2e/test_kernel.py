"""A kernel: cells that share an interpreter, what ends them and it, and that no cell can say more than its own."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import threading
import time

import pytest
from evidence import changes, eventually
from faces import Opened

import stepbox

# Past this a cell that is to end at once has not.
SOON_S = 10.0


@contextlib.contextmanager
def kernel_of(sandbox, **options):
    with_methods = Opened(sandbox.kernel(**options), sandbox._resolve)
    try:
        yield with_methods
    finally:
        with_methods.close()


@pytest.fixture
def kernel(sandbox):
    with kernel_of(sandbox) as opened:
        yield opened


@pytest.fixture
def plain():
    """A kernel of the synchronous face, for tests with threads."""
    with stepbox.Sandbox() as sandbox, sandbox.kernel() as opened:
        yield opened


def texts(result):
    return [item.text for item in result.results]


def told(result):
    return result.exit_code, result.fault and result.fault.type


def binding(sandbox, resource):
    limit = sandbox.limits.get(resource)
    if limit is None or limit.enforced_by == "none":
        pytest.skip(f"nothing on this host binds {resource}")


@contextlib.contextmanager
def interrupted(kernel, cell):
    """Runs a cell in a thread; interrupts it once it has printed something."""
    printed = threading.Event()
    results = []
    thread = threading.Thread(
        target=lambda: results.append(kernel.run_code(cell, on_stdout=lambda _: printed.set(), timeout_s=60))
    )
    thread.start()
    assert printed.wait(60)
    begun = time.monotonic()
    kernel.interrupt()
    thread.join()
    assert time.monotonic() - begun < SOON_S
    yield results[0]


# ---- what a cell is ----


def test_state_stays_and_the_value_of_the_last_expression_comes_back_apart_from_the_output(kernel):
    kernel.py("x = 40")
    first = kernel.py("print('p')\nx + 2")
    assert (first.stdout, texts(first), first.results[0].main) == ("p\n", ["42"], True)
    assert dict(first.results[0].data) == {"text/plain": b"42"}
    assert [texts(kernel.py(code)) for code in ("x;", "(x);  # said", "None", "y = 1", "x\nx + 1", "'a;b'")] == [
        [],
        [],
        [],
        [],
        ["41"],
        ["'a;b'"],
    ]
    assert kernel.py("").results == []
    assert first.start == "kernel"


def test_a_step_beside_it_has_results_of_its_own(sandbox):
    result = sandbox.py("1 + 1")
    assert result.start != "kernel"
    assert texts(result) == ["2"]


def test_await_works_at_the_top_and_so_does_asyncio_run(kernel):
    made = kernel.py("import asyncio\nasync def m():\n    await asyncio.sleep(0.01); return 'ok'\nasyncio.run(m())")
    assert (texts(made), made.code_stderr) == (["'ok'"], "")
    assert texts(kernel.py("await m()")) == ["'ok'"]
    assert texts(kernel.py("t = asyncio.create_task(m()); await t")) == ["'ok'"]
    assert texts(kernel.py("asyncio.run(m())")) == ["'ok'"]
    assert texts(kernel.py("async with asyncio.Lock(): pass\n[i async for i in (i for i in [1])]")) == []
    kernel.py("later = asyncio.ensure_future(asyncio.sleep(0.01, 'late'))\nawait asyncio.sleep(0)")
    assert texts(kernel.py("later.done(), await later")) == ["(False, 'late')"]


def test_an_exception_ends_the_cell_and_not_the_kernel(kernel):
    kernel.py("z = 5")
    failed = kernel.py("w = 6\n1/0\nnever = 1")
    assert told(failed) == (1, None)
    lines = failed.code_stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "line 2" in lines[1]
    assert lines[2].strip() == "1/0"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "\x1b" not in failed.code_stderr
    assert failed.code_stderr.count("File ") == 1
    assert texts(kernel.py("z + w")) == ["11"]
    syntax = kernel.py("def f(:")
    assert (told(syntax), "SyntaxError" in syntax.code_stderr, "^" in syntax.code_stderr) == ((1, None), True, True)
    assert told(kernel.py("raise KeyboardInterrupt")) == (130, None)
    missing = kernel.py("f'{never}'")
    assert (told(missing), "NameError" in missing.code_stderr) == ((1, None), True)


def test_a_traceback_shows_the_frames_of_all_cells_and_of_no_one_else(kernel):
    kernel.py("def one(n):\n    return 1 / n")
    failed = kernel.py(
        "def two():\n    try:\n        one(0)\n    except ZeroDivisionError as e:\n        raise OSError from e\ntwo()"
    )
    frames = [line.strip() for line in failed.code_stderr.splitlines() if line.strip().startswith("File ")]
    assert ["line 3" in frames[0], "line 2" in frames[1], "line 6" in frames[2], "line 5" in frames[3]] == [True] * 4
    assert len(frames) == 4
    assert "return 1 / n" in failed.code_stderr
    assert "/proc/" not in failed.code_stderr


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("exit('no good')", 1, "no good\n"),
        ("import asyncio\nawait asyncio.sleep(0)\nsys.exit(9)", 9, ""),
        ("sys.exit(137)", 137, ""),
        ("sys.exit(159)", 159, ""),
        ("sys.exit(125)", 125, ""),
    ],
)
def test_an_exit_ends_the_cell_with_its_code_and_the_kernel_goes_on(kernel, code, expected, words):
    kernel.py("import sys; kept = 1")
    result = kernel.py(code)
    assert (told(result), result.code_stderr) == ((expected, None), words)
    assert texts(kernel.py("kept")) == ["1"]


TIMER = """
import signal
def late(*_): raise TimeoutError
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
"""
THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n" + TIMER


@pytest.mark.parametrize(
    ("cell", "mended"),
    [
        ("import sys; del sys.stdout", "1"),
        ("import sys; del sys.stderr; 1/0", "1"),
        ("import sys\nsys.stdout = sys.stderr = sys.stdin = None", "import sys; sys.stdout = sys.__stdout__"),
        ("import os; os.close(2); 1/0", "1"),
        ("import sys\ndef t(*a): raise ValueError('t')\nsys.settrace(t)", "1"),
        ("import sys\ndef t(*a): raise ValueError('t')\nsys.setprofile(t)", "1"),
        ("import builtins; builtins.kept = getattr; del builtins.getattr; 1/0", "getattr = kept"),
        ("import builtins; vars(builtins).clear()", None),
        ("import os, sys; os.getpid = os._exit = os.write = sys.excepthook = None; 1/0", "1"),
        ("import ast, linecache, traceback\nfor m in (ast, linecache, traceback): vars(m).clear()\n1/0", "1"),
        ("import sys; sys.setrecursionlimit(12)", "import sys; sys.setrecursionlimit(1000)"),
        ("import sys; sys.modules.clear(); del sys.path, sys.excepthook; 1/0", None),
        (TIMER, "import signal; signal.setitimer(signal.ITIMER_REAL, 0)"),
        (THREADED, "import signal; signal.setitimer(signal.ITIMER_REAL, 0)"),
        ("class E(SystemExit):\n    def __getattribute__(self, name): raise self\nraise E", "1"),
        ("class S(str):\n    def encode(self): pass\nclass R:\n    def __repr__(self): return S('r')\nR()", "1"),
        ("class I(int):\n    def __and__(self, other): return 'x'\nraise SystemExit(I(7))", "1"),
    ],
)
def test_nothing_that_a_cell_does_to_its_interpreter_ends_the_kernel_or_shows_the_kernels_frames(kernel, cell, mended):
    kernel.py("x = 7")
    seen = [kernel.py(cell)]
    if mended is not None:
        # With a handler that raises all the time it may take a while until one is through.
        eventually(lambda: seen.append(kernel.py(mended)) or seen[-1].exit_code == 0)
        seen.append(kernel.py("print(x)\nx + 1"))
        assert (told(seen[-1]), seen[-1].stdout, texts(seen[-1])) == ((0, None), "7\n", ["8"])
    seen.append(kernel.py("x; y = 1"))
    assert all(result.fault is None and "/proc/self/fd" not in result.code_stderr for result in seen)


def test_what_a_cell_sets_up_in_its_interpreter_holds_for_later_cells(kernel):
    kernel.py(
        "import signal, sys, os\nseen, called = [], []\ndef f(): pass\n"
        "signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\nsys.setrecursionlimit(300)\n"
        "sys.settrace(lambda frame, *_: called.append(frame.f_code.co_name))"
    )
    kernel.py("f(); os.kill(os.getpid(), signal.SIGUSR1)")
    kept = kernel.py("sys.settrace(None)\nlen(seen), 'f' in called, sys.getrecursionlimit()")
    assert texts(kept) == ["(1, True, 300)"]
    assert texts(kernel.py("signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR2}")) == ["True"]
    kernel.py("_ = os.fork() or os.execlp('sh', 'sh', '-c', 'sleep 0.1; kill -USR1 $PPID')")
    eventually(lambda: texts(kernel.py("len(seen)")) == ["2"])


@pytest.mark.parametrize(
    ("cell", "line", "caret"),
    [
        ("return 5", "return 5", "^^^^^^^^"),
        ("x = 1\nif x:\n    break", "break", "^^^^^"),
        ("'é'; yield 1", "'é'; yield 1", "     ^^^^^^^"),
        ("1 +", "1 +", "   ^"),
    ],
)
def test_an_error_of_syntax_shows_its_line(kernel, cell, line, caret):
    shown = kernel.py(cell).code_stderr.splitlines()
    assert shown[-3:-1] == [f"    {line}", f"    {caret}"]
    assert shown[-1].startswith("SyntaxError: ")
    assert kernel.py("1").exit_code == 0


def test_a_repr_that_fails_is_told_and_a_long_one_is_cut(kernel):
    failed = kernel.py("class C:\n    def __repr__(self): raise ValueError('no')\nC()")
    assert (told(failed), texts(failed)) == ((0, None), ["<C whose repr raised ValueError>"])
    long = kernel.py("'é' * 3_000_000").results[0].text
    assert (long[:3], long[-1], len(long.encode()) <= (1 << 20) + 4) == ("'éé", "…", True)
    assert texts(kernel.py("'\\ud800'")) == ["'\\ud800'"]


def test_what_is_imported_from_the_future_holds_for_later_cells(kernel):
    kernel.py("from __future__ import annotations")
    assert texts(kernel.py("def f(a: nothing): pass\nf.__annotations__")) == ["{'a': 'nothing'}"]


def test_source_of_any_size_runs_and_can_be_looked_at(kernel):
    big = "data = '''" + "x" * 3_000_000 + "'''\nlen(data)"
    assert texts(kernel.py(big)) == ["3000000"]
    kernel.py("def shown():\n    return 'é'")
    assert "return 'é'" in kernel.py("import inspect\nprint(inspect.getsource(shown))").stdout


def test_files_and_usage_are_those_of_the_cell(kernel):
    first = kernel.py("open('a.txt', 'w').write('a')\nfor i in range(3_000_000): pass")
    second = kernel.py("open('b.txt', 'w').write('b')")
    assert (changes(first), changes(second)) == (["a.txt"], ["b.txt"])
    if first.usage.cpu_ms is not None:
        assert second.usage.cpu_ms < first.usage.cpu_ms
    assert (kernel.py("1").files, first.limits["memory"].max) == ([], 512 << 20)
    assert first.isolation


def test_what_a_kernel_writes_through_a_mapping_is_told_by_the_cell_that_wrote_and_by_a_step_beside_it(sandbox):
    with kernel_of(sandbox) as kernel:
        first = kernel.py(
            "import mmap, threading, time\n"
            "with open('d', 'w+b') as f:\n    f.truncate(64 << 20)\n    m = mmap.mmap(f.fileno(), 0)"
        )
        assert changes(first) == ["d"]
        assert (kernel.py("1").files, sandbox.py("1").files) == ([], [])
        # Each page once: a page that was written to a moment before is told by its content alone.
        assert changes(kernel.py("m[0:4] = b'cell'"), "modified") == ["d"]
        assert (kernel.py("1").files, sandbox.py("1").files) == ([], [])
        kernel.py(
            "def write():\n    for page in range(1, 16384):\n        m[page * 4096] = 1; time.sleep(0.002)\n"
            "threading.Thread(target=write, daemon=True).start()"
        )
        assert changes(sandbox.py("import time; time.sleep(0.2)"), "modified") == ["d"]
        assert changes(kernel.py("time.sleep(0.2)"), "modified") == ["d"]
    # Whatever wrote is gone.
    sandbox.py("1")
    assert sandbox.py("1").files == []


def test_options_of_a_kernel_are_its_own(face):
    with face(env={"A": "session", "B": "session"}) as sandbox:
        sandbox.make_dir("sub")
        with kernel_of(sandbox, env={"B": "kernel"}, cwd="sub", memory_mb=128) as kernel:
            seen = kernel.py("import os; os.environ['A'], os.environ['B'], os.getcwd()")
            assert texts(seen) == ["('session', 'kernel', '/workspace/sub')"]
            assert seen.limits["memory"].max == 128 << 20


def test_a_module_of_the_workspace_can_be_imported(sandbox, kernel):
    sandbox.write_file("own.py", "value = 7\n")
    assert texts(kernel.py("import own; own.value")) == ["7"]


def test_files_of_the_workspace_that_are_named_as_the_librarys_do_not_hinder_the_kernel(sandbox):
    for name in ("ast", "linecache", "signal", "traceback", "__future__", "asyncio", "tokenize", "types", "selectors"):
        sandbox.write_file(f"{name}.py", "raise OSError('mine')\n")
    with kernel_of(sandbox) as kernel:
        assert "ZeroDivisionError" in kernel.py("1/0").code_stderr
        assert texts(kernel.py("async def f(): return 1\nawait f()")) == ["1"]


# ---- streams ----


def test_input_is_at_its_end_for_ever(kernel):
    assert "EOF" in kernel.py("try:\n    input('? ')\nexcept EOFError:\n    print('EOF')").stdout
    assert texts(kernel.py("import sys; sys.stdin.read()")) == ["''"]
    assert texts(kernel.py("import os; os.read(0, 10)")) == ["b''"]
    assert texts(kernel.py("import subprocess; subprocess.run(['cat']).returncode")) == ["0"]
    kernel.py("quit()")
    assert "EOFError" in kernel.py("input()").code_stderr


def test_a_burst_of_small_writes_is_whole_and_in_its_cell(kernel):
    burst = kernel.py("import sys\nfor i in range(10000): sys.stdout.write('0' * 100); sys.stdout.flush()\nprint('hi')")
    assert (len(burst.stdout), burst.stdout[-4:], burst.truncated) == (1_000_003, "0hi\n", False)
    assert kernel.py("print('next')").stdout == "next\n"


def test_prints_of_every_kind_keep_their_order(kernel):
    code = (
        "import ctypes, os, subprocess\n"
        "print('one'); subprocess.run(['echo', 'two']); os.write(1, b'three\\n'); print('four')\n"
        "ctypes.CDLL(None).printf(b'five\\n')"
    )
    assert kernel.py(code).stdout == "one\ntwo\nthree\nfour\nfive\n"


def test_output_comes_as_it_is_printed(kernel):
    pieces, errors = [], []
    code = "import sys\nfor i in range(3): print(i)\nprint('e', file=sys.stderr)\ni"
    result = kernel.py(code, on_stdout=pieces.append, on_stderr=errors.append)
    assert (b"".join(pieces), b"".join(errors), texts(result)) == (b"0\n1\n2\n", b"e\n", ["2"])


def test_a_flood_of_output_is_kept_to_its_limit_and_the_deadline_ends_the_kernel(face):
    with face(max_output_bytes=1 << 20) as sandbox, kernel_of(sandbox) as kernel:
        flood = kernel.py("while True: print('x' * 1000)", timeout_s=2)
        assert (told(flood), len(flood.stdout_bytes), flood.truncated) == ((137, "timeout"), 1 << 20, True)
        with pytest.raises(stepbox.SandboxError, match="kernel ended: timeout"):
            kernel.py("1")


def test_the_limit_of_output_is_for_each_cell(face):
    with face(max_output_bytes=1000) as sandbox, kernel_of(sandbox) as kernel:
        first = kernel.py("print('a' * 600)")
        second = kernel.py("print('b' * 600)")
        assert (first.truncated, second.truncated, len(second.stdout)) == (False, False, 601)
        assert kernel.py("print('c' * 6000)").truncated


def test_what_a_process_that_was_left_prints_belongs_to_the_cell_that_runs(kernel):
    kernel.py("import subprocess, time\np = subprocess.Popen(['sh', '-c', 'sleep 0.3; echo late'])")
    assert kernel.py("p.wait(); time.sleep(0.1)").stdout == "late\n"


# ---- processes ----


def test_a_forked_child_answers_nothing(kernel):
    code = (
        "import os\np = os.fork()\nif p == 0:\n    print('child', flush=True); os._exit(0)\nos.waitpid(p, 0); 'parent'"
    )
    result = kernel.py(code)
    assert (result.stdout, texts(result)) == ("child\n", ["'parent'"])
    fallen = kernel.py("import os\nchild = os.fork()\nif child == 0: raise RuntimeError('in child')\n'ok'")
    assert (texts(fallen), told(fallen)) == (["'ok'"], (0, None))
    waited = kernel.py("os.waitpid(child, 0)[1] >> 8")
    assert texts(waited) == ["1"]
    assert "RuntimeError: in child" in fallen.code_stderr + waited.code_stderr
    assert texts(kernel.py("7")) == ["7"]


def test_pools_that_fork_work_with_functions_of_cells_and_spawn_fails_by_name(kernel):
    kernel.py("def sq(x): return x * x")
    pool = kernel.py(
        "import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as p: print(p.map(sq, [1, 2, 3]))"
    )
    assert (pool.stdout, pool.code_stderr) == ("[1, 4, 9]\n", "")
    spawned = kernel.py("p = mp.get_context('spawn').Process(target=sq, args=(1,)); p.start(); p.join(); p.exitcode")
    assert (texts(spawned), "AttributeError" in spawned.code_stderr) == (["1"], True)
    assert texts(kernel.py("7")) == ["7"]


def test_a_thread_that_was_left_goes_on_between_cells(kernel):
    kernel.py("import threading, time\nseen = []\ndef run():\n    while True: seen.append(1); time.sleep(0.01)")
    kernel.py("threading.Thread(target=run, daemon=True).start(); before = len(seen)")
    time.sleep(0.3)
    assert texts(kernel.py("len(seen) > before + 3")) == ["True"]


def test_two_kernels_share_the_workspace_and_nothing_else(sandbox):
    with kernel_of(sandbox) as one, kernel_of(sandbox) as other:
        one.py("secret = 1; import math; math.pi = 3; open('/tmp/t', 'w').write('1'); open('shared', 'w').write('1')")
        seen = other.py(
            "import math, os\n('secret' in globals(), math.pi, os.path.exists('/tmp/t'), os.path.exists('shared'))"
        )
        assert texts(seen) == ["(False, 3.141592653589793, False, True)"]
        random = (
            "import random, ssl, uuid, tempfile\n(random.random(), ssl.RAND_bytes(8), uuid.uuid4(), tempfile.mktemp())"
        )
        assert texts(one.py(random)) != texts(other.py(random))
        assert one.id != other.id


def test_a_session_has_only_so_many_kernels_and_one_that_is_closed_makes_room():
    with stepbox.Sandbox(memory_mb=64) as sandbox:
        kernels = [sandbox.kernel() for _ in range(16)]
        with pytest.raises(stepbox.EngineError, match="16 kernels"):
            sandbox.kernel()
        kernels.pop().close()
        assert texts(sandbox.kernel().run_code("1")) == ["1"]


# ---- interrupts ----


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(600)",
        "threading.Event().wait()",
        "while True: pass",
        "re.match(r'(a*)*b', 'a' * 64)",
        "subprocess.run(['sleep', '600'])",
        "await asyncio.sleep(600)",
        "await asyncio.gather(asyncio.sleep(600), asyncio.sleep(600))",
        "asyncio.run(asyncio.sleep(600))",
        "await asyncio.sleep(0)\nwhile True: pass",
    ],
)
def test_an_interrupt_ends_the_cell_and_what_is_in_memory_stays(plain, wait):
    plain.run_code("import asyncio, re, subprocess, threading, time\nq = 1")
    body = "\n".join(f"    {line}" for line in wait.splitlines())
    with interrupted(plain, f"try:\n    print('on')\n{body}\nfinally:\n    print('cleanup')") as result:
        assert (told(result), result.stdout) == ((130, None), "on\ncleanup\n")
        assert result.code_stderr.splitlines()[-1].startswith("KeyboardInterrupt")
        assert "/proc/" not in result.code_stderr
    assert texts(plain.run_code("q")) == ["1"]
    assert texts(plain.run_code("await asyncio.sleep(0.01, 'ok')")) == ["'ok'"]


def test_an_interrupt_while_nothing_runs_does_nothing_to_the_next_cell(kernel):
    for number in range(100):
        kernel.interrupt()
        assert texts(kernel.py(str(number))) == [str(number)]


def test_interrupts_at_any_moment_end_at_most_the_cell_that_they_meet(plain):
    stop = threading.Event()

    def bother():
        while not stop.is_set():
            plain.interrupt()

    thread = threading.Thread(target=bother)
    thread.start()
    try:
        ends = [plain.run_code("n = 0\nfor i in range(2000): n += 1\nn") for _ in range(100)]
    finally:
        stop.set()
        thread.join()
    assert {told(result) for result in ends} <= {(0, None), (130, None)}
    assert all(texts(result) == ["2000"] for result in ends if result.success)
    assert texts(plain.run_code("'on'")) == ["'on'"]


def test_an_interrupt_spares_the_tasks_of_earlier_cells(plain):
    plain.run_code(
        "import asyncio\nticks = 0\n"
        "async def go_on():\n    global ticks\n    while True: ticks += 1; await asyncio.sleep(0)\n"
        "task = asyncio.ensure_future(go_on())\nawait asyncio.sleep(0)"
    )
    with interrupted(plain, "print('on')\nawait asyncio.sleep(600)") as result:
        assert told(result) == (130, None)
    assert texts(plain.run_code("before = ticks\nawait asyncio.sleep(0.01)\ntask.done(), ticks > before")) == [
        "(False, True)"
    ]


def test_a_cell_may_catch_an_interrupt(plain):
    code = "import time\ntry: print('on'); time.sleep(600)\nexcept KeyboardInterrupt: caught = True\n'went on'"
    with interrupted(plain, code) as result:
        assert (told(result), texts(result)) == ((0, None), ["'went on'"])


def test_an_asynchronous_kernel_is_interrupted_while_a_cell_is_awaited():
    async def main():
        async with stepbox.AsyncSandbox() as sandbox, await sandbox.kernel() as kernel:
            printed = asyncio.Event()
            loop = asyncio.get_running_loop()
            cell = asyncio.create_task(
                kernel.run_code(
                    "q = 1\nprint('on')\nimport time\ntime.sleep(600)",
                    on_stdout=lambda _: loop.call_soon_threadsafe(printed.set),
                )
            )
            await printed.wait()
            await kernel.interrupt()
            assert told(await cell) == (130, None)
            assert texts(await kernel.run_code("q")) == ["1"]

    asyncio.run(main())


# ---- what ends a kernel ----


def ended(kernel, words):
    with pytest.raises(stepbox.SandboxError) as raised:
        kernel.py("1")
    assert str(raised.value).startswith("kernel ended: ")
    assert words in str(raised.value)
    kernel.restart()
    assert texts(kernel.py("'again'")) == ["'again'"]
    assert "NameError" in kernel.py("kept").code_stderr


def test_a_deadline_ends_the_kernel_with_all_that_it_started(kernel, marker):
    kernel.py("kept = 1")
    result = kernel.py(
        "import os, signal, sys, time\n"
        "for s in range(1, 32):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        f"if os.fork() == 0: os.execvp('sleep', ['sleep', '{marker.number}'])\n"
        "print('on')\nwhile True: time.sleep(1)",
        timeout_s=1,
    )
    assert (told(result), result.stdout) == ((137, "timeout"), "on\n")
    assert marker.running() == []
    ended(kernel, "timeout: the time limit of 1 s passed")


def test_running_out_of_memory_ends_the_kernel(face):
    with face(memory_mb=128) as sandbox:
        binding(sandbox, "memory")
        with kernel_of(sandbox) as kernel:
            kernel.py("kept = 1")
            eat = "b = []\nwhile True: b.append(bytearray(10 << 20))"
            for code in (eat, f"import os\nif os.fork() == 0: exec({eat!r})\nos.wait()"):
                result = kernel.py(code, timeout_s=60)
                assert told(result) == (137, "oom")
                ended(kernel, "oom: ")


def test_an_escape_ends_the_kernel(kernel):
    if platform.machine() != "x86_64":
        pytest.skip("the number is that of x86_64")
    kernel.py("kept = 1")
    result = kernel.py("import ctypes; print('on'); ctypes.CDLL(None).syscall(165, 0, 0, 0, 0, 0)")
    assert (told(result), result.fault.syscall, result.stdout) == ((159, "escape_blocked"), "mount", "on\n")
    ended(kernel, "escape_blocked: ")


def test_an_escape_while_no_cell_runs_ends_the_kernel(kernel):
    kernel.py(
        "import ctypes, threading, time\nkept = 1\n"
        "def later():\n    time.sleep(0.3); ctypes.CDLL(None).umount2(b'/', 0)\n"
        "threading.Thread(target=later, daemon=True).start()"
    )

    def has_ended():
        try:
            return kernel.py("1").fault is not None
        except stepbox.SandboxError:
            return True

    time.sleep(0.5)
    eventually(has_ended)
    ended(kernel, "escape_blocked: ")


@pytest.mark.parametrize(
    ("code", "exit_code", "signal", "fault", "words"),
    [
        ("os._exit(3)", 3, None, None, "exit code 3"),
        ("os._exit(137)", 137, None, None, "exit code 137"),
        ("os._exit(159)", 159, None, None, "exit code 159"),
        ("import ctypes; ctypes.string_at(0)", 139, 11, None, "signal 11"),
        ("os.abort()", 134, 6, None, "signal 6"),
        ("os.kill(os.getpid(), 15)", 143, 15, None, "signal 15"),
        ("os.kill(os.getpid(), 31)", 159, 31, None, "signal 31"),
        ("os.kill(os.getpid(), 9)", 137, 9, "killed", "killed: "),
        ("os.execvp('true', ['true'])", 0, None, None, "exit code 0"),
    ],
)
def test_the_end_of_the_interpreter_is_told_as_that_of_a_step_is(kernel, code, exit_code, signal, fault, words):
    kernel.py("kept = 1")
    result = kernel.py(f"import os; print('x')\n{code}")
    assert (told(result), result.signal, result.stdout) == ((exit_code, fault), signal, "x\n")
    ended(kernel, words)


def test_an_interpreter_that_ends_while_nothing_runs_is_told_by_the_next_call(kernel):
    kernel.py(
        "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), os._exit(4))).start()\nkept = 1"
    )
    time.sleep(0.5)

    def has_ended():
        try:
            return kernel.py("1").exit_code == 4
        except stepbox.SandboxError:
            return True

    eventually(has_ended)
    ended(kernel, "exit code 4")


def test_refused_calls_are_counted_for_their_cell_and_too_many_tasks_are_no_fault(face):
    with face(pids=32) as sandbox, kernel_of(sandbox) as kernel:
        refused = kernel.py("import ctypes; l = ctypes.CDLL(None); [l.unshare(0x10000000) for _ in range(4)]")
        assert (texts(refused), refused.usage.denied_syscalls) == (["[-1, -1, -1, -1]"], 4)
        assert kernel.py("1").usage.denied_syscalls == 0
        binding(sandbox, "pids")
        crowd = kernel.py(
            "import os, time\nchildren = []\ntry:\n"
            "    while True:\n        c = os.fork()\n        if c == 0: time.sleep(600)\n        children.append(c)\n"
            "except OSError: print(len(children) < 32)\n"
            "for c in children: os.kill(c, 9); os.waitpid(c, 0)"
        )
        assert (crowd.stdout, told(crowd)) == ("True\n", (0, None))


def test_a_restart_stops_the_cell_that_runs(plain):
    printed = threading.Event()
    results = []
    code = "print('on')\nimport time\ntime.sleep(600)"
    thread = threading.Thread(
        target=lambda: results.append(plain.run_code(code, on_stdout=lambda _: printed.set(), timeout_s=600))
    )
    thread.start()
    assert printed.wait(60)
    name = plain.id
    plain.restart()
    thread.join()
    assert told(results[0]) == (137, "cancelled")
    assert (texts(plain.run_code("1")), plain.id) == (["1"], name)


def test_a_closed_kernel_says_so(sandbox):
    with kernel_of(sandbox) as kernel:
        kernel.close()
        kernel.close()
        with pytest.raises(stepbox.SandboxError, match="kernel ended: it was closed"):
            kernel.py("1")


def test_closing_the_session_ends_its_kernels(marker):
    with stepbox.Sandbox() as sandbox:
        kernel = sandbox.kernel()
        kernel.run_code(f"import subprocess; p = subprocess.Popen(['sleep', '{marker.number}'])")
        assert len(marker.running()) == 1
    assert marker.running() == []
    with pytest.raises(stepbox.SessionLost):
        kernel.run_code("1")
    kernel.close()


def test_a_caller_who_hangs_up_ends_the_kernel():
    async def main():
        async with stepbox.AsyncSandbox() as sandbox, await sandbox.kernel() as kernel:
            printed = asyncio.Event()
            loop = asyncio.get_running_loop()
            cell = asyncio.create_task(
                kernel.run_code(
                    "print('on')\nimport time\ntime.sleep(600)",
                    on_stdout=lambda _: loop.call_soon_threadsafe(printed.set),
                )
            )
            await printed.wait()
            cell.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cell
            with pytest.raises(stepbox.SandboxError, match="kernel ended: "):
                await kernel.run_code("1")

    asyncio.run(main())


def test_cells_of_several_threads_run_one_after_the_other(plain):
    plain.run_code("import time\ninside = 0\nmost = 0\nran = 0")
    code = "inside += 1; most = max(most, inside); time.sleep(0.02); ran += 1; inside -= 1"
    threads = [threading.Thread(target=plain.run_code, args=(code,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts(plain.run_code("most, ran")) == ["(1, 10)"]


def test_a_kernel_outlives_the_thread_that_made_it():
    with stepbox.Sandbox() as sandbox:
        made = []
        thread = threading.Thread(target=lambda: made.append(sandbox.kernel()))
        thread.start()
        thread.join()
        made[0].run_code("x = 1")
        time.sleep(0.3)
        assert texts(made[0].run_code("x")) == ["1"]


def test_a_kernel_that_cannot_start_raises_with_the_fault(sandbox):
    with pytest.raises(stepbox.SandboxError) as raised:
        sandbox.kernel(cwd="/nope")
    assert raised.value.fault.type == "startup_failed"
    assert "/nope" in str(raised.value)
    with pytest.raises(stepbox.SandboxError) as raised:
        sandbox.kernel(memory_mb=1, env={"A=": "x"})
    assert {violation.field.partition("[")[0].partition(".")[0] for violation in raised.value.violations} == {
        "memory_mb",
        "env",
    }
    sandbox.write_file("sitecustomize.py", "import os; os._exit(5)\n")
    with pytest.raises(stepbox.SandboxError, match="could not start: the interpreter ended with exit code 5"):
        sandbox.kernel()


def test_a_wrong_argument_of_a_cell_is_refused_and_the_kernel_goes_on(kernel):
    for wrong in ({"code": 1}, {"code": "a\0b"}, {"code": "1", "timeout_s": 0}, {"code": "1", "timeout_s": "x"}):
        with pytest.raises(stepbox.SandboxError):
            kernel.run_code(**wrong)
    assert texts(kernel.py("1")) == ["1"]


# ---- what a cell may not say ----

# Finds the driver, as code that wants to do harm would.
DRIVER = (
    "import gc\ndriver = next(o for o in gc.get_objects() if type(o).__name__ == 'Kernel' and hasattr(o, 'native'))\n"
)
MEMORY = (
    "import ctypes\n"
    "line = next(l for l in open('/proc/self/maps') if 'cells' in l)\n"
    "low, high = (int(n, 16) for n in line.split()[0].split('-'))\n"
)


def test_no_descriptor_leads_to_the_driver(kernel):
    seen = kernel.py("import os\n[os.readlink(f'/proc/self/fd/{n}')[:4] for n in range(3)]")
    assert texts(seen) == ["['pipe', 'pipe', 'pipe']"]
    assert texts(kernel.py("len(os.listdir('/proc/self/fd'))")) == ["4"]
    assert texts(kernel.py("import sys\nsys.argv, sys.path[0], '_stepbox' in sys.modules")) == [
        "([''], '/run/stepbox', False)"
    ]
    denied = kernel.py(
        "for name in ('mem', 'fd', 'maps', 'environ'):\n"
        "    try: open('/proc/1/' + name).read() if name != 'fd' else os.listdir('/proc/1/fd')\n"
        "    except OSError as error: print(error.errno)\n"
        "files = '/proc/self/map_files/'\n"
        "try: open(files + os.listdir(files)[0])\n"
        "except OSError as error: print(error.errno)"
    )
    assert set(denied.stdout.split()) <= {"13", "1"}
    assert len(denied.stdout.split()) == 5


def test_no_byte_written_to_any_descriptor_alters_a_cell(kernel):
    code = (
        "import os, sys\n"
        'text = b\'\\0\\1\\2stepbox {"fault": {"type": "timeout"}}\\n\' * 100\n'
        "for fd in [*range(3, 256), 1, 2]:\n"
        "    try: os.write(fd, text)\n    except OSError: pass\n"
        "'own'"
    )
    result = kernel.py(code)
    assert (told(result), texts(result), result.stdout == result.code_stderr) == ((0, None), ["'own'"], True)
    assert texts(kernel.py("1 + 1")) == ["2"]


def test_a_child_of_a_cell_does_not_have_the_memory_of_the_driver(kernel):
    code = DRIVER + (
        "import os\n"
        "if os.fork() == 0:\n"
        "    try: driver.native.finish_cell(b'\\7')\n    except OSError as error: print(error)\n"
        "    try: driver.native.next_cell()\n    except OSError as error: print(error)\n"
        "    print(any('cells' in l for l in open('/proc/self/maps')), flush=True); os._exit(0)\n"
        "os.wait(); 'own'"
    )
    result = kernel.py(code)
    assert (told(result), texts(result)) == ((0, None), ["'own'"])
    assert result.stdout == "no cell runs here\nanother process has the cells\nFalse\n"


@pytest.mark.parametrize(
    "scribble",
    [
        "ctypes.memset(low, 255, high - low)",
        "ctypes.memset(low, 0, 4096)",
        "ctypes.memset(low, 170, 64)",
        # Lengths that cannot be.
        "ctypes.c_uint64.from_address(low + 48).value = 1 << 63",
        "ctypes.c_uint64.from_address(low + 16).value = 1 << 63",
        "ctypes.CDLL(None).munmap(ctypes.c_void_p(low), ctypes.c_size_t(high - low))",
        "ctypes.CDLL(None).madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), 9)",
        "ctypes.CDLL(None).mprotect(ctypes.c_void_p(low), ctypes.c_size_t(high - low), 1)",
    ],
)
def test_code_that_writes_over_the_memory_harms_nothing_but_its_own_kernel(face, scribble):
    with face() as sandbox, kernel_of(sandbox) as other, kernel_of(sandbox) as kernel:
        other.py("x = 1")
        results, reasons = [], []
        for code in (MEMORY + scribble + "\n'own'", "1 + 1", "print(3)"):
            try:
                results.append(kernel.py(code, timeout_s=3))
            except stepbox.SandboxError as error:
                reasons.append(error.reason)
        assert set(reasons) <= {"KERNEL_ENDED"}
        # What the memory says is an exit code; a fault is only what the kernel saw.
        assert all(result.fault is None or result.fault.type == "timeout" for result in results)
        assert texts(other.py("x")) == ["1"]
        kernel.restart()
        assert texts(kernel.py("1")) == ["1"]
        assert sandbox.py("print('on')").stdout == "on\n"


@pytest.mark.parametrize("answer", ["b''", "bytes(6 << 20)", "bytes(20 << 20)"])
def test_an_answer_of_any_length_says_an_exit_code_and_no_results(kernel, answer):
    forged = kernel.py(DRIVER + f"driver.native.finish_cell({answer})\n")
    assert (forged.fault, forged.results) == (None, [])
    with contextlib.suppress(stepbox.SandboxError):
        kernel.py("1", timeout_s=3)
    kernel.restart()
    assert texts(kernel.py("1")) == ["1"]


@pytest.mark.parametrize(
    "record",
    [
        "b'\\1' + b'\\xff' * 4",
        "b'\\1\\1\\0\\0\\0' + b'\\xff\\xff\\xff\\xff'",
        "b'\\1\\1\\0\\0\\0' + b'\\2\\0\\0\\0\\xff\\xfe' + b'\\0\\0\\0\\0'",
        "bytes(3 << 20)",
        "bytes(20 << 20)",
    ],
)
def test_results_that_are_none_are_left_out_with_a_note_and_those_before_them_are_kept(kernel, record):
    forged = kernel.py("display(7)\n" + DRIVER + f"driver.native.keep({record})\n")
    assert (told(forged), texts(forged), forged.results_truncated) == ((0, None), ["7"], True)
    assert "left out" in forged.runtime_notes[0]
    assert texts(kernel.py("1")) == ["1"]


@pytest.mark.parametrize("code", [0, 1, 125, 137, 159, 255])
def test_a_cell_that_answers_for_itself_says_only_an_exit_code(kernel, code):
    forged = kernel.py(DRIVER + f"driver.native.finish_cell(bytes([{code}]))\n")
    assert told(forged) == (code, None)
