# The life of a template, and of what is forked from it. Started as the script of an interpreter that a session uses, from
# a sealed file, before any session's code, data or environment is near.
#
# Nothing of the standard library is imported here that the interpreter has not imported by itself at its start: what a
# step finds in `sys.modules` is what it would find in an interpreter of its own.
import sys

SOCKET = 3
LIBRARY = "/proc/self/fd/4"
SCRIPT = "/run/stepbox/main.py"
TRIAL = "/run/stepbox/trial.py"

# Modules of compiled code that do nothing at the end of a process, nor do objects of theirs that are never seen to have a
# finalizer: they free memory, and close what the kernel closes.
SILENT = frozenset(
    """
    _abc _ast _asyncio _bisect _blake2 _bz2 _codecs _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw
    _collections _contextvars _csv _ctypes _datetime _decimal _elementtree _functools _hashlib _heapq _hmac _imp _io _json
    _locale _lsprof _lzma _md5 _multibytecodec _multiprocessing _opcode _operator _pickle _posixshmem _posixsubprocess
    _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 _signal _socket _sre _ssl _stat _statistics _string _struct _suggestions
    _symtable _sysconfig _thread _tokenize _tracemalloc _types _typing _uuid _warnings _weakref _zoneinfo array atexit
    binascii builtins cmath errno faulthandler fcntl gc grp itertools marshal math mmap posix pwd pyexpat resource select
    sys termios time unicodedata zlib
    numpy pandas _cyutility matplotlib contourpy kiwisolver PIL
    """.split()
)

# What most steps do with a package: done once ahead, it need not be found out, nor its pages be copied, in each of them.
EXERCISES = {
    "numpy": """
import numpy
n = numpy.arange(12.0).reshape(3, 4)
n @ n.T, n + 1, n * n, n[n > 2], n.sum(), n.mean(axis=0), n.std(), numpy.sort(n), numpy.linalg.inv(numpy.eye(3))
print(n, n.sum(), n.tolist(), numpy.concatenate([n, n]).shape)
""",
    "pandas": """
import io
import pandas
f = pandas.DataFrame({"a": range(1000), "b": [0.5, 1.5] * 500, "c": ["x", "y"] * 500})
g = f.head(20).copy()
g["d"] = g["a"] * 2 + g["b"]
f["a"].sum(), f["b"].mean(), f[f["a"] > 10].shape, f.groupby("c")["a"].sum(), f.sort_values("b"), f.describe()
g.merge(g, on="a"), g.to_dict(), g.loc[3], g.iloc[2:4], g["c"].value_counts(), g["c"].str.upper(), g.apply(len)
print(g, f["a"].sum(), f.groupby("c").agg({"b": "mean"}), pandas.read_csv(io.StringIO(g.to_csv())).shape)
""",
}


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
    def opened():
        return set(os.listdir("/proc/self/fd"))

    def shared():
        with open("/proc/self/maps") as maps:
            return {line for line in maps if line.split(None, 2)[1].endswith("s")}

    def has_children():
        try:
            os.waitpid(-1, os.WNOHANG | 0x40000000)
        except ChildProcessError:
            return False
        return True

    descriptors, mappings = opened(), shared()
    for name in names:
        try:
            __import__(name)
        except BaseException as error:
            native.refuse(f"{name}\0could not be imported: {type(error).__name__}: {error}".encode("utf-8", "replace"))
        found = None
        if len(os.listdir("/proc/self/task")) > 1:
            found = "starts threads when it is imported, which a forked process would not have"
        elif has_children():
            found = "starts a process when it is imported, which would be no child of a forked one"
        elif opened() != descriptors:
            found = "keeps a file open when it is imported, which a forked process would not have"
        elif shared() != mappings:
            found = "shares memory when it is imported, by which steps could reach each other"
        if found:
            native.refuse(f"{name}\0{found}".encode())


def exercise(packages):
    """What goes wrong here goes wrong in the code, where it is seen."""
    import io
    import warnings

    shown, sys.stdout = sys.stdout, io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for package in packages:
                try:
                    exec(EXERCISES[package], {})
                except Exception:
                    pass
    finally:
        sys.stdout = shown


def ends_silently(name, module):
    """Whether nobody can hear of the end of a module: its code is the interpreter's to run, or known."""
    if name.partition(".")[0] in SILENT:
        return True
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    kind = loader if type(loader) is type else type(loader)
    compiled = kind.__name__ in ("ExtensionFileLoader", "BuiltinImporter")
    return not compiled and not (getattr(module, "__file__", None) or "").endswith(".so")


class Main:
    """What a step's process does with what it is told."""

    def __init__(self, os, gc, atexit):
        self.os = os
        self.gc = gc
        self.atexit = atexit
        self.module = type(sys)
        self.variables = dict(os.environb)
        # What the variable adds is added anew for each step.
        added = os.environ.get("PYTHONPATH", "").split(":")
        self.path = [place for place in sys.path[1:] if place not in added]

    def surroundings(self, environment):
        os = self.os
        pairs = dict(zip(environment[::2], environment[1::2]))
        if pairs == self.variables and list(pairs) == list(self.variables):
            return
        for name in self.variables:
            if name not in pairs:
                del os.environb[name]
        for name, value in pairs.items():
            if self.variables.get(name) != value:
                os.environb[name] = value
        self.variables = pairs
        # In the order in which they were given.
        os.environ._data.clear()
        os.environ._data.update(pairs)
        self.places(pairs)
        place = pairs.get(b"PYTHONPYCACHEPREFIX")
        sys.pycache_prefix = os.fsdecode(place) if place else None
        if b"TZ" in pairs:
            import time

            time.tzset()

    def places(self, pairs):
        """The way of `site`: absolute, and each once."""
        os = self.os
        listed = pairs.get(b"PYTHONPATH", b"")
        own = [os.path.abspath(os.fsdecode(place)) for place in listed.split(b":")] if listed else []
        sys.path[:] = dict.fromkeys([SCRIPT.rpartition("/")[0], *own, *self.path])
        return own

    def customize(self, own):
        """An interpreter that starts imports this where it is there."""
        for place in own:
            for name in ("sitecustomize", "sitecustomize.py", "sitecustomize.pyc"):
                if self.os.access(f"{place}/{name}", 0):
                    import site

                    site.execsitecustomize()
                    return

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
        if "multiprocessing.process" in modules:
            process = modules["multiprocessing.process"]
            process.current_process().authkey = fresh(32)
        if "logging" in modules:
            import time

            begun = modules["logging"]._startTime
            modules["logging"]._startTime = time.time_ns() if type(begun) is int else time.time()
        if "torch" in modules:
            modules["torch"].manual_seed(int.from_bytes(fresh(8), "little") >> 1)

    def fresh_main(self):
        """The interpreter adds the name of the file and the loader when it runs it."""
        main = self.module("__main__")
        scope = main.__dict__
        if sys.version_info < (3, 14):
            scope["__annotations__"] = {}
        scope["__builtins__"] = sys.modules["builtins"]
        sys.modules["__main__"] = main
        return scope

    def settle(self):
        """What is here now is no code's."""
        types = (dict, list, tuple, set, frozenset, property, staticmethod, classmethod, self.module, type(self.settle))
        self.plain = frozenset([*types, type(rehearse), type(len), type([].append), type(rehearse.__code__)])
        self.known = {name for name, module in sys.modules.items() if ends_silently(name, module)} | {"__main__"}
        self.filters = self.warned()
        self.builtin = type(len)
        self.reference = sys.modules["_weakref"].ref
        self.ends = self.thread_ends()
        self.callbacks = self.atexit._ncallbacks()
        self.collected = "gc" in sys.modules

    def warned(self):
        """What is heard of things that are not closed."""
        python = sys.modules.get("warnings")
        return [*sys.modules["_warnings"].filters, *(getattr(python, "filters", None) or ())]

    def thread_ends(self):
        """How many functions wait for the end of threads. Those of a preload have nothing to do where none was started."""
        return len(getattr(sys.modules.get("threading"), "_threading_atexits", ()))

    def is_over(self):
        """Whether nobody can tell a short end from the whole one, which takes longer than most steps and copies most pages: no
        thread, no exit handler, and nothing with a finalizer is left of what the code made. The standard streams are
        flushed then."""
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is not None and any(monitoring.get_tool(tool) for tool in range(6)):
            return 0
        threading = sys.modules.get("threading")
        if threading is not None and (len(threading._active) > 1 or self.thread_ends() != self.ends):
            return 0
        # Before 3.10 each import of it has functions of its own.
        atexit = sys.modules.get("atexit", self.atexit)
        # Code that has it may have put things out of its sight.
        if atexit._ncallbacks() != self.callbacks or ("gc" in sys.modules) != self.collected:
            return 0
        if sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:
            return 0
        # Some are told at the end what was not closed.
        if self.warned() != self.filters:
            return 0
        for name, module in sys.modules.items():
            if name not in self.known and not ends_silently(name, module):
                return 0
        made = self.gc.get_objects()
        if len(made) > 20000:
            return 0
        names, lineage = type.__dict__["__dict__"].__get__, type.__dict__["__mro__"].__get__
        known = set(self.plain)
        for thing in made:
            kind = type(thing)
            if kind in known:
                continue
            ancestors = lineage(kind)
            if any("__del__" in names(ancestor) for ancestor in ancestors):
                return 0
            if type in ancestors:
                # What is made of it may be of a kind that is not in this list.
                if any("__del__" in names(ancestor) for ancestor in lineage(thing)):
                    return 0
            elif self.reference in ancestors:
                heard = thing.__callback__
                # That of the caches of abstract classes, which each check of an instance may fill, tells nobody.
                if heard is not None and not (type(heard) is self.builtin and heard.__name__ == "_destroy"):
                    return 0
            else:
                known.add(kind)
        if self.callbacks:
            atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            return 0
        return 1


def rehearse(main):
    """Goes the way of a step once: what an interpreter makes when it first does something is then made."""
    known = set(sys.modules)
    scope = main.fresh_main()
    exec(compile(b"import sys\nprint(1)\n", SCRIPT, "exec", dont_inherit=True), scope)
    sys.stdout.flush()
    scope.clear()
    main.gc.collect()
    for name in set(sys.modules) - known:
        del sys.modules[name]


def learn(main, environment, packages, os, native):
    """Finds out which pages a step touches, by a trial in a fork: those are fetched at once in each fork to come.

    It is another fork that looks: what the template writes to meanwhile would seem to be the trial's own."""
    receive, send = os.pipe()
    looker = os.fork()
    if not looker:
        try:
            os.close(receive)
            page = os.sysconf("SC_PAGE_SIZE")
            for ranges in trial(main, environment, packages, os, native, page):
                os.write(send, len(ranges).to_bytes(8, sys.byteorder) + ranges)
        finally:
            # A kernel that does not tell: each page comes when it is touched.
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as answer:
        for keep in (native.keep_written, native.keep_read):
            keep(answer.read(int.from_bytes(answer.read(8), sys.byteorder)))
    os.waitpid(looker, 0)


def trial(main, environment, packages, os, native, page):
    ready, done = os.pipe()
    # By descriptor: a file object that is left would make the end of the trial the whole one.
    file = os.open(TRIAL, os.O_CREAT | os.O_WRONLY)
    os.write(file, b"print(1)\n" + "".join(map(EXERCISES.get, packages)).encode())
    os.close(file)
    child = os.fork()
    if not child:
        try:
            native.show()
            main.surroundings(environment)
            main.reseed()
            main.fresh_main()
            # Runs the file to its end, says so, and waits.
            native.trial(done)
        finally:
            os._exit(0)
    os.close(done)
    os.read(ready, 1)
    written, read = touched(child, page)
    os.kill(child, 9)
    os.unlink(TRIAL)
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
    native.equip(native.display)
    native.prepare()
    del sys.path[0]
    sys.path.insert(0, "/run/stepbox")
    # The interpreter has them by itself, and whoever asks for them imports them anew.
    del sys.modules["gc"], sys.modules["atexit"]
    preload([name.decode() for name in names], os, native)
    if "shutil" in sys.modules:
        # What was to be removed at the end is the template's own, and not there in a sandbox.
        atexit.unregister(sys.modules["shutil"].rmtree)
    # What was found in the template's own directories is not there in a sandbox.
    for place in [place for place in sys.path_importer_cache if place.startswith(("/run/", "/tmp", "/proc/"))]:
        if place != SCRIPT:
            del sys.path_importer_cache[place]
    main = Main(os, gc, atexit)
    main.surroundings(usual)
    packages = [package for package in EXERCISES if package in sys.modules]
    if packages:
        exercise(packages)
    rehearse(main)
    native.keep_end((main.is_over, sys.gettrace, sys.getprofile))
    gc.collect()
    gc.freeze()
    main.settle()
    learn(main, usual, packages, os, native)
    expected = native.serve(held())
    # Only a process in a sandbox comes to here.
    main.surroundings(expected)
    main.reseed()
    main.fresh_main()
    arguments, environment = native.wait()
    if environment != expected:
        main.surroundings(environment)
    sys.argv = [os.fsdecode(argument) for argument in arguments[1:]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [os.fsdecode(argument) for argument in arguments]
    # What is relative is so to the step's own directory.
    main.customize(main.places(dict(zip(environment[::2], environment[1::2]))))
    return native


def hand_over(native):
    """When a script has ended, the interpreter flushes the standard error stream, and at that instant no frame of the script
    is left: there the code begins, as if it had been the script."""
    sys.stderr = type("HandOver", (), {"flush": native.run})()


hand_over(live())
