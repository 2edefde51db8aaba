# The interpreter of a kernel: runs cell after cell in one namespace, until its sandbox ends. Started as a script from a
# sealed file, with two descriptors in its arguments: the library that speaks with the sandbox's init, and the memory that
# they share. Before the first cell runs, no descriptor leads to either.
import sys

CELLS = "/run/stepbox/cell{}.py"
# Sources that tracebacks can show.
SOURCES_KEPT = 1000
# Bytes of a result's text.
TEXT_MOST = 1 << 20
INTERRUPTED = 130


def load(descriptor):
    import _imp

    specification = type(sys.__spec__)("_stepbox", None, origin=f"/proc/self/fd/{descriptor}")
    module = _imp.create_dynamic(specification)
    _imp.exec_dynamic(module)
    sys.modules.pop("_stepbox", None)
    return module


class Text:
    """What a value looks like: its `repr`, within bounds."""

    def __init__(self, value):
        data = repr(value).encode("utf-8", "backslashreplace")
        if len(data) > TEXT_MOST:
            data = data[:TEXT_MOST].decode("utf-8", "ignore").encode() + "…".encode()
        self.bundle = {"text/plain": data}


class Loop:
    """The event loop of all cells. Made for the first cell that awaits something."""

    def __init__(self, library):
        self.library = library
        self.loop = None
        # The task of the cell that runs, and whether it has been cancelled by an interrupt.
        self.task = None
        self.cancelled = False
        # Tasks of earlier cells.
        self.earlier = ()

    def run(self, coroutine):
        asyncio = self.library("asyncio")
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        # `asyncio.run` in a cell before this one left none.
        asyncio.set_event_loop(self.loop)
        self.cancelled = False
        self.earlier = asyncio.all_tasks(self.loop)
        task = self.task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except asyncio.CancelledError as error:
            if self.cancelled:
                raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
            raise
        except (KeyboardInterrupt, SystemExit):
            self.settle(task)
            raise
        finally:
            self.task = None
            self.earlier = ()

    def settle(self, task):
        """Ends a task that was left in the middle, so that it does not go on in a later cell."""
        if not task.done():
            task.cancel()
            try:
                self.loop.run_until_complete(task)
            except BaseException:
                pass
        elif not task.cancelled():
            task.exception()  # which says that it was looked at

    def cancel(self):
        """Interrupts a cell that waits. False: no cell does, or one that takes no notice."""
        if self.task is None or self.cancelled:
            return False
        current = self.library("asyncio").current_task(self.loop)
        if current is not None and current not in self.earlier:
            return False
        self.cancelled = True
        self.task.cancel()
        self.loop.call_soon_threadsafe(lambda: None)
        return True


class Library:
    """The interpreter's own modules, whatever files of the same names the workspace has."""

    def __init__(self, os):
        given = os.environ.get("PYTHONPATH", "").split(":")
        # The first place is the script's own, if there is one.
        first = 0 if getattr(sys.flags, "safe_path", False) else 1
        self.path = [place for place in sys.path[first:] if place not in given]

    def __call__(self, name):
        module = sys.modules.get(name)
        if module is None:
            path, sys.path = sys.path, self.path
            try:
                module = __import__(name)
            finally:
                sys.path = path
        return module


class Kernel:
    def __init__(self, native, os, library):
        self.native = native
        self.os = os
        self.library = library
        self.ast = ast = library("ast")
        self.features = library("__future__")
        self.sources = library("linecache").cache
        signal = library("signal")
        self.process = os.getpid()
        self.loop = Loop(library)
        self.flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        # The first one is empty: it tells that the interpreter is ready.
        self.count = -1
        self.running = False
        self.own_file = Kernel.__init__.__code__.co_filename
        main = type(sys)("__main__")
        self.scope = main.__dict__
        self.scope["__builtins__"] = sys.modules["builtins"]
        sys.modules["__main__"] = main
        signal.signal(signal.SIGINT, self.interrupt)

    # ---- interrupts ----

    def interrupt(self, number, frame):
        if self.os.getpid() == self.process:
            self.native.hear_interrupt()
            # One that comes when its cell is over is not the next one's.
            if not self.running or self.loop.cancel():
                return
        raise KeyboardInterrupt

    # ---- a cell ----

    def serve(self):
        while True:
            try:
                source = self.native.next_cell()
            except Exception as error:
                # A handler of the code's own that raised while nothing ran.
                self.show(error)
                continue
            code, bundles = self.cell(source)
            del source
            self.flush()
            if self.os.getpid() != self.process:
                # A child of a cell that went on to the cell's end: it has nothing to answer.
                self.os._exit(code)
            self.restore()
            self.native.finish_cell(bytes([code]) + self.packed(bundles))
            del bundles

    def cell(self, source):
        """Runs one; gives its exit code and its results."""
        self.count += 1
        try:
            try:
                self.running = True
                self.native.begin_cell()
                return 0, self.results(source.decode("utf-8", "surrogateescape"))
            finally:
                self.running = False
        except SystemExit as error:
            return self.exit_code(error.code), []
        except BaseException as error:
            self.show(error)
            return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1, []

    def results(self, source):
        file = CELLS.format(self.count)
        self.remember(file, source)
        body, last = self.compiled(source, file)
        value = self.evaluated(body, last)
        return [] if value is None else [Text(value).bundle]

    def compiled(self, source, file):
        """All but a last expression whose value is asked for, and that expression."""
        ast = self.ast
        tree = compile(source, file, "exec", self.flags | ast.PyCF_ONLY_AST, True)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not self.is_silent(source, tree.body[-1]):
            expression = ast.Expression(tree.body.pop().value)
            last = compile(expression, file, "eval", self.flags, True)
        body = compile(tree, file, "exec", self.flags, True)
        # What a cell imports from `__future__` holds for those after it, as at a prompt.
        for name in self.features.all_feature_names:
            flag = getattr(self.features, name).compiler_flag
            if body.co_flags & flag:
                self.flags |= flag
        return body, last

    def is_silent(self, source, last):
        """Whether a semicolon follows the last expression. No text can follow it: only brackets and comments."""
        lines = source.encode("utf-8", "surrogatepass").splitlines()[last.end_lineno - 1 :]
        if lines:
            lines[0] = lines[0][last.end_col_offset :]
        rest = b"".join(line.partition(b"#")[0] for line in lines)
        return rest.rstrip().endswith(b";")

    def evaluated(self, body, last):
        coroutine = 0x80
        if (body.co_flags | (last.co_flags if last else 0)) & coroutine:
            return self.loop.run(self.awaited(body, last))
        eval(body, self.scope)
        return eval(last, self.scope) if last else None

    async def awaited(self, body, last):
        coroutine = 0x80
        value = None
        for code in (body, last):
            if code is not None:
                value = eval(code, self.scope)
                if code.co_flags & coroutine:
                    value = await value
        return value if last else None

    # ---- what it leaves ----

    def remember(self, file, source):
        self.sources[file] = (len(source), None, source.splitlines(True), file)
        self.sources.pop(CELLS.format(self.count - SOURCES_KEPT), None)

    def exit_code(self, code):
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 0xFF
        self.write_error(f"{code}\n")
        return 1

    def show(self, error):
        """Prints a traceback that begins in the cell, by the code's own hook if it has one."""
        try:
            self.trim(error)
            traceback = error.__traceback__
            self.flush()
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
            if sys.version_info >= (3, 12):
                sys.last_exc = error
            if sys.excepthook is not sys.__excepthook__:
                return sys.excepthook(type(error), error, traceback)
            printer = self.library("traceback")
            self.write_error("".join(printer.format_exception(type(error), error, traceback)))
        except BaseException as worse:
            self.write_error(f"{type(error).__name__}, and {type(worse).__name__} when it was to be shown\n")

    def write_error(self, text):
        try:
            sys.stderr.write(text)
        except BaseException:
            self.os.write(2, text.encode("utf-8", "backslashreplace"))

    def trim(self, error):
        """Takes the frames of this file, and what lies between them and the cell, out of an exception and its causes."""
        seen = set()
        waiting = [error]
        while waiting:
            error = waiting.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            waiting += [error.__cause__, error.__context__]
            frames = []
            traceback = error.__traceback__
            while traceback is not None:
                frames.append(traceback)
                traceback = traceback.tb_next
            files = [frame.tb_frame.f_code.co_filename for frame in frames]
            if self.own_file not in files:
                continue
            first = next((at for at, file in enumerate(files) if file.startswith("/run/stepbox/cell")), 0)
            kept = [frame for frame, file in list(zip(frames, files))[first:] if file != self.own_file]
            for frame, following in zip(kept, [*kept[1:], None]):
                frame.tb_next = following
            error.__traceback__ = kept[0] if kept else None

    def flush(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                pass

    def restore(self):
        """Opens again what a cell closed: `quit()` closes the standard input."""
        for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
            stream = getattr(sys, name)
            if getattr(stream, "closed", False) is True:
                errors = "backslashreplace" if number == 2 else "surrogateescape"
                stream = open(number, mode, encoding="utf-8", errors=errors, buffering=1 if number else -1, closefd=False)
                setattr(sys, name, stream)

    def packed(self, bundles):
        def sized(data):
            return len(data).to_bytes(4, "little") + data

        pieces = []
        for bundle in bundles:
            pieces.append(b"\1" + len(bundle).to_bytes(4, "little"))
            for kind, data in bundle.items():
                pieces += [sized(kind.encode()), sized(data)]
        return b"".join(pieces)


def live():
    import os

    script, library, memory = sys.argv[0].rpartition("/")[2], *sys.argv[1:]
    native = load(library)
    native.attach(int(memory))
    for descriptor in (script, library, memory):
        try:
            os.close(int(descriptor))
        except OSError:
            pass
    library_modules = Library(os)
    if not getattr(sys.flags, "safe_path", False):
        # Where the script lies, which is nowhere.
        sys.path[0] = CELLS.rpartition("/")[0]
    sys.argv[:] = [""]
    if hasattr(sys, "orig_argv"):
        del sys.orig_argv[1:]
    # What was printed before a cell is stopped is the caller's.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    Kernel(native, os, library_modules).serve()


live()
