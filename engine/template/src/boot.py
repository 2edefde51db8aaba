# The life of a template, and of what is forked from it. Started as the script of an interpreter that a session uses, from
# a sealed file, before any session's code, data or environment is near.
#
# Nothing of the standard library is imported here that the interpreter has not imported by itself at its start: what a
# step finds in `sys.modules` is what it would find in an interpreter of its own.
import sys

SOCKET = 3
LIBRARY = "/proc/self/fd/4"
SCRIPT = "/run/stepbox/main.py"


def load():
    import _imp

    specification = type(sys.__spec__)("_stepbox", None, origin=LIBRARY)
    module = _imp.create_dynamic(specification)
    _imp.exec_dynamic(module)
    sys.modules.pop("_stepbox", None)
    return module


def quiet(os):
    # The standard streams were made on pipes, as those of a step are; from here on nobody reads them.
    nowhere = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def preload(names, os, native):
    for name in names:
        try:
            __import__(name)
        except BaseException as error:
            native.refuse(f"{name}\0could not be imported: {type(error).__name__}: {error}".encode("utf-8", "replace"))
        if len(os.listdir("/proc/self/task")) > 1:
            native.refuse(f"{name}\0starts threads when it is imported, which a forked process would not have".encode())


class Main:
    """What a step's process does with what it is told."""

    def __init__(self, os, gc, atexit):
        self.os = os
        self.gc = gc
        self.atexit = atexit
        self.variables = dict(os.environb)
        self.module = type(sys)
        self.loader = type(sys.modules["__main__"].__loader__)
        self.known = set(sys.modules)
        self.last = next(reversed(sys.modules))
        # What the variable adds is added anew for each step.
        added = os.environ.get("PYTHONPATH", "").split(":")
        self.path = [place for place in sys.path[1:] if place not in added]

    def surroundings(self, environment):
        os = self.os
        pairs = dict(zip(environment[::2], environment[1::2]))
        if pairs == self.variables:
            return
        for name in self.variables:
            if name not in pairs:
                del os.environb[name]
        for name, value in pairs.items():
            if self.variables.get(name) != value:
                os.environb[name] = value
        self.variables = pairs
        listed = pairs.get(b"PYTHONPATH", b"")
        sys.path[:] = [
            SCRIPT.rpartition("/")[0],
            *[os.fsdecode(place) for place in listed.split(b":") if place],
            *self.path,
        ]
        place = pairs.get(b"PYTHONPYCACHEPREFIX")
        sys.pycache_prefix = os.fsdecode(place) if place else None
        if b"TZ" in pairs:
            import time

            time.tzset()

    def reseed(self):
        fresh = self.os.urandom
        modules = sys.modules
        if "random" in modules:
            modules["random"].seed()
        if "tempfile" in modules:
            modules["tempfile"]._name_sequence = None
        if "uuid" in modules:
            for name in ("_node", "_last_timestamp"):
                if hasattr(modules["uuid"], name):
                    setattr(modules["uuid"], name, None)
        if "_ssl" in modules:
            modules["_ssl"].RAND_add(fresh(64), 0.0)
        if "numpy.random" in modules:
            modules["numpy.random"].seed(int.from_bytes(fresh(4), "little"))
        if "torch" in modules:
            modules["torch"].manual_seed(int.from_bytes(fresh(8), "little") >> 1)

    def fresh_main(self):
        main = self.module("__main__")
        scope = main.__dict__
        scope["__file__"] = SCRIPT
        scope["__cached__"] = None
        scope["__builtins__"] = sys.modules["builtins"]
        scope["__loader__"] = self.loader("__main__", SCRIPT)
        if sys.version_info < (3, 14):
            scope["__annotations__"] = {}
        sys.modules["__main__"] = main
        return scope

    def run(self, source, scope):
        """Runs the code; gives the exit code, or none where it was interrupted."""
        try:
            exec(compile(source, SCRIPT, "exec", dont_inherit=True), scope)
        except SystemExit as error:
            return self.exit_code(error.code)
        except BaseException as error:
            self.show(error)
            return None if isinstance(error, KeyboardInterrupt) else 1
        return 0

    def exit_code(self, code):
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
        self.flush(sys.stdout)
        try:
            sys.stderr.write(f"{code}\n")
        except BaseException:
            pass
        return 1

    def show(self, error):
        # The first entry is the call above.
        traceback = error.__traceback__ and error.__traceback__.tb_next
        error = error.with_traceback(traceback)
        self.flush(sys.stdout)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        try:
            sys.excepthook(type(error), error, traceback)
        except SystemExit:
            raise
        except BaseException as worse:
            sys.stderr.write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(worse), worse, worse.__traceback__)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(type(error), error, traceback)

    def flush(self, stream):
        try:
            stream.flush()
        except BaseException:
            return False
        return True

    def finish(self, scope, code):
        """Ends as an interpreter does, as far as a program can tell: threads, exit handlers, finalizers, streams."""
        if "threading" in sys.modules:
            try:
                sys.modules["threading"]._shutdown()
            except BaseException as error:
                self.show(error)
        # Before 3.10 each import of it has functions of its own.
        sys.modules.get("atexit", self.atexit)._run_exitfuncs()
        flushed = self.flush(sys.stdout) if sys.stdout is not None else True
        if sys.stderr is not None:
            self.flush(sys.stderr)
        self.clear(scope)
        modules = sys.modules
        # Those that are new come last, and a look at each costs a page.
        if len(modules) != len(self.known) or next(reversed(modules)) != self.last:
            for name in reversed([name for name in list(modules) if name not in self.known]):
                if isinstance(modules.get(name), self.module):
                    self.clear(modules[name].__dict__)
        self.gc.collect()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                self.flush(stream)
        return code if flushed else 120

    def clear(self, scope):
        names = [name for name in scope if isinstance(name, str) and name != "__builtins__"]
        # The private ones first, as the interpreter does.
        for private in (True, False):
            for name in names:
                if (name[0:1] == "_" and name[1:2] != "_") == private:
                    scope[name] = None

    def end(self, code):
        if code is None:
            import signal

            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self.os.kill(self.os.getpid(), signal.SIGINT)
        self.os._exit(code if code is not None else 130)


def rehearse(main):
    """Goes the way of a step once: each page that is written to for the first time since the fork is copied, which takes
    longer than the step does. What it leaves is taken back."""
    scope = main.fresh_main()
    main.run(b"import sys\nprint(1)\n", scope)
    main.flush(sys.stdout)
    main.clear(scope)
    main.gc.collect()


def learn(main, environment, os, native):
    """Finds out which pages a step touches, by a trial in a fork: those are fetched at once in each fork to come.

    It is another fork that looks: what the template writes to meanwhile would seem to be the trial's own."""
    receive, send = os.pipe()
    looker = os.fork()
    if not looker:
        try:
            os.close(receive)
            page = os.sysconf("SC_PAGE_SIZE")
            for ranges in trial(main, environment, os, native, page):
                os.write(send, len(ranges).to_bytes(8, sys.byteorder) + ranges)
        finally:
            # A kernel that does not tell: each page comes when it is touched.
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as answer:
        for keep in (native.keep_written, native.keep_read):
            keep(answer.read(int.from_bytes(answer.read(8), sys.byteorder)))
    os.waitpid(looker, 0)


def trial(main, environment, os, native, page):
    (ready, done), (hold, release) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            native.show()
            os.close(release)
            main.surroundings(environment)
            main.reseed()
            scope = main.fresh_main()
            main.finish(scope, main.run(b"print(1)\n", scope))
            os.write(done, b".")
            os.read(hold, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    written, read = touched(child, page)
    return encode(written, page, 0), encode(read, page, 16)


def touched(process, page):
    """The addresses of pages that a forked process has of its own, and of those of files that it has looked at."""
    present, of_a_file, exclusive = 1 << 63, 1 << 61, 1 << 56
    written, read = [], []
    with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/pagemap", "rb", buffering=0) as pages:
        for line in maps:
            span, access, _, _, file = line.split(None, 4)
            if access[3] != "p" or line.rstrip().endswith(("[vvar]", "[vdso]", "[vsyscall]", "[vvar_vclock]")):
                continue
            start, end = (int(address, 16) for address in span.split("-"))
            pages.seek(start // page * 8)
            entries = pages.read((end - start) // page * 8)
            for index in range(0, len(entries), 8):
                entry = int.from_bytes(entries[index : index + 8], sys.byteorder)
                address = start + index // 8 * page
                if not entry & present:
                    continue
                if access[1] == "w" and entry & exclusive and not entry & of_a_file:
                    written.append(address)
                elif access[1] != "w" and entry & of_a_file:
                    read.append(address)
    return written, read


def encode(addresses, page, gap):
    """Ranges of addresses that are at most some pages apart, as the library keeps them."""
    ranges = []
    for address in addresses:
        if ranges and address - ranges[-1][1] <= gap * page:
            ranges[-1][1] = address + page
        else:
            ranges.append([address, address + page])
    return b"".join(
        number.to_bytes(8, sys.byteorder) for start, end in ranges for number in (start, end - start)
    )


def held():
    """KiB that this process holds of its own, and its part of what it shares."""
    with open("/proc/self/smaps_rollup", "rb") as report:
        for line in report:
            if line.startswith(b"Pss:"):
                return int(line.split()[1])
    return 0


def live():
    import atexit
    import gc
    import os

    native = load()
    names, usual = native.begin(SOCKET)
    quiet(os)
    del sys.path[0]
    sys.path.insert(0, "/run/stepbox")
    preload([name.decode() for name in names], os, native)
    # What was found in the template's own directories is not there in a sandbox.
    for place in [place for place in sys.path_importer_cache if place.startswith(("/run/", "/tmp", "/proc/"))]:
        if place != SCRIPT:
            del sys.path_importer_cache[place]
    # The interpreter has them by itself, and a step that asks for them imports them anew.
    del sys.modules["gc"], sys.modules["atexit"]
    main = Main(os, gc, atexit)
    main.surroundings(usual)
    rehearse(main)
    gc.collect()
    gc.freeze()
    learn(main, usual, os, native)
    expected = native.serve(held())
    # Only a process in a sandbox comes to here.
    main.surroundings(expected)
    main.reseed()
    scope = main.fresh_main()
    source, arguments, environment = native.wait()
    if environment != expected:
        main.surroundings(environment)
    sys.argv = [os.fsdecode(argument) for argument in arguments[1:]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [os.fsdecode(argument) for argument in arguments]
    code = main.run(source, scope)
    del source
    code = main.finish(scope, code)
    main.end(code)


live()
