"""A step that was forked from a booted interpreter is, to the byte, what an interpreter of its own would have been."""

from __future__ import annotations

import contextlib
import functools
import platform
import re
import textwrap

import pytest
from starts import started

# What each piece of code does, and the options of its step. What it prints must depend on neither time nor chance.
TABLE = {}


def case(name, code, **options):
    assert name not in TABLE
    TABLE[name] = (textwrap.dedent(code), options)


# How a program ends.
for code in (
    "sys.exit()",
    "sys.exit(None)",
    "sys.exit(0)",
    "sys.exit(3)",
    "sys.exit(256)",
    "sys.exit(-1)",
    "sys.exit(1 << 31)",
    "sys.exit((1 << 32) + 5)",
    "sys.exit(1 << 63)",
    "sys.exit(1 << 70)",
    "sys.exit(-(1 << 70) - 7)",
    "sys.exit('over')",
    "sys.exit('')",
    "sys.exit('\\udcff é')",
    "sys.exit([2, 'x'])",
    "sys.exit((1, 2))",
    "sys.exit((4,))",
    "sys.exit(True)",
    "sys.exit(False)",
    "sys.exit(2.5)",
    "sys.exit(b'x')",
    "sys.exit(SystemExit(5))",
    "raise SystemExit",
    "raise SystemExit(1, 2)",
    "raise SystemExit from ValueError('cause')",
    "exit(4)",
    "quit('gone')",
):
    case(code, f"import sys\nprint('on')\n{code}\nprint('never')")
case("an exit code of a class of its own", "class E(SystemExit): pass\nraise E(6)")
case(
    "an exit code whose text fails",
    "class T:\n    def __str__(self): raise ValueError('no text')\nraise SystemExit(T())",
)
case("an exit code that is a number of a class of its own", "class N(int): pass\nraise SystemExit(N(9))")
case("an exit within a finally", "import sys\ntry:\n    sys.exit(3)\nfinally:\n    print('at last')")
case("an exit that is handled", "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit as e:\n    print(e.code)")
case("an exit within an exception", "import sys\ntry:\n    1/0\nexcept ZeroDivisionError:\n    sys.exit(7)")
case("os._exit", "import os\nprint('lost')\nos._exit(7)")
case("os._exit after a flush", "import os\nprint('kept', flush=True)\nos._exit(7)")
case(
    "a thread that exits",
    "import threading, sys\nt = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join()",
)
case("os.execv", "import os\nprint('before', flush=True)\nos.execv('/bin/sh', ['sh', '-c', 'echo after; exit 5'])")
case(
    "an interpreter by os.execv",
    "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(6); raise SystemExit(8)'])",
)

# Signals.
for number in (1, 2, 3, 6, 10, 11, 13, 14, 15, 24, 31):
    case(f"a death by signal {number}", f"import os\nprint('on', flush=True)\nos.kill(os.getpid(), {number})")
case("KeyboardInterrupt raised", "print('on')\nraise KeyboardInterrupt")
case("KeyboardInterrupt with text", "raise KeyboardInterrupt('stop it')")
case("KeyboardInterrupt of a class of its own", "class K(KeyboardInterrupt): pass\nraise K(1)")
case(
    "a handler of SIGINT",
    """
        import signal, os
        signal.signal(signal.SIGINT, lambda *a: print('handled', a[0]))
        os.kill(os.getpid(), 2)
        print('goes on')
    """,
)
case(
    "a handler that raises",
    """
        import signal, os
        def f(n, frame): raise ValueError(n)
        signal.signal(signal.SIGUSR1, f)
        os.kill(os.getpid(), signal.SIGUSR1)

    """,
)
case(
    "KeyboardInterrupt with SIGINT ignored",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nraise KeyboardInterrupt",
)
case("an alarm", "import signal\nsignal.setitimer(signal.ITIMER_REAL, .05)\nsignal.pause()")
case("a segmentation fault", "import ctypes\nprint('on', flush=True)\nctypes.string_at(0)")
case("an abort", "import os\nprint('on', flush=True)\nos.abort()")
case("faulthandler", "import faulthandler, os\nfaulthandler.enable()\nos.kill(os.getpid(), 6)")
case(
    "a pipe that nobody reads",
    "import os, sys\nr, w = os.pipe(); os.close(r)\ntry: os.write(w, b'x')\nexcept BrokenPipeError as e: print(e)",
)
case(
    "signals as they are at the start",
    """
    import signal
    for number in sorted(signal.valid_signals()):
        print(number, signal.getsignal(number))
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.getitimer(0))
    print([line for line in open('/proc/self/status') if line.startswith(('Sig', 'Shd')) and 'SigQ' not in line])
    """,
)
case(
    "an absurd sleep and a child's signal",
    """
        import signal, os
        signal.signal(signal.SIGCHLD, lambda *a: print('child'))
        p = os.fork()
        if p == 0: os._exit(3)
        print(os.waitpid(p, 0)[1])
    """,
)

# Exceptions.
case("an uncaught exception", "def f():\n    raise KeyError('lost')\nf()")
case("a chained exception", "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('bad') from e")
case("an exception in a handler", "try:\n    {}['a']\nexcept KeyError:\n    undefined_name")
case(
    "an exception with its context hidden",
    "try:\n    1/0\nexcept ZeroDivisionError:\n    raise ValueError('bad') from None",
)
case(
    "an exception group",
    "raise ExceptionGroup('all', [ValueError(1), ExceptionGroup('in', [TypeError('t'), OSError(2, 'gone')])])",
)
case("a group with a base exception", "raise BaseExceptionGroup('all', [KeyboardInterrupt(), SystemExit(3)])")
case("an exception with notes", "e = ValueError('x'); e.add_note('one'); e.add_note('two\\nlines'); raise e")
case("an exception of no text", "raise ValueError")
case("an exception whose text fails", "class E(Exception):\n    def __str__(self): raise TypeError('no')\nraise E")
case("an exception with odd text", "raise ValueError('\\udcff é 世界 \\x00')")
case("a base exception", "class B(BaseException): pass\nraise B('base')")
case("an exception at the very start", "raise ValueError")
case("GeneratorExit", "raise GeneratorExit('g')")
case("StopIteration", "next(iter(()))")
case("a name that is nearly another", "import sys\nsys.stdot")
case("a name that is nearly a variable", "value = 1\nvalu")
case("a missing module", "import no_such_module_at_all")
case("a missing name of a module", "from os import pth")
case("an assertion", "assert 1 == 2, 'numbers'")
case("an exception across lines", "x = (1 +\n     2 +\n     None +\n     4)\n")
case("a recursion without end", "def f(): f()\nf()")
case("a recursion of two", "def f(n): return g(n + 1)\ndef g(n): return f(n + 1)\nf(0)")
case(
    "the depth that a recursion reaches",
    "depth = 0\ndef f():\n    global depth\n    depth += 1\n    f()\ntry: f()\nexcept RecursionError: print(depth)",
)
case(
    "the recursion limit",
    """
        import sys
        print(sys.getrecursionlimit())
        sys.setrecursionlimit(5)
        print(sys.getrecursionlimit())
        def f(): f()
        f()
    """,
)
case("too little memory for one object", "x = bytearray(1 << 60)")
case(
    "a stack of C that overflows",
    """
        import sys
        sys.setrecursionlimit(1 << 30)
        f = lambda: None
        for _ in range(60000): f = type('C', (), {'__call__': f})()
        print('made', flush=True)
        f()
    """,
)
case(
    "an excepthook of its own",
    "import sys\nsys.excepthook = lambda *a: print('hook', a[0], a[1], a[2].tb_lineno, a[2].tb_next)\n1/0",
)
case("an excepthook that fails", "import sys\ndef hook(*a): raise TypeError('hook fails')\nsys.excepthook = hook\n1/0")
case("an excepthook that exits", "import sys\ndef hook(*a): sys.exit(9)\nsys.excepthook = hook\n1/0")
case(
    "an excepthook that is interrupted",
    "import sys\ndef hook(*a): raise KeyboardInterrupt('in hook')\nsys.excepthook = hook\n1/0",
)
case("no excepthook", "import sys\ndel sys.excepthook\n1/0")
case("an excepthook of none", "import sys\nsys.excepthook = None\n1/0")
case("an excepthook and an exit", "import sys\nsys.excepthook = lambda *a: print('hook')\nsys.exit(3)")
case(
    "a hook that looks at the last exception",
    """
        import sys, atexit
        atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))
        1/0
    """,
)
case(
    "traceback.print_exc",
    "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()\ntraceback.print_stack()",
)
case(
    "frames from within",
    """
        import sys, inspect
        f = sys._getframe()
        print(f.f_back, f.f_code.co_name, f.f_code.co_filename, f.f_lineno, len(inspect.stack()), f.f_code.co_flags)
    """,
)
case(
    "frames of a thread",
    """
        import threading, traceback
        def f(): traceback.print_stack()
        t = threading.Thread(target=f); t.start(); t.join()
    """,
)
case("a tracebacklimit", "import sys\nsys.tracebacklimit = 1\ndef f(): 1/0\ndef g(): f()\ng()")
case(
    "an unraisable exception",
    "class D:\n    def __del__(self): raise ValueError('in del')\nd = D()\ndel d\nprint('on')",
)
case("an exception with no traceback", "import sys\nsys.excepthook(ValueError, ValueError('x'), None)")
case(
    "settrace",
    "import sys\nsys.settrace(lambda *a: print(a[1], a[0].f_code.co_name))\ndef f(): pass\nf()\nsys.settrace(None)",
)

# Source text.
case("a syntax error", "x = 1\nif x:\n    y = = 2\n")
case("an unclosed bracket", "print((1,\n2")
case("an indentation error", "if 1:\nprint(1)")
case("a tab error", "if 1:\n        x = 1\n\ty = 2\n")
case("a syntax error at the end", "def f(:")
case("a keyword misspelt", "whle True:\n    pass")
case("a string without end", "x = 'abc")
case("an f-string that is none", "x = f'{a b}'")
case("return outside of a function", "return 1")
case("await outside of a function", "await x")
case("a syntax error with wide characters", "世界 = 'é' 'ü' = 1")
case("a syntax error in another file", "import importlib, sys\nopen('m.py', 'w').write('x = = 1\\n')\nimport m")
case("an invalid escape", "print('\\d')")
case("a literal compared by identity", "print(1 is 1)")
case("nothing", "")
case("only a comment", "# nothing")
case("no newline at the end", "print(1)")
case("a form feed and returns", "print(1)\r\nprint(2)\r\x0cprint(3)\n")
case("a coding cookie", "# -*- coding: latin-1 -*-\nprint('é')")
case("a coding cookie for no codec", "# coding: no-such-codec\nprint(1)")
case("a mark at the beginning", "\ufeffprint('marked')")
case("a mark and another cookie", "\ufeff# coding: latin-1\nprint('marked')")
case("a docstring", "'''What it is.'''\nprint(__doc__)")
case("annotations", "x: int = 1\ny: 'str'\nprint(__annotations__)")
case("annotations from the future", "from __future__ import annotations\nx: undefined\nprint(__annotations__)")
case("a future that is late", "x = 1\nfrom __future__ import annotations")
case("code that is long", "x = 0\n" + "x += 1  # and so on, for a while\n" * 20_000 + "print(x)")
case("a line that is long", "x = '" + "é" * 300_000 + "'\nprint(len(x))")
case("deep brackets", "(" * 300 + "1" + ")" * 300)
case("five megabytes", "x = '''" + "é" * 2_600_000 + "'''\nprint(len(x))")
case(
    "its file",
    """
        print(__file__)
        print(len(open(__file__, 'rb').read()))
        import os; print(oct(os.stat(__file__).st_mode), os.listdir(os.path.dirname(__file__)))
    """,
)
case(
    "its lines by inspect",
    """
        import inspect
        def f():
            return 1  # one
        print(inspect.getsource(f))
        class C:
            x = 1
        print(inspect.getsource(C))
        print(inspect.getfile(f))
    """,
)

# The module that it is.
case(
    "__main__",
    """
        print(
            __name__,
            __spec__,
            __package__,
            __file__,
            __cached__,
            __doc__,
            type(__loader__),
            __loader__.path,
            __loader__.name,
            __builtins__,
        )
        print(list(globals()))
    """,
)
case(
    "__main__ by import",
    """
        import __main__, sys

        print(
            __main__.__dict__ is globals(), sys.modules["__main__"] is __main__, repr(__main__), sorted(dir(__main__))
        )
    """,
)
case("globals that go on", "x = 5\nprint(eval('x'), 'x' in globals(), locals() is globals())")
case("builtins", "import builtins\nprint(__builtins__ is builtins, sorted(dir(builtins)), hasattr(builtins, '_'))")
case("exec and eval", "exec('y = 2'); print(y, eval('y * 3'))\nexec('1/0')")
case(
    "pickles of classes of its own",
    """
        import pickle
        class C:
            def __init__(self): self.x = 3
            def __eq__(self, o): return self.x == o.x
        b = pickle.dumps(C()); print(pickle.loads(b) == C(), b)
    """,
)
case(
    "copies",
    """
        import copy, dataclasses
        @dataclasses.dataclass
        class P:
            x: int
            y: list
        print(copy.deepcopy(P(1, [2])))
        print(dataclasses.asdict(P(1, [3])))
    """,
)
case("type hints", "import typing\nclass C:\n    x: 'int'\n    y: 'list[C]'\nprint(typing.get_type_hints(C))")
case(
    "a named tuple and an enumeration",
    """
        import collections, enum
        P = collections.namedtuple('P', 'x y')
        class E(enum.Enum): A = 1
        print(P.__module__, E.__module__, P(1, 2), E.A, E)
    """,
)
case(
    "a test run of its own",
    """
        import unittest


        class T(unittest.TestCase):
            def test_a(self):
                self.assertEqual(1, 1)


        r = unittest.main(
            exit=False, argv=["x"], verbosity=0, testRunner=unittest.TextTestRunner(stream=open("/dev/null", "w"))
        ).result
        print(r.testsRun)
    """,
)
case(
    "doctest of itself",
    "def f():\n    '''\n    >>> f()\n    2\n    '''\n    return 1\nimport doctest\nprint(doctest.testmod())",
)
case(
    "runpy",
    """
        import runpy
        open('m.py', 'w').write('print(__name__, __file__)')
        runpy.run_path('m.py', run_name='other')
        import sys; print(__name__, sys.argv)
    """,
)
case("arguments", "import sys\nprint(sys.argv, sys.orig_argv[1:])", args=["a", "-b", "é 世", ""])
case("no arguments", "import sys\nprint(sys.argv, sys.orig_argv)")
case("odd bytes as arguments", "import sys, os\nprint([os.fsencode(a) for a in sys.argv])", args=["\udcff\udcfe"])
case(
    "argparse",
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('n', type=int)\np.parse_args()",
    args=["x"],
)
case("argparse's help", "import argparse\nargparse.ArgumentParser().parse_args(['-h'])")

# What it finds.
case("modules", "import sys\nprint(list(sys.modules))")
case(
    "modules that are packages",
    """
        import sys
        print([(n, m.__spec__ and m.__spec__.origin) for n, m in sorted(sys.modules.items()) if n != '__main__'])
    """,
)
case(
    "paths",
    """
        import sys
        print(sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.executable, sys.meta_path, sys.path_hooks)
    """,
)
case(
    "flags",
    """
        import sys

        print(
            sys.flags,
            sys.warnoptions,
            sys._xoptions,
            sys.dont_write_bytecode,
            sys.pycache_prefix,
            sys.implementation,
            sys.hexversion,
        )
    """,
)
case("attributes of sys", "import sys\nprint(sorted(vars(sys)))")
case(
    "switches",
    """
        import sys, gc

        print(
            sys.getswitchinterval(),
            gc.isenabled(),
            gc.get_threshold(),
            sys.getfilesystemencoding(),
            sys.getdefaultencoding(),
            gc.callbacks,
            gc.garbage,
            sys.gettrace(),
            sys.getprofile(),
            sys.displayhook,
            sys.excepthook,
            sys.unraisablehook,
            gc.get_debug(),
        )
    """,
)
case(
    "streams",
    """
        import sys

        for s in (sys.stdin, sys.stdout, sys.stderr):
            print(
                s.name,
                s.mode,
                s.encoding,
                s.errors,
                s.line_buffering,
                s.write_through,
                s.isatty(),
                s.fileno(),
                s.buffer,
                s.newlines,
                s.closed,
            )
        print(sys.stdout is sys.__stdout__, sys.stdin is sys.__stdin__, sys.stderr is sys.__stderr__)
    """,
)
case(
    "locale",
    """
        import locale, time

        print(
            locale.getlocale(),
            locale.setlocale(locale.LC_ALL),
            locale.getpreferredencoding(),
            time.tzname,
            time.timezone,
        )
    """,
)
case("the environment", "import os, sys\nprint(sorted(os.environ.items()))\nos.system('env | sort | grep -v ^_=')")
case(
    "the environment of C",
    """
        import ctypes, os
        g = ctypes.CDLL(None).getenv; g.restype = ctypes.c_char_p
        print({k: g(os.fsencode(k)) == os.fsencode(v) for k, v in os.environ.items()})
    """,
)
case(
    "the environment as it is changed",
    """
        import os
        os.environ['A'] = 'b'; del os.environ['HOME']; os.putenv('C', 'd')
        print(os.system('echo $A $HOME $C'))
    """,
)
case("a home that is unset", "import os\ndel os.environ['HOME']\nprint(os.path.expanduser('~'))")
case(
    "limits",
    """
        import resource
        print([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith('RLIMIT_')])
    """,
)
case(
    "who it is",
    """
        import os, pwd

        print(
            os.getuid(),
            os.geteuid(),
            os.getgid(),
            os.getgroups(),
            pwd.getpwuid(os.getuid()),
            os.getlogin if 0 else "",
            os.getcwd(),
            os.umask(0),
            os.getppid(),
            os.getsid(0) == os.getpid() == os.getpgrp(),
            os.nice(0),
            os.sched_getscheduler(0),
            sorted(os.sched_getaffinity(0)),
        )
    """,
)
case(
    "what the kernel says of it",
    """
        keep = (
            "Cap",
            "NoNew",
            "Seccomp",
            "Sig",
            "Shd",
            "Groups",
            "Uid",
            "Gid",
            "Umask",
            "Threads",
            "Name",
            "State",
            "FDSize",
            "CoreDumping",
            "THP",
            "Spec",
            "NStgid",
            "NSpid",
            "NSpgid",
            "NSsid",
            "TracerPid",
            "PPid",
        )
        print(
            [l for l in open("/proc/self/status") if l.startswith(keep) and not l.startswith(("NS", "Tgid", "SigQ"))]
        )
        print(
            open("/proc/self/oom_score_adj").read(),
            open("/proc/self/comm").read(),
            open("/proc/self/timerslack_ns").read() if 0 else "",
        )
        print(open("/proc/self/coredump_filter").read(), open("/proc/self/personality").read() if 0 else "")
    """,
)
case(
    "its name for the kernel", "print(open('/proc/self/comm').read(), open('/proc/self/cmdline').read().split(chr(0)))"
)
case(
    "its program",
    "import os\nprint(os.readlink('/proc/self/exe'), os.readlink('/proc/self/cwd'), os.readlink('/proc/self/root'))",
)
case(
    "its descriptors",
    """
        import os

        fds = sorted(int(f) for f in os.listdir("/proc/self/fd"))
        print(fds)
        for fd in fds[:3]:
            print(
                os.readlink(f"/proc/self/fd/{fd}").split(":")[0],
                os.get_inheritable(fd),
                os.get_blocking(fd),
                open(f"/proc/self/fdinfo/{fd}").readlines()[:2],
            )
    """,
)
case(
    "descriptors of a child",
    """
        import subprocess
        print(subprocess.run(['sh', '-c', 'ls /proc/self/fd'], capture_output=True, text=True, close_fds=False))
    """,
)
case(
    "processes",
    """
        import os
        print(sorted((len(p) > 5, open(f'/proc/{p}/comm').read()) for p in os.listdir('/proc') if p.isdigit()))
    """,
)
case(
    "threads",
    """
        import threading, os

        m = threading.main_thread()
        print(
            m.name,
            m is threading.current_thread(),
            m.native_id == os.getpid(),
            m.daemon,
            threading.active_count(),
            threading.enumerate() == [m],
            len(os.listdir("/proc/self/task")),
            m.ident == threading.get_ident(),
        )
    """,
)
case(
    "main thread of a fork",
    """
        import threading, os

        p = os.fork()
        if p:
            os.waitpid(p, 0)
        print(
            threading.main_thread().name,
            threading.current_thread() is threading.main_thread(),
            threading.current_thread().native_id == os.getpid(),
            flush=True,
        )
    """,
)
case(
    "mounts",
    """
        import re
        for line in open('/proc/self/mountinfo'):
            f = line.split(); i = f.index('-')
            print(re.sub('[0-9a-f]{8,}', 'X', f[4]), f[5], f[i + 1])
    """,
)
case(
    "files that it has",
    """
        import os

        for d in (
            "/",
            "/tmp",
            "/var/tmp",
            "/dev/shm",
            "/run",
            "/run/stepbox",
            os.path.expanduser("~"),
            "/workspace",
            "/dev",
        ):
            print(d, sorted(os.listdir(d)), oct(os.stat(d).st_mode), os.stat(d).st_uid)
    """,
)
case(
    "namespaces",
    """
        import os

        print(
            sorted(os.listdir("/proc/self/ns")),
            os.readlink("/proc/self/ns/pid") == os.readlink("/proc/self/ns/pid_for_children"),
        )
        try:
            os.readlink("/proc/1/ns/pid")
        except OSError as e:
            print(e.strerror)
    """,
)
case(
    "keys", "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nprint(l.syscall(250, 0, -3, 0), ctypes.get_errno())"
)
case(
    "time zone",
    "import time\nprint(time.tzname, time.strftime('%H:%M %Z', time.localtime(0)))",
    env={"TZ": "Asia/Tokyo"},
)
case(
    "a time zone that is set late",
    """
        import os, time
        os.environ['TZ'] = 'America/New_York'; time.tzset()
        print(time.strftime('%H:%M %Z', time.localtime(0)))
    """,
)
case(
    "PYTHONPATH",
    "import sys, os\nprint(sys.path, os.environ['PYTHONPATH'])",
    env={"PYTHONPATH": "/workspace/lib:relative::/tmp"},
)
case(
    "modules of the workspace",
    """
        import os, sys
        os.mkdir('pkg'); open('pkg/__init__.py', 'w').write('x = 1'); open('mod.py', 'w').write('y = 2')
        import importlib; importlib.invalidate_caches()
        import pkg, mod
        print(pkg.x, mod.y, pkg.__file__, mod.__file__, mod.__cached__)
        print(sorted(os.listdir('.')))
    """,
)
case(
    "a module that shadows",
    """
        import os
        open('colorsys.py', 'w').write('shadow = True')
        import colorsys
        print(hasattr(colorsys, 'shadow'), colorsys.__file__)
    """,
)
case("a module beside the code", "import importlib.util\nprint(importlib.util.find_spec('main'))")
case("user site", "import site, sys\nprint(site.ENABLE_USER_SITE, site.getusersitepackages(), site.getsitepackages())")
case(
    "options of the step",
    "import os, sys\nprint(os.getcwd(), os.environ['A'], sys.stdin.read(), os.environ['PWD'])",
    cwd="/tmp",
    env={"A": "é\n1"},
    stdin="in\n",
)
case(
    "a home of another place",
    "import os\nprint(os.path.expanduser('~'))\nimport tempfile; print(tempfile.gettempdir())",
    env={"HOME": "/tmp", "TMPDIR": "/dev/shm"},
)
case(
    "many variables",
    "import os\nprint(len(os.environ), os.environ['V499'])",
    env={f"V{i}": str(i) * 20 for i in range(500)},
)
case(
    "warnings",
    """
        import warnings
        warnings.warn('careful')
        warnings.warn('old', DeprecationWarning)
        warnings.warn('held', ResourceWarning)
        print(warnings.filters)
    """,
)
case("a warning of the compiler in a function", "def f():\n    assert (1, 'x')\n    return 'ab' is 'c'\nf()")
case("a file that is not closed", "open('f', 'w').write('x')\nprint('on')")
case(
    "logging",
    """
        import logging
        logging.warning('w %s', 1)
        logging.basicConfig()
        logging.getLogger('a').error('e')
        try: 1/0
        except Exception: logging.exception('failed')
    """,
)
case("help", "help(len)")
case(
    "the banner of an interpreter",
    "import sys\nprint(sys.version, sys.copyright[:20], hasattr(sys, 'ps1'))\nprint(quit, exit, copyright)",
)
case(
    "audit hooks",
    """
        import sys
        sys.addaudithook(lambda n, a: print(n, file=sys.stderr) if n in ('open', 'import') else None)
        import colorsys
    """,
)
case(
    "import times of a file",
    """
        import sys

        print(
            "re" in sys.modules,
            "gc" in sys.modules,
            "atexit" in sys.modules,
            "signal" in sys.modules,
            "time" in sys.modules,
        )
        import re

        print(re.__spec__.cached is not None, "re" in sys.modules)
    """,
)
case(
    "a codec that is looked up",
    """
        import codecs, encodings, sys
        print('x'.encode('utf-16'), sorted(n for n in sys.modules if n.startswith('encodings')))
    """,
)
case(
    "unimported parts",
    """
        import importlib
        try: importlib.util
        except AttributeError as e: print(e)
        import os; print(os.path.__name__)
        import concurrent
        try: concurrent.futures
        except AttributeError as e: print(e)
        import xml
        try: xml.etree
        except AttributeError as e: print(e)
    """,
)
case(
    "interned numbers",
    """
        import sys

        print(
            sys.getrefcount("some text that nobody else has"),
            sys.getallocatedblocks() > 0,
            sys.intern("abc") is "abc",
        )
    """,
)

# What it leaves to the end.
case(
    "exit handlers",
    "import atexit\natexit.register(print, 'first'); atexit.register(print, 'second', flush=True)\nprint('body')",
)
for hook in (
    "sys.settrace(lambda f, e, a: print(e, f.f_code.co_name))",
    "sys.setprofile(lambda f, e, a: sys.__stdout__.write(f'{e} {f.f_code.co_name}\\n'))",
    "sys.addaudithook(lambda name, arguments: print(name))",
):
    case(f"an end that is listened to by {hook[4:12]}", f"import sys\n{hook}\nx = 1")
case("a debugger that is still on at the end", "breakpoint()\nx = 1", stdin="n\nn\nn\nn\n")
case(
    "a database that is not closed",
    "import sqlite3\nc = sqlite3.connect('x.db')\n"
    "c.execute('pragma journal_mode=wal'); c.execute('create table t(a)')\n"
    "c.execute('insert into t values (1)'); c.commit()",
)
case(
    "a transaction that is not ended",
    "import sqlite3\nc = sqlite3.connect('x.db')\n"
    "c.execute('create table t(a)'); c.commit(); c.execute('insert into t values (1)')",
)
case(
    "what is not closed, where that is heard of",
    "import os, warnings\nwarnings.simplefilter('always')\ni = os.scandir('/'); next(i)",
)
case("what compiled code has printed", "import ctypes\nctypes.CDLL(None).printf(b'by the library\\n')")
case("an exit handler that fails", "import atexit\n@atexit.register\ndef f(): 1/0\natexit.register(print, 'other')")
case("an exit handler that exits", "import atexit, sys\natexit.register(sys.exit, 5)\nprint('body')")
case("an exit handler after an exception", "import atexit\natexit.register(print, 'handler')\n1/0")
case("an exit handler after an exit", "import atexit, sys\natexit.register(print, 'handler')\nsys.exit(3)")
case("an exit handler of an exit handler", "import atexit\natexit.register(lambda: atexit.register(print, 'late'))")
case("an exit handler that sees globals", "import atexit\nx = 1\natexit.register(lambda: print(x))")
case(
    "an exit handler that starts a thread",
    """
        import atexit, threading
        @atexit.register
        def f():
            t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
    """,
)
case("exit handlers and os._exit", "import atexit, os\natexit.register(print, 'never')\nos._exit(0)")
case(
    "threads that outlive main",
    """
        import threading, time
        def f():
            time.sleep(.1); print('thread')
        threading.Thread(target=f).start()
        print('main')
    """,
)
case(
    "a thread that outlives an exception",
    "import threading, time\ndef f():\n    time.sleep(.1); print('thread')\nthreading.Thread(target=f).start()\n1/0",
)
case(
    "a thread that outlives an exit",
    """
        import threading, time, sys
        def f():
            time.sleep(.1); print('thread')
        threading.Thread(target=f).start()
        sys.exit(4)
    """,
)
case(
    "a thread that sees globals at the end",
    "import threading, time\nx = 'seen'\ndef f():\n    time.sleep(.1); print(x)\nthreading.Thread(target=f).start()",
)
case(
    "a thread that fails",
    "import threading\nt = threading.Thread(target=lambda: 1/0, name='t'); t.start(); t.join()\nprint('on')",
)
case(
    "a daemon thread",
    """
        import threading, time
        def f():
            while True: time.sleep(.01)
        threading.Thread(target=f, daemon=True).start()
        print('main')
    """,
)
case(
    "a daemon thread that writes",
    """
        import threading, time, sys
        ready = threading.Event()
        def f():
            while True: ready.set(); sys.stderr.write('')
        threading.Thread(target=f, daemon=True).start()
        ready.wait()
        print('main')
    """,
)
case("a thread of _thread", "import _thread, time\n_thread.start_new_thread(time.sleep, (60,))\nprint('main')")
case("a timer", "import threading\nthreading.Timer(.05, print, ('timer',)).start()")
case(
    "a pool that is left",
    """
        from concurrent.futures import ThreadPoolExecutor
        p = ThreadPoolExecutor(2)
        f = [p.submit(pow, 2, n) for n in range(5)]
        print([x.result() for x in f])
    """,
)
case(
    "an atexit of threading",
    "import threading, atexit\nthreading._register_atexit(print, 'threads')\natexit.register(print, 'atexit')",
)
case(
    "an interrupt while threads are waited for",
    """
        import threading, time, os, signal
        def f():
            time.sleep(.1); os.kill(os.getpid(), signal.SIGINT); time.sleep(.1); print('thread')
        threading.Thread(target=f).start()
    """,
)
case("a file whose buffer is full", "f = open('data', 'w'); f.write('kept' * 10)")
case(
    "a file that a cycle holds", "class C: pass\nc = C(); c.me = c; c.f = open('data', 'wb'); c.f.write(b'kept'); del c"
)
case("a file that a function holds", "def f(x=open('data', 'w')): x.write('kept')\nf()")
case("a file that a class holds", "class C:\n    f = open('data', 'w')\nC.f.write('kept')")
case("a file that a module holds", "import json\njson.kept = open('data', 'w'); json.kept.write('kept')")
case("a file that an early module holds", "import os\nos.kept = open('data', 'w'); os.kept.write('kept')")
case("a file that sys holds", "import sys\nsys.kept = open('data', 'w'); sys.kept.write('kept')")
case("a file that builtins hold", "import builtins\nbuiltins.kept = open('data', 'w'); kept.write('kept')")
case(
    "a file that a module of the workspace holds",
    "open('m.py', 'w').write('f = open(\"data\", \"w\")')\nimport m\nm.f.write('kept')",
)
case(
    "a file that a thread's local holds",
    "import threading\nl = threading.local(); l.f = open('data', 'w'); l.f.write('kept')",
)
case(
    "a file that a generator holds",
    "def g():\n    with open('data', 'w') as f:\n        f.write('kept'); yield\ni = g(); next(i)",
)
case("a file that an exception holds", "def f():\n    x = open('data', 'w'); x.write('kept'); raise ValueError\nf()")
case("a file that an exit holds", "import sys\ndef f():\n    x = open('data', 'w'); x.write('kept'); sys.exit(2)\nf()")
case(
    "a file that a hook holds",
    """
        import sys
        f = open('data', 'w'); f.write('kept')
        sys.displayhook = f.write
        sys.excepthook = lambda *a: f.write('hook')
        1/0
    """,
)
case("a compressed file", "import gzip, zipfile\nz = zipfile.ZipFile('z.zip', 'w'); z.writestr('a', 'b')\nprint('on')")
case("a csv writer", "import csv\nf = open('a.csv', 'w', newline=''); w = csv.writer(f); w.writerows([[1, 2], [3, 4]])")
case(
    "a temporary directory that is left",
    """
        import tempfile, os
        d = tempfile.TemporaryDirectory(dir='/workspace', prefix='tmp'); open(d.name + '/x', 'w').close()
        print('on')
    """,
)
case(
    "a temporary file that is left",
    "import tempfile\nf = tempfile.NamedTemporaryFile(dir='/workspace'); f.write(b'x')\nprint('on')",
)
case("finalizers", "class D:\n    def __del__(self): print('del')\nd = D()\nprint('body')")
case(
    "finalizers in turn",
    """
        class D:
            def __init__(self, n): self.n = n
            def __del__(self): print('del', self.n)
        a, _b, c = D('a'), D('_b'), D('c')
        d = [D('list')]
        print('body')
    """,
)
case("a finalizer that uses globals", "x = 'global'\nclass D:\n    def __del__(self): print('del', x)\nd = D()")
case(
    "a finalizer that uses a module",
    "import os, json\nclass D:\n    def __del__(self): print(os.getcwd(), json.dumps([1]))\nd = D()",
)
case("a finalizer that fails", "class D:\n    def __del__(self): raise ValueError('in del')\nd = D()")
case("a finalizer of a cycle", "class D:\n    def __del__(self): print('del')\nd = D(); d.me = d\nprint('body')")
case("a finalizer after an exception", "class D:\n    def __del__(self): print('del')\nd = D()\n1/0")
case(
    "a finalizer that writes to stderr",
    "import sys\nclass D:\n    def __del__(self): sys.stderr.write('del\\n')\nd = D()",
)
case(
    "a finalizer that imports",
    """
        class D:
            def __del__(self):
                try:
                    import colorsys; print('imported')
                except BaseException as e: print(type(e).__name__)
        d = D()
    """,
)
case(
    "a finalizer on a class",
    "class M(type):\n    def __del__(cls): print('class', cls.__name__)\nclass C(metaclass=M): pass",
)
case(
    "a finalizer in a module",
    "open('m.py', 'w').write('class D:\\n    def __del__(self): print(\"module\")\\nd = D()')\nimport m\nprint('body')",
)
case(
    "a finalizer that sees sys.is_finalizing",
    "import sys\nclass D:\n    def __del__(self): print(sys.is_finalizing())\nd = D()",
)
case("sys.is_finalizing in an exit handler", "import sys, atexit\natexit.register(lambda: print(sys.is_finalizing()))")
case(
    "weakref.finalize", "import weakref\nclass C: pass\nc = C()\nweakref.finalize(c, print, 'finalized')\nprint('body')"
)
case(
    "weakref.finalize without exit",
    "import weakref\nclass C: pass\nc = C()\nweakref.finalize(c, print, 'finalized').atexit = False\nprint('body')",
)
case(
    "a weak callback at the end",
    "import weakref\nclass C: pass\nc = C()\nr = weakref.ref(c, lambda r: print('dead'))\nprint('body')",
)
case(
    "a context that is left open",
    """
        import contextlib
        @contextlib.contextmanager
        def f():
            try: yield
            finally: print('closed')
        c = f(); c.__enter__()
        print('body')
    """,
)
case(
    "a generator that is left open",
    "def g():\n    try: yield 1\n    finally: print('closed')\ni = g(); next(i)\nprint('body')",
)
case("a coroutine that nobody awaits", "async def f(): pass\nf()\nprint('on')\nc = f()")
case("output without an end", "import sys\nsys.stdout.write('no end'); sys.stderr.write('nor here')")
case(
    "streams in turn",
    r"""
        import sys, os
        print('a'); print('b', file=sys.stderr); os.write(1, b'c\n'); print('d', flush=True); os.write(2, b'e')
    """,
)
case("a close of stdout", "import sys\nprint('before')\nsys.stdout.close()")
case("a close of stdout and a print", "import sys\nsys.stdout.close()\nprint('x')")
case("a close of stderr", "import sys\nsys.stderr.close()\n1/0")
case("a close of both", "import sys\nsys.stdout.close(); sys.stderr.close()\nsys.exit('x')")
case("a close of descriptor 1", "import os\nprint('lost')\nos.close(1)")
case("a close of descriptor 2", "import os\nos.close(2)\n1/0")
case("a close of descriptor 0", "import os, sys\nos.close(0)\ntry: sys.stdin.read()\nexcept OSError as e: print(e)")
case("a stdout that is full", "import os\nf = os.open('/dev/full', os.O_WRONLY)\nos.dup2(f, 1)\nprint('lost')")
case(
    "a stdout that is full and an exception",
    "import os\nf = os.open('/dev/full', os.O_WRONLY)\nos.dup2(f, 1)\nprint('lost')\n1/0",
)
case(
    "a stdout that is full and an exit",
    "import os, sys\nf = os.open('/dev/full', os.O_WRONLY)\nos.dup2(f, 1)\nprint('lost')\nsys.exit(3)",
)
case("a stdout that nobody reads", "import os\nr, w = os.pipe(); os.close(r); os.dup2(w, 1)\nprint('lost')")
case(
    "a stdout that nobody reads and a flush",
    "import os\nr, w = os.pipe(); os.close(r); os.dup2(w, 1)\nprint('lost', flush=True)",
)
case("a stderr that is full", "import os\nf = os.open('/dev/full', os.O_WRONLY)\nos.dup2(f, 2)\nprint('on')\n1/0")
case("stdout by another", "import sys, io\nsys.stdout = io.StringIO()\nprint('lost')")
case(
    "stdout by a class",
    """
        import sys
        class S:
            def write(self, t): sys.__stdout__.write('<' + t + '>')
            def flush(self): sys.__stdout__.write('flush')
        sys.stdout = S()
        print('x')
    """,
)
case(
    "stdout by one that cannot be flushed",
    "import sys\nclass S:\n    def write(self, t): sys.__stdout__.write(t)\nsys.stdout = S()\nprint('x')",
)
case(
    "stdout by one whose flush fails",
    """
        import sys
        class S:
            closed = False
            def write(self, t): sys.__stdout__.write(t)
            def flush(self): raise ValueError('flush')
        sys.stdout = S()
        print('x')
    """,
)
case(
    "stdout by one whose flush fails and an exception",
    """
        import sys
        class S:
            closed = False
            def write(self, t): sys.__stdout__.write(t)
            def flush(self): raise ValueError('flush')
        sys.stdout = S()
        1/0
    """,
)
case("stdout by none", "import sys\nsys.stdout = None\nprint('lost')\nsys.stderr.write('on\\n')")
case("stderr by none", "import sys\nsys.stderr = None\nprint('on')\n1/0")
case("stderr by none and an exit with text", "import sys\nsys.stderr = None\nsys.exit('text')")
case("stderr by another", "import sys, io\nsys.stderr = io.StringIO()\n1/0")
case(
    "stderr by another and an exit with text",
    """
        import sys
        class S:
            def write(self, t): print('to', repr(t))
            def flush(self): pass
        sys.stderr = S()
        sys.exit('text')
    """,
)
case("stdout by a file", "import sys\nsys.stdout = open('out', 'w')\nprint('kept')")
case("no stdout", "import sys\ndel sys.stdout\nprint('x')")
case("no stderr", "import sys\ndel sys.stderr\n1/0")
case("no stderr and an exit with text", "import sys\ndel sys.stderr\nsys.exit('text')")
case(
    "stdout in another encoding",
    "import sys\nsys.stdout.reconfigure(encoding='latin-1', errors='replace', line_buffering=True)\nprint('é 世')",
)
case("text that cannot be encoded", "print('\\udcff')")
case("output of bytes", "import sys\nsys.stdout.buffer.write(bytes(range(256)))")
case("much output", "for i in range(20_000): print(i)")
case("print to a full line buffer", "import sys\nsys.stdout.write('x' * 8192); sys.stdout.write('y' * 10)")
case(
    "redirected stdout",
    """
        import contextlib, io
        b = io.StringIO()
        with contextlib.redirect_stdout(b): print('x')
        print(repr(b.getvalue()))
    """,
)
case(
    "stdin at its end",
    "import sys\nprint(repr(sys.stdin.read()))\ntry: input('who? ')\nexcept EOFError as e: print(repr(e))",
)
case("input without stdin", "input('who? ')")
case(
    "stdin of lines",
    "print(input('a? ') + input())\nimport sys; print(sys.stdin.readlines(), repr(sys.stdin.buffer.read()))",
    stdin="1\n2\n3\nno end",
)
case("stdin of bytes", "import sys\nprint(sys.stdin.buffer.read())", stdin=b"\xff\x00\n")
case("stdin that is no text", "import sys\nsys.stdin.read()", stdin=b"\xff\n")
case("much stdin", "import sys\nprint(len(sys.stdin.read()))", stdin="x" * 300_000)
case(
    "stdin for a child", "import subprocess\nprint(subprocess.run(['cat'], capture_output=True))", stdin="to the child"
)
case("stdin by descriptor", "import os\nprint(os.read(0, 10), os.read(0, 10))", stdin="abc")
case("getpass", "import getpass\nprint(getpass.getuser())")
case("a breakpoint", "breakpoint()")
case(
    "a frozen collector",
    """
        import gc
        gc.collect()
        print(gc.isenabled(), gc.get_objects() != [])
        class C: pass
        c = C(); c.me = c
        del c
        print(gc.collect() > 0)
    """,
)

# Processes.
case(
    "subprocess",
    "import subprocess\nprint(subprocess.run('echo out; echo err >&2; exit 3', shell=True, capture_output=True))",
)
case(
    "subprocess to the same streams",
    "import subprocess\nprint('a', flush=True)\nsubprocess.run(['sh', '-c', 'echo b; echo c >&2'])\nprint('d')",
)
case(
    "subprocess of the same interpreter",
    """
        import subprocess, sys

        print(
            subprocess.run(
                [sys.executable, "-c", "import sys; print(sys.path, sorted(sys.modules), sys.flags)"],
                capture_output=True,
                text=True,
            ).stdout
        )
    """,
)
case(
    "a module as a program",
    """
        import subprocess, sys
        print(subprocess.run([sys.executable, '-m', 'json.tool'], input='[1]', capture_output=True, text=True).stdout)
    """,
)
case(
    "fork",
    """
        import os
        p = os.fork()
        if p == 0:
            print('child'); raise SystemExit(4)
        print('parent', os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))
    """,
)
case("fork with a buffer", "import os, sys\nsys.stdout.write('twice ')\np = os.fork()\nif p: os.waitpid(p, 0)")
case("a fork that fails", "import os\np = os.fork()\nif p == 0: 1/0\nprint(os.waitpid(p, 0)[1])")
case("a fork that is left behind", "import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('main')")
case("popen", "import os\nprint(os.popen('echo x').read(), os.system('exit 3'))")
case(
    "spawn",
    """
        import os, sys
        print(os.posix_spawn and os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 6'], os.environ), 0)[1])
    """,
)
for method in ("fork", "spawn", "forkserver"):
    case(
        f"multiprocessing by {method}",
        f"""
        import multiprocessing as mp
        from concurrent.futures import ProcessPoolExecutor
        class C:
            def __init__(self, x): self.x = x
        def double(c): return C(2 * c.x)
        def put(q): q.put('queue')
        if __name__ == '__main__':
            context = mp.get_context({method!r})
            with context.Pool(2) as pool: print([c.x for c in pool.map(double, [C(1), C(2)])])
            with ProcessPoolExecutor(2, mp_context=context) as pool: print(pool.submit(pow, 2, 5).result())
            q = context.Queue(); p = context.Process(target=put, args=(q,)); p.start()
            print(q.get()); p.join(); print(p.exitcode)
        """,
    )
case(
    "a process that is not joined",
    """
        import multiprocessing as mp, time
        def f(): time.sleep(.1); print('child', flush=True)
        mp.get_context('fork').Process(target=f).start()
        print('main', flush=True)
    """,
)
case(
    "a pool in a lambda",
    "import multiprocessing as mp\nwith mp.get_context('fork').Pool(1) as p: p.map(lambda x: x, [1])",
)
case(
    "shared memory",
    """
        from multiprocessing import shared_memory
        s = shared_memory.SharedMemory(create=True, size=10); s.buf[0] = 7
        t = shared_memory.SharedMemory(s.name); print(t.buf[0]); t.close(); s.close(); s.unlink()
    """,
)
case(
    "asyncio",
    """
        import asyncio
        async def f(n): await asyncio.sleep(.01 * n); return n
        async def m(): print(await asyncio.gather(f(2), f(1)))
        asyncio.run(m())
    """,
)
case(
    "asyncio with a process",
    """
        import asyncio
        async def m():
            p = await asyncio.create_subprocess_exec('sh', '-c', 'cat; exit 3', stdin=-1, stdout=-1)
            print(await p.communicate(b'in'), p.returncode)
        asyncio.run(m())
    """,
)
case("asyncio with an exception", "import asyncio\nasync def m(): 1/0\nasyncio.run(m())")
case(
    "asyncio with a task that is left",
    """
        import asyncio
        async def f(): await asyncio.sleep(60)
        async def m(): global t; t = asyncio.create_task(f()); await asyncio.sleep(0)
        asyncio.run(m())
        print(t.cancelled())
    """,
)
case(
    "a socket pair and threads",
    """
        import socket, threading

        a, b = socket.socketpair()
        t = threading.Thread(target=lambda: b.sendall(b.recv(5).upper()))
        t.start()
        a.sendall(b"hello")
        print(a.recv(5))
        t.join()
    """,
)
case(
    "loopback",
    """
        import socket
        s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print('loopback')
        try: socket.create_connection(('1.1.1.1', 80), 5)
        except OSError as e: print(e)
    """,
)
case(
    "sqlite",
    """
        import sqlite3

        c = sqlite3.connect("d.sqlite")
        c.execute("create table t (x)")
        c.execute("insert into t values (1)")
        c.commit()
        print(c.execute("select * from t").fetchall())
    """,
)
case(
    "files",
    """
        import os
        open('a', 'w').write('x'); os.mkdir('d'); os.symlink('a', 'd/l'); os.chmod('a', 0o600); os.mkfifo('p')
        print(sorted(os.listdir('.')))
    """,
)
case(
    "places that are read-only",
    """
        import os
        for p in ('/x', '/usr/x', '/etc/x', __file__, '/run/stepbox/x', '/proc/sys/kernel/hostname'):
            try: open(p, 'w').close(); print('written', p)
            except OSError as e: print(p, e.strerror)
    """,
)
case(
    "refused calls",
    """
        import ctypes, os

        l = ctypes.CDLL(None, use_errno=True)
        for f, *a in (
            ("ptrace", 0, 0, 0, 0),
            ("unshare", 0x10000000),
            ("unshare", 0x400),
            ("process_vm_readv", os.getpid(), 0, 0, 0, 0, 0),
            ("chroot", b"/"),
        ):
            print(f, getattr(l, f)(*a), ctypes.get_errno())
    """,
)
if platform.machine() == "x86_64":
    for name, number in (("mount", 165), ("pivot_root", 155), ("bpf", 321), ("setns", 308), ("kexec_load", 246)):
        case(
            f"the blocked call {name}",
            f"import ctypes; l = ctypes.CDLL(None); print('on', flush=True); l.syscall({number}, 0, 0, 0, 0, 0)",
        )
    case(
        "a blocked call of a child",
        """
            import ctypes, os
            if os.fork() == 0: ctypes.CDLL(None).syscall(165, 0, 0, 0, 0, 0)
            os.wait(); print('after')
        """,
    )
    case(
        "keys and rings",
        """
            import ctypes
            l = ctypes.CDLL(None, use_errno=True)
            for n in (250, 425, 435, 323):
                ctypes.set_errno(0); print(n, l.syscall(n, 0, 0, 0, 0, 0), ctypes.get_errno())
        """,
    )
case(
    "memory that is not there",
    "b = []\nprint('on', flush=True)\nwhile True: b.append(bytearray(10 << 20))",
    memory_mb=64,
)
case(
    "memory that is not there for a child",
    """
        import os
        print('on', flush=True)
        if os.fork() == 0:
            b = []
            while True: b.append(bytearray(10 << 20))
        os.wait()
    """,
    memory_mb=64,
)
case("a deadline", "print('on', flush=True)\nwhile True: pass", timeout_s=0.5)
case(
    "a deadline with signals ignored",
    """
        import os, signal, time
        for n in range(1, 32):
            try: signal.signal(n, signal.SIG_IGN)
            except OSError: pass
        if os.fork() == 0: os.setsid(); os.fork()
        print('on', flush=True)
        while True: time.sleep(1)
    """,
    timeout_s=0.5,
)
case(
    "a deadline that an exit handler meets",
    "import atexit, time\nprint('on', flush=True)\natexit.register(time.sleep, 60)",
    timeout_s=0.5,
)
case(
    "a deadline that a thread meets",
    "import threading, time\nprint('on', flush=True)\nthreading.Thread(target=time.sleep, args=(60,)).start()",
    timeout_s=0.5,
)
case("a kill by its own hand", "import os\nprint('on', flush=True)\nos.kill(os.getpid(), 9)")
case("a kill of everything", "import os\nprint('on', flush=True)\nprint(os.kill(-1, 9))")
case("a stop of itself", "import os\nprint('on', flush=True)\nos.kill(os.getpid(), 19)", timeout_s=0.5)
case(
    "a variable that shapes libraries", "import os\nprint(os.environ['OMP_NUM_THREADS'])", env={"OMP_NUM_THREADS": "3"}
)
case(
    "numpy",
    """
        try: import numpy as np
        except ImportError: print('none')
        else: print(np.arange(6).reshape(2, 3) @ np.ones((3, 2)))
    """,
)
case(
    "random with a seed",
    """
        import random, hashlib
        random.seed(5); print(random.random(), random.sample(range(100), 5), hashlib.sha256(b'x').hexdigest())
    """,
)
case(
    "decimal and dates",
    """
        import decimal, datetime, fractions
        print(decimal.getcontext(), datetime.date(2024, 2, 29).isoformat(), fractions.Fraction(1, 3))
    """,
)


# The tasks at their most are not counted by each kind of cgroup, and not asked for once the sandbox is gone.
KNOWN_USAGE = ("cpu_ms", "peak_memory_bytes", "startup_ms", "queue_ms", "oom_kills", "pids_denied", "denied_syscalls")


def told(result):
    """All that a result says, but for what time, addresses and the numbers of processes have a part in."""
    usage = result.usage
    return {
        "stdout": re.sub(rb"0x[0-9a-f]{6,}", b"0x", result.stdout_bytes),
        "stderr": re.sub(rb"0x[0-9a-f]{6,}", b"0x", result.code_stderr_bytes),
        "exit code": (result.exit_code, result.signal),
        "fault": result.fault and (result.fault.type, re.sub(r"process \d+|held \d+", "", result.fault.message)),
        "files": sorted((item.path, item.change, item.kind, item.size, item.mode) for item in result.files),
        "notes": result.runtime_notes,
        "denied": (usage.denied_syscalls, usage.pids_denied),
        "known": [name for name in KNOWN_USAGE if getattr(usage, name) is not None],
        "limits": result.limits,
        "isolation": result.isolation,
    }


@pytest.fixture(scope="module")
def by_start():
    """Gives the sandbox whose steps are started in one way."""
    with contextlib.ExitStack() as stack:
        opened = {}

        def of(start):
            if start not in opened:
                opened[start] = stack.enter_context(started(start))
            return opened[start]

        yield of


@functools.cache
def of_cold(cold, name):
    """What a cold step tells; it is run once for both kinds of forked ones."""
    return run(cold, name)


def run(begun, name):
    code, options = TABLE[name]
    result = begun.py(code, **options)
    if result.files:
        begun.empty()
    return told(result)


# From the fork on both are the same: what is forked on demand is looked at here and there.
CASES = [("forked_ahead", name) for name in TABLE] + [("forked", name) for name in list(TABLE)[::6]]


@pytest.mark.parametrize(("start", "name"), CASES)
def test_a_forked_step_is_told_as_a_cold_one_is(by_start, start, name):
    assert run(by_start(start), name) == of_cold(by_start("cold"), name)
