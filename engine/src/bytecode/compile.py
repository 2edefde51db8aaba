# Compiles the modules of directories without importing any, and prints the bytecode as records for the engine.
#
#   compile.py FIRST SECONDS BYTES DIRECTORY...   from the FIRST-th module on, until the time or the bytes are spent
#
# "=" before a directory: the standard library, whose large parts that programs do not load are left out.
# "-" before a directory: another interpreter's, of which nothing is compiled.
# Bytecode that lies beside its source is not made again: a link leads to it.
import os
import py_compile
import stat
import sys
import time

LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "idle_test"}
SITES = {"site-packages", "dist-packages"}
TAG = sys.implementation.cache_tag


def modules(marked):
    """Each module below a directory, with the directory that it is in, whether to compile it, and its bytecode."""
    mark, top = (marked[0], marked[1:]) if marked[0] in "=-" else ("", marked)
    for directory, names, files in os.walk(top):
        names.sort()
        if directory == top and mark == "=":
            names[:] = [name for name in names if name not in SITES]
        cached = "__pycache__" in names
        names[:] = [name for name in names if name != "__pycache__"]
        parts = set(directory[len(top) :].split("/"))
        wanted = mark != "-" and not (mark == "=" and parts & LEFT_OUT)
        beside = {}
        if cached:
            for name in sorted(os.listdir(os.path.join(directory, "__pycache__"))):
                stem, _, ending = name.partition(".")
                if ending.endswith(".pyc"):
                    beside.setdefault(stem, []).append(name)
        for name in sorted(files):
            if name.endswith(".py"):
                yield directory, name, wanted, beside.get(name[:-3], [])


def is_current(bytecode, source):
    """Whether an interpreter would take this bytecode, by the head of the file."""
    try:
        with open(bytecode, "rb") as file:
            head = file.read(16)
        found = os.stat(source)
    except OSError:
        return False
    if len(head) < 16 or head[4] & 1:
        return len(head) == 16
    low = 0xFFFFFFFF
    return head[8:] == b"".join(int(x & low).to_bytes(4, "little") for x in (int(found.st_mtime), found.st_size))


def compiled(source):
    """The bytecode of a source; it is taken only for a source of exactly this content."""
    try:
        if not stat.S_ISREG(os.stat(source).st_mode):
            return None
        target = "/tmp/module.pyc"
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        py_compile.compile(source, target, source, doraise=True, invalidation_mode=mode)
        with open(target, "rb") as file:
            return file.read()
    except Exception:
        # Whatever a source makes the compiler say: the others go on.
        return None


def main(first, seconds, most, directories):
    out = sys.stdout.buffer
    written = 0
    begun = None

    def put(kind, name, data):
        nonlocal written
        name = os.fsencode(name)
        record = kind + len(name).to_bytes(4, "little") + name + len(data).to_bytes(4, "little") + data
        written += len(record)
        out.write(record)

    number = -1
    for marked in directories:
        for directory, name, wanted, beside in modules(marked):
            number += 1
            if number < first:
                continue
            if begun is None:
                begun = time.monotonic()
            if number > first and (written > most or time.monotonic() - begun > seconds):
                put(b"M", str(number), b"")
                out.flush()
                return
            put(b"N", str(number), b"")
            source = os.path.join(directory, name)
            own = f"{name[:-3]}.{TAG}.pyc"
            for found in beside:
                target = os.path.join(directory, "__pycache__", found)
                if is_current(target, source):
                    put(b"L", os.path.join(directory, found), os.fsencode(target))
                    wanted = wanted and found != own
            if wanted:
                # A module that makes the compiler fall over is known by then.
                out.flush()
                code = compiled(source)
                if code is not None:
                    put(b"F", os.path.join(directory, own), code)
    put(b"E", str(number + 1), b"")
    out.flush()


try:
    os.nice(19)
except OSError:
    pass
main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
