"""What Python code shows beside its output comes back the same way however its interpreter was started."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from starts import STARTS, started

import stepbox

WAYS = (*STARTS, "kernel")
PNG = b"\x89PNG\r\n\x1a\n"
# The numbers of the descriptors that are open, without the one that lists them.
OPEN = "import os\n[n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]"
MATPLOTLIB = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
PANDAS = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
PLOT = "import matplotlib.pyplot as plt\n"


class Cells:
    """Each piece of code is the only cell of a kernel."""

    start = "kernel"

    def __init__(self, sandbox):
        self.sandbox = sandbox

    def py(self, code, **options):
        with self.sandbox.kernel() as kernel:
            return kernel.run_code(code, **options)


@pytest.fixture(scope="module", params=WAYS)
def begun(request):
    if request.param == "kernel":
        with stepbox.Sandbox() as sandbox:
            yield Cells(sandbox)
    else:
        with started(request.param) as found:
            yield found


def told(result):
    return result.exit_code, result.fault and result.fault.type


def texts(result):
    return [shown.text for shown in result.results]


def pictures(result):
    found = [shown for shown in result.results if shown.png is not None]
    assert all(shown.png.startswith(PNG) and "<svg" in shown.svg for shown in found)
    return len(found)


# ---- what is shown ----


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 40\nprint('p')\nx + 2", ["42"]),
        ("x = 1; x", ["1"]),
        ("x = 1\nx\nx + 1", ["2"]),
        ("(1 +\n 2)", ["3"]),
        ("[\n1,\n2,\n]", ["[1, 2]"]),
        ("'''a\nfor b\n'''", ["'a\\nfor b\\n'"]),
        ("5  # said; twice", ["5"]),
        ("'a;b'", ["'a;b'"]),
        ("# -*- coding: latin-1 -*-\n1", ["1"]),
        ("print(1) or 2", ["2"]),
        ("display(1, 'b')\n3", ["1", "'b'", "3"]),
        ("x = 1;\nx;", []),
        ("(1);  # silent", []),
        ("None", []),
        ("print(print(1))", []),
        ("x = 1", []),
        ("", []),
        ("if True:\n    5", []),
        ("def f():\n    return 1", []),
        ("x = 1 + \\\n2", []),
        ("f = '''\n5'''", []),
        ("from __future__ import annotations\n'last'", ["'last'"]),
    ],
)
def test_the_value_of_a_last_expression_comes_back_and_nothing_else(begun, code, expected):
    result = begun.py(code)
    assert (told(result), texts(result), result.results_truncated) == ((0, None), expected, False)
    assert result.code_stderr == ""
    assert [shown.main for shown in result.results] == [False] * (len(expected) - 1) + [True] * bool(expected)


def test_each_kind_that_an_object_has_comes_back(begun):
    result = begun.py(
        "class A:\n"
        "    def __repr__(self): return 'plain'\n"
        "    def _repr_html_(self): return '<b>é</b>'\n"
        "    def _repr_markdown_(self): return '*m*', {'meta': 1}\n"
        "    def _repr_latex_(self): return '$x$'\n"
        "    def _repr_json_(self): return {'a': [1]}\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "    def _repr_jpeg_(self): raise ValueError\n"
        "class B:\n"
        "    def _repr_jpeg_(self): return 'anBn'\n"
        "class C:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'application/vnd.plotly.v1+json': {'data': []}, 'text/html': '<i>c</i>', 'no kind': 'x'}\n"
        "display(A(), B())\nC()"
    )
    a, b, c = result.results
    assert (a.text, a.html, a.markdown, a.latex, a.svg) == ("plain", "<b>é</b>", "*m*", "$x$", "<svg/>")
    assert (a.json, a.png, a.jpeg) == ({"a": [1]}, b"png", None)
    assert (b.jpeg, "<__main__.B object" in b.text) == (b"jpg", True)
    assert (c.html, c.data["application/vnd.plotly.v1+json"]) == ("<i>c</i>", b'{"data": []}')
    assert set(c.data) == {"application/vnd.plotly.v1+json", "text/html", "text/plain"}
    bundle = a._repr_mimebundle_()
    assert (bundle["text/html"], bundle["image/png"], bundle["application/json"]) == ("<b>é</b>", "cG5n", {"a": [1]})


@PANDAS
def test_a_table_comes_back_as_html_and_as_text(begun):
    result = begun.py("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
    assert [(shown.text.split(), "<table" in shown.html) for shown in result.results] == [(["a", *"0112"], True)]


@MATPLOTLIB
@pytest.mark.parametrize(
    ("code", "count", "exit_code"),
    [
        ("plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2]);", 2, 0),
        ("plt.plot([3]); plt.show()", 1, 0),
        ("f = plt.figure(); f.savefig('a.png'); plt.close(f)", 0, 0),
        ("f = plt.figure(); f", 1, 0),
        ("plt.plot([1]); 1/0", 1, 1),
        ("import sys\nplt.plot([1]); sys.exit(4)", 1, 4),
        ("f, a = plt.subplots(); display(f)", 1, 0),
        ("f, a = plt.subplots(); display(f); a.plot([1]); a = 0", 2, 0),
        ("f, a = plt.subplots(); f.show(); plt.close()", 1, 0),
        ("plt.plot([1]); plt.show(block=False); plt.plot([2]); plt.pause(0.01); a = 0", 1, 0),
        ("plt.plot([1]); plt.savefig('plot.png'); plt.show()", 1, 0),
        ("from matplotlib.figure import Figure\nFigure()", 1, 0),
        # As much as a gigabyte of pixels, and a label that is far away.
        ("plt.figure(figsize=(400, 400)); plt.plot([1]);", 1, 0),
        ("plt.plot([1]); plt.text(500, 1, 'far');", 1, 0),
    ],
)
def test_a_figure_comes_back_once(begun, code, count, exit_code):
    result = begun.py(PLOT + code)
    assert (told(result), pictures(result)) == ((exit_code, None), count)
    assert "Warning" not in result.code_stderr


@MATPLOTLIB
def test_a_picture_of_pillow_comes_back(begun):
    result = begun.py("from PIL import Image\nImage.new('RGB', (4, 4))")
    assert [shown.png.startswith(PNG) for shown in result.results] == [True]


# ---- what ends the code takes nothing back ----


@pytest.mark.parametrize(
    ("end", "exit_code", "fault"),
    [
        ("while True: pass", 137, "timeout"),
        ("os.kill(os.getpid(), 9)", 137, None),
        ("os._exit(5)", 5, None),
        ("sys.exit(6)", 6, None),
        ("1/0", 1, None),
        ("os.abort()", 134, None),
        ("ctypes.string_at(0)", 139, None),
        ("x = bytearray(900 << 20)", 137, "oom"),
    ],
)
def test_what_was_shown_before_the_end_comes_back(begun, end, exit_code, fault):
    if fault == "oom" and begun.sandbox.limits["memory"].enforced_by == "none":
        pytest.skip("nothing on this host binds memory")
    if fault is None and begun.start == "kernel" and exit_code == 137:
        fault = "killed"
    result = begun.py(f"import os, sys, ctypes\ndisplay('before')\n{end}\ndisplay('after')", timeout_s=2)
    assert texts(result) == ["'before'"]
    assert result.exit_code == exit_code
    assert fault is None or result.fault.type == fault


# ---- bounds ----


@pytest.mark.parametrize(
    "code",
    [
        "for i in range(10_000): display(i)",
        "display('x' * 3_000_000, 'x' * 3_000_000, *['y' * 1_000_000] * 6)",
        "class P:\n    def _repr_png_(self): return bytes(100 << 20)\ndisplay(P())",
        "class H:\n    def _repr_html_(self): return 'h' * (5 << 20)\nH()",
    ],
)
def test_what_is_too_much_is_left_out_with_a_note(begun, code):
    result = begun.py(code)
    assert (told(result), result.results_truncated) == ((0, None), True)
    assert any("4 MiB" in note for note in result.runtime_notes)
    sizes = [sum(map(len, shown.data.values())) for shown in result.results]
    assert 0 < len(sizes) <= 1000
    assert sum(sizes) <= 4 << 20


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError", "<R whose repr raised ValueError>"),
        ("raise SystemExit(9)", "<R whose repr raised SystemExit>"),
        ("return 5", "<R whose repr raised TypeError>"),
        ("return S('s')", "s"),
        ("return '\\ud800'", "\\ud800"),
    ],
)
def test_a_repr_that_fails_or_lies_changes_nothing_of_the_verdict(begun, body, text):
    code = (
        "class S(str):\n    def encode(self, *a): raise ValueError\n    def __len__(self): return 1 << 60\n"
        f"class R:\n    def __repr__(self): {body}\n"
        "    def _repr_html_(self): raise SystemExit(3)\n    def _repr_png_(self): return 5\n"
        "    def _repr_json_(self): return {1: object()}\n    def _repr_mimebundle_(self, **k): return [1]\nR()"
    )
    result = begun.py(code)
    assert (told(result), texts(result), set(result.results[0].data)) == ((0, None), [text], {"text/plain"})


def test_a_repr_without_end_ends_with_the_deadline(begun):
    result = begun.py("class R:\n    def __repr__(self):\n        while True: pass\ndisplay(1)\nR()", timeout_s=1)
    assert (told(result), texts(result)) == ((137, "timeout"), ["1"])


def test_an_object_that_has_every_attribute_is_shown_as_text(begun):
    result = begun.py("from unittest.mock import MagicMock\nMagicMock(name='m')")
    assert [set(shown.data) for shown in result.results] == [{"text/plain"}]


# ---- nobody else ----


def test_no_descriptor_leads_to_it_and_children_show_nothing(begun):
    assert sorted(texts(begun.py(OPEN))) == ["['0', '1', '2']"]
    result = begun.py(
        "import os, subprocess, sys\n"
        "if os.fork() == 0:\n    display('forked'); os._exit(0)\nos.wait()\n"
        "print(subprocess.run([sys.executable, '-c', 'import builtins; print(hasattr(builtins, \"display\"))'],"
        " capture_output=True, text=True).stdout, end='')\n'own'"
    )
    assert (texts(result), result.stdout) == (["'own'"], "False\n")


def test_what_is_printed_does_not_mix_with_it(begun):
    code = (
        "import os\nfor n in range(1, 100):\n    try: os.write(n, b'\\1\\1\\0\\0\\0' * 9)\n    except OSError: pass\n7"
    )
    result = begun.py(code)
    assert (told(result), texts(result), result.results_truncated) == ((0, None), ["7"], False)


@pytest.mark.parametrize("begun", STARTS, indirect=True)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_import_the_script_again_show_nothing_and_miss_nothing(begun, method):
    result = begun.py(
        "import multiprocessing as mp, os\n"
        "def f(x): return x * x\n"
        "if __name__ == '__main__':\n"
        f"    with mp.get_context('{method}').Pool(2) as pool: print(pool.map(f, [1, 2, 3]))\n"
        "display('shown')\n'last'"
    )
    assert (told(result), result.stdout, result.code_stderr) == ((0, None), "[1, 4, 9]\n", "")
    assert texts(result) == ["'shown'", "'last'"]


@pytest.mark.parametrize("begun", STARTS, indirect=True)
def test_bytes_that_are_no_results_are_left_out_and_harm_nothing(begun):
    scribble = (
        "import ctypes\n"
        "display(1)\n"
        "for line in open('/proc/self/maps'):\n"
        "    if 'memfd:results' in line:\n"
        "        low, high = (int(place, 16) for place in line.split()[0].split('-'))\n"
        "        ctypes.memset({place}, {byte}, {length})\n"
    )
    for place, byte, length in (
        ("low", 255, 8),
        ("low", 255, "high - low"),
        ("low + 4096 + 1", 255, 4),
        ("low", 0, 24),
    ):
        result = begun.py(scribble.format(place=place, byte=byte, length=length))
        assert told(result) == (0, None)
        assert result.results == [] or texts(result) == ["1"]
    assert texts(begun.py("2")) == ["2"]


# ---- a script is what it would be without all this ----


@pytest.mark.parametrize(
    "code",
    [
        "import sys\n1/0",
        "def f():\n    g()\n(\n    1,\n    f(),\n)",
        "x = '\\d'\nx",
        "x = '\\d'\n1 +",
        "'\\d'",
        "assert (1, 2)\nx is 1",
        "return 5",
        "b'\\xff'.decode()",
        "raise SystemExit('bye')",
        "[].x",
        "f(1,\n  2)",
        "import sys; sys.exit([1])",
        "exit()",
        "import inspect\nprint(len(inspect.getsource(inspect.currentframe())))\nNone",
        "import pickle\nclass A: pass\nassert type(pickle.loads(pickle.dumps(A()))) is A\nNone",
        "import __main__\nprint(__name__, __file__, sorted(vars(__main__)))\nNone",
        "import sys\nprint(sys.argv, sys.orig_argv[1:], sys.path[0], [m for m in sys.modules if 'step' in m])\nNone",
        "import traceback\ntraceback.print_stack()",
        "import sys\nprint(sys._getframe().f_back, sys._getframe().f_lineno)\nsys._getframe().f_lineno and None",
        "def f(n): return f(n + 1)\nf(0)",
        "import atexit\natexit.register(print, 'last')\nNone",
        "class D:\n    def __del__(self): print('gone')\nd = D()\nd and None",
        "import sys\nsys.stdout.write('no newline') and None",
        "import warnings\nwarnings.warn('w')",
        "raise KeyboardInterrupt",
        "\ufeff1 and None",
        "é = 1\né.x",
    ],
)
@pytest.mark.parametrize("begun", STARTS, indirect=True)
def test_a_script_is_run_as_the_interpreter_runs_it(begun, code, tmp_path):
    script = tmp_path / "main.py"
    script.write_bytes(code.encode())
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    result = begun.py(code)
    place = (str(tmp_path), "/run/stepbox")
    assert result.stdout == plain.stdout.decode().replace(*place)
    assert result.code_stderr == plain.stderr.decode().replace(*place)
    assert result.exit_code == (130 if plain.returncode == -2 else plain.returncode)


# ---- kernels ----


@MATPLOTLIB
def test_later_cells_do_not_repeat_a_figure_and_no_cell_has_what_was_shown_before_it():
    with stepbox.Sandbox() as sandbox, sandbox.kernel() as kernel:
        assert pictures(kernel.run_code(PLOT + "plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2])")) == 2
        assert (pictures(kernel.run_code("1")), texts(kernel.run_code("1"))) == (0, ["1"])
        assert pictures(kernel.run_code("plt.plot([3]); plt.show()")) == 1
        assert pictures(kernel.run_code("plt.plot([4]); 1/0")) == 1
        late = "import threading\nt = threading.Timer(0.2, display, ['late']); t.start()"
        assert kernel.run_code(late).results == []
        assert texts(kernel.run_code("t.join(); 'own'")) == ["'late'", "'own'"]
        between = "t = threading.Timer(0.05, display, ['between']); t.start()"
        kernel.run_code(between)
        sandbox.run(["sleep", "0.5"])
        assert texts(kernel.run_code("'next'")) == ["'next'"]


@MATPLOTLIB
def test_modules_that_were_imported_ahead_show_figures_too():
    with started("forked_ahead", preload=["matplotlib.pyplot"]) as begun:
        result = begun.py(PLOT + "plt.plot([1])\nplt.show()\nplt.figure()\nx = 1")
        assert (told(result), pictures(result), result.code_stderr) == ((0, None), 2, "")


# ---- the rest ----


def test_other_languages_have_none_and_an_interpreter_that_goes_on_has_none():
    with stepbox.Sandbox() as sandbox:
        assert sandbox.run_code("echo 1", language="bash").results == []
        result = sandbox.run_code("print(1)\n5", env={"PYTHONINSPECT": "1"})
        assert (result.exit_code, result.results) == (0, [])


def test_code_in_the_workspace_that_runs_first_changes_only_its_own_results():
    with stepbox.Sandbox(prewarm=0) as sandbox:
        sandbox.write_file("sitecustomize.py", b"import os\nprint([os.close(n) for n in (40, 41, 42)])")
        result = sandbox.run_code("print('runs')\n5")
        # It took away what makes results: the script is run without, if it can be.
        assert result.fault is None
        sandbox.write_file("sitecustomize.py", b"")
        assert texts(sandbox.run_code("5")) == ["5"]
