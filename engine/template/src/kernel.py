# The interpreter of a kernel: runs cell after cell in one namespace, until its sandbox ends. Started as a script from a
# sealed file, with three descriptors in its arguments: the library that speaks with the sandbox's init, the memory that
# they share, and that for what cells show. Before the first cell runs, no descriptor leads to any of them.
#
# Code may do to the interpreter what it likes, and only the end of the process is to end the loop: what runs between cells
# is bound before the first of them, and runs with the code's handlers, tracing and limits put aside.
import builtins
import sys

# What the functions below find, whatever becomes of the module.
__builtins__ = dict(vars(builtins))

CELLS = "/run/stepbox/cell{}.py"
# Sources that tracebacks can show.
SOURCES_KEPT = 1000
# Where what shows results says that it is.
SHOWING = "<stepbox>"
INTERRUPTED = 130
# Calls that may be deep between cells, whatever the code's own limit is.
DEPTH = 1000


def load(descriptor):
    import _imp

    specification = type(sys.__spec__)("_stepbox", None, origin=f"/proc/self/fd/{descriptor}")
    module = _imp.create_dynamic(specification)
    _imp.exec_dynamic(module)
    sys.modules.pop("_stepbox", None)
    return module


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


class Ways:
    """What code sets up for itself, put aside while none of it runs: signal handlers, which raise wherever they meet the
    interpreter, tracing, a limit of recursion."""

    def __init__(self, signal, harmless):
        self.mask = signal.pthread_sigmask
        self.block, self.set = signal.SIG_BLOCK, signal.SIG_SETMASK
        self.every = signal.valid_signals()
        self.handler_of, self.handle = signal.getsignal, signal.signal
        # Handlers that may stay, because they raise nothing between cells.
        self.harmless = harmless
        # Takes what a handler is given and does nothing, without running any code.
        self.nothing = {}.get
        self.trace_of, self.trace = sys.gettrace, sys.settrace
        self.profile_of, self.profile = sys.getprofile, sys.setprofile
        self.monitoring = getattr(sys, "monitoring", None)
        self.limit_of, self.limit = sys.getrecursionlimit, sys.setrecursionlimit
        # What the code blocks itself, and whether all is blocked beside it.
        self.blocked = self.mask(self.block, ())
        self.hushed = False
        self.handlers = {}
        self.traces = [None, None]
        self.events = {}
        self.depth = DEPTH

    def hush(self):
        """After this nothing is raised but what fails. No `for` and no call of a function of Python's come first: that is
        where an interpreter runs handlers, and each of these lines is to be reached whatever the one before it raised."""
        try:
            if not self.hushed:
                self.blocked = self.mask(self.block, ())
        except BaseException:
            pass
        try:
            self.hushed = True
            # Other threads may still be met by a signal, and then this one runs the handler.
            self.mask(self.block, self.every)
        except BaseException:
            pass
        try:
            self.traces[0] = self.trace_of() or self.traces[0]
            self.trace(None)
        except BaseException:
            pass
        try:
            self.traces[1] = self.profile_of() or self.traces[1]
            self.profile(None)
        except BaseException:
            pass
        try:
            self.put_aside()
        except BaseException:
            try:
                self.put_aside()
            except BaseException:
                self.put_aside()

    def put_aside(self):
        for number in self.every:
            handler = self.handler_of(number)
            if callable(handler) and handler is not self.nothing and handler not in self.harmless:
                self.handlers[number] = handler
                self.handle(number, self.nothing)
        if self.monitoring is not None:
            for tool in range(6):
                events = self.monitoring.get_events(tool) if self.monitoring.get_tool(tool) else 0
                if events:
                    self.events[tool] = events
                    self.monitoring.set_events(tool, 0)
        depth = self.limit_of()
        if depth < DEPTH:
            self.depth = depth
            self.limit(DEPTH)

    def handlers_back(self):
        """What has arrived meanwhile is handled before this ends."""
        for number, handler in list(self.handlers.items()):
            self.handle(number, handler)
            del self.handlers[number]
        self.hushed = False
        self.mask(self.set, self.blocked)

    def tracing_back(self):
        """The last before the code: the calls of whoever calls this are traced from here on."""
        if self.depth < DEPTH:
            depth, self.depth = self.depth, DEPTH
            self.limit(depth)
        for tool, events in self.events.items():
            if self.monitoring.get_tool(tool):
                self.monitoring.set_events(tool, events)
        self.events.clear()
        trace, profile = self.traces
        self.traces = [None, None]
        if profile is not None:
            self.profile(profile)
        if trace is not None:
            self.trace(trace)


class Kernel:
    def __init__(self, native, os, library):
        self.native = native
        self.getpid, self.exit, self.write = os.getpid, os._exit, os.write
        self.library = library
        ast = library("ast")
        self.expression_statement, self.expression = ast.Expr, ast.Expression
        self.only_tree = ast.PyCF_ONLY_AST
        features = library("__future__")
        self.features = [getattr(features, name).compiler_flag for name in features.all_feature_names]
        self.sources = library("linecache").cache
        self.format = library("traceback").format_exception
        self.display = sys.__excepthook__
        _, self.show_value, _, self.showing = native.parts()
        self.showing.in_kernel = True
        # That ends a cell, whatever it is doing.
        self.showing.passed = (KeyboardInterrupt,)
        self.figures = self.showing.open_figures
        self.python = sys.version_info[:2]
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
        # The interpreter's own, beneath the module that code may change.
        signal = library("_signal")
        interrupt = self.interrupt
        signal.signal(signal.SIGINT, interrupt)
        self.ways = Ways(signal, [interrupt, library("signal").default_int_handler])

    # ---- interrupts ----

    def interrupt(self, number, frame):
        if self.getpid() == self.process:
            self.native.hear_interrupt()
            # One that comes when its cell is over is not the next one's.
            if not self.running or self.loop.cancel():
                return
        raise KeyboardInterrupt

    # ---- a cell ----

    def serve(self):
        while True:
            answer = b"\1"
            try:
                code = self.cell(self.next_cell())
                self.flush()
                self.restore()
                answer = bytes([code])
            except BaseException:
                # Another thread can raise what it likes here; the cell has to end all the same.
                self.ways.hush()
            code = None
            try:
                if self.getpid() != self.process:
                    # A child of a cell that went on to the cell's end: it has nothing to answer.
                    self.exit(answer[0])
                self.native.finish_cell(answer)
            except BaseException:
                # No cell had begun.
                pass

    def next_cell(self):
        """Waits for a cell. The code's handlers are at work meanwhile, up to one that raises."""
        heard = False
        while True:
            error = None
            try:
                if not heard:
                    self.ways.handlers_back()
                return self.native.next_cell()
            except BaseException as raised:
                error = raised
            finally:
                self.ways.hush()
            if self.getpid() != self.process:
                raise error
            try:
                # One that was taken in that instant.
                self.native.finish_cell(b"\1")
            except OSError:
                pass
            heard = True
            self.show(error)

    def cell(self, source):
        """Runs one; gives its exit code."""
        self.count += 1
        error = None
        try:
            self.ways.handlers_back()
        except BaseException:
            # What came before the cell is not the cell's.
            pass
        try:
            try:
                self.running = True
                self.native.begin_cell()
                try:
                    self.run(source.decode("utf-8", "surrogateescape"))
                finally:
                    if "matplotlib.pyplot" in sys.modules:
                        self.figures()
            finally:
                self.running = False
        except BaseException as raised:
            error = raised
        try:
            self.ways.hush()
        except BaseException:
            self.ways.hush()
        try:
            if error is None:
                return 0
            if isinstance(error, SystemExit):
                return self.exit_code(error.code)
            self.show(error)
            return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        finally:
            # What it refers to ends when the code lets go of it.
            error = None

    def run(self, source):
        file = CELLS.format(self.count)
        self.remember(file, source)
        body, last = self.compiled(source, file)
        value = self.evaluated(body, last)
        if value is not None:
            self.show_value(value)

    def compiled(self, source, file):
        """All but a last expression whose value is asked for, and that expression."""
        tree = compile(source, file, "exec", self.flags | self.only_tree, True)
        last = None
        is_expression = tree.body and isinstance(tree.body[-1], self.expression_statement)
        try:
            if is_expression and not self.is_silent(source, tree.body[-1]):
                expression = self.expression(tree.body.pop().value)
                last = compile(expression, file, "eval", self.flags, True)
            body = compile(tree, file, "exec", self.flags, True)
        except SyntaxError as error:
            self.quote(error, source)
            raise
        # What a cell imports from `__future__` holds for those after it, as at a prompt.
        for flag in self.features:
            if body.co_flags & flag:
                self.flags |= flag
        return body, last

    def quote(self, error, source):
        """Gives an error the line that it is in: a tree does not have it."""
        lines = source.encode("utf-8", "surrogatepass").splitlines(True)
        if error.text is None and error.lineno and error.lineno <= len(lines):
            line = lines[error.lineno - 1]

            def column(at):
                return at and len(line[: at - 1].decode("utf-8", "replace")) + 1

            error.text = line.decode("utf-8", "replace")
            # Trees count bytes.
            error.offset = column(error.offset)
            if getattr(error, "end_lineno", None) == error.lineno:
                error.end_offset = column(error.end_offset)

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
        self.ways.tracing_back()
        eval(body, self.scope)
        return eval(last, self.scope) if last else None

    async def awaited(self, body, last):
        coroutine = 0x80
        value = None
        self.ways.tracing_back()
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
            return int.__and__(code, 0xFF)
        self.write_error(f"{code}\n")
        return 1

    def show(self, error):
        """Prints a traceback that begins in the cell, by the code's own hook if it has one."""
        try:
            self.trim(error)
            traceback = error.__traceback__
            self.flush()
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
            if self.python >= (3, 12):
                sys.last_exc = error
            hook = getattr(sys, "excepthook", self.display)
            if hook is not self.display:
                return self.by_hook(hook, error, traceback)
            self.write_error("".join(self.format(type(error), error, traceback)))
        except BaseException as worse:
            self.write_error(f"{type(error).__name__}, and {type(worse).__name__} when it was to be shown\n")
            # The interpreter's own way needs none of the library.
            self.display(type(error), error, error.__traceback__)

    def by_hook(self, hook, error, traceback):
        try:
            self.ways.handlers_back()
            hook(type(error), error, traceback)
        finally:
            self.ways.hush()

    def write_error(self, text):
        try:
            sys.stderr.write(text)
        except BaseException:
            try:
                self.write(2, text.encode("utf-8", "backslashreplace"))
            except OSError:
                # The code has closed it.
                pass

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
            kept = [frame for frame, file in list(zip(frames, files))[first:] if file not in (self.own_file, SHOWING)]
            for frame, following in zip(kept, [*kept[1:], None]):
                frame.tb_next = following
            error.__traceback__ = kept[0] if kept else None

    def flush(self):
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except BaseException:
                pass

    def restore(self):
        """Opens again what a cell closed or removed: `quit()` closes the standard input."""
        for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
            try:
                if not hasattr(sys, name) or getattr(getattr(sys, name), "closed", False) is True:
                    errors = "backslashreplace" if number == 2 else "surrogateescape"
                    buffering = 1 if number else -1
                    stream = open(number, mode, encoding="utf-8", errors=errors, buffering=buffering, closefd=False)
                    setattr(sys, name, stream)
            except BaseException:
                # The descriptor beneath it is closed too, or the stream is the code's own.
                pass


def live():
    import os

    script, library, memory, board = sys.argv[0].rpartition("/")[2], *sys.argv[1:]
    native = load(library)
    native.attach(int(memory))
    native.attach_results(int(board))
    native.equip(native.display)
    for descriptor in (script, library, memory, board):
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
