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

    def __init__(self, os, gc):
        self.os = os
        self.gc = gc
        self.module = type(sys)
        # What the variable adds is added anew for each step.
        added = os.environ.get("PYTHONPATH", "").split(":")
        self.path = [place for place in sys.path[1:] if place not in added]

    def surroundings(self, environment):
        os = self.os
        pairs = dict(zip(environment[::2], environment[1::2]))
        for name in [name for name in os.environb if name not in pairs]:
            del os.environb[name]
        for name, value in pairs.items():
            if os.environb.get(name) != value:
                os.environb[name] = value
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
            for name in ("sitecustomize", "sitecustomize.py"):
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


def rehearse(main):
    """Goes the way of a step once: each page that is written to for the first time since the fork is copied, which takes
    longer than the step does. What it leaves is taken back."""
    known = set(sys.modules)
    scope = main.fresh_main()
    exec(compile(b"import sys\nprint(1)\n", SCRIPT, "exec", dont_inherit=True), scope)
    sys.stdout.flush()
    scope.clear()
    main.gc.collect()
    for name in set(sys.modules) - known:
        del sys.modules[name]


def learn(main, environment, os, native):
    """Finds out which pages a step touches, by a trial in a fork: those are fetched at once in each fork to come."""
    ready, done = os.pipe()
    with open(TRIAL, "wb") as file:
        file.write(b"print(1)\n")
    child = os.fork()
    if not child:
        try:
            native.show()
            main.surroundings(environment)
            main.reseed()
            rehearse(main)
            main.fresh_main()
            # Ends the interpreter, says so, and waits.
            native.trial(done)
        finally:
            os._exit(0)
    os.close(done)
    try:
        if os.read(ready, 1):
            page = os.sysconf("SC_PAGE_SIZE")
            written, read = touched(child, page)
            native.keep_written(encode(written, page, 0))
            native.keep_read(encode(read, page, 16))
    except OSError:
        # A kernel that does not tell: each page comes when it is touched.
        pass
    os.close(ready)
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.unlink(TRIAL)


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
    import gc
    import os

    native = load()
    names = [name.decode() for name in native.begin(SOCKET)]
    quiet(os)
    del sys.path[0]
    sys.path.insert(0, "/run/stepbox")
    preload(names, os, native)
    # What was found in the template's own directories is not there in a sandbox.
    for place in [place for place in sys.path_importer_cache if place.startswith(("/run/", "/tmp", "/proc/"))]:
        if place != SCRIPT:
            del sys.path_importer_cache[place]
    main = Main(os, gc)
    rehearse(main)
    # The interpreter has it by itself, and a step that asks for it imports it anew.
    del sys.modules["gc"]
    gc.collect()
    gc.freeze()
    learn(main, [part for pair in os.environb.items() for part in pair], os, native)
    expected = native.serve(held())
    # Only a process in a sandbox comes to here.
    main.surroundings(expected)
    main.reseed()
    if not native.asked():
        rehearse(main)
    main.fresh_main()
    arguments, environment = native.wait()
    if environment != expected:
        main.surroundings(environment)
    # What is relative is so to the step's own directory.
    main.customize(main.places(dict(zip(environment[::2], environment[1::2]))))
    sys.argv = [os.fsdecode(argument) for argument in arguments[1:]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [os.fsdecode(argument) for argument in arguments]
    return native


def hand_over(native):
    """When a script has ended, the interpreter flushes the standard error stream, and at that instant no frame of the script
    is left: there the code begins, as if it had been the script."""
    sys.stderr = type("HandOver", (), {"flush": native.run})()


hand_over(live())
