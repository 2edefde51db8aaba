# The start of a step of Python that is not forked: makes ready what code shows results with, and then the step's own script
# is the interpreter's, as if this one had never been. The path of that is put before this text as `SCRIPT`; this one is at a
# path of the same length that ends with the first of three descriptors: behind it are the library and the memory for results.
import sys


def live():
    import _imp
    import os

    started = sys.argv[0]
    first = int(started.rpartition("/")[2])
    script = os.fsdecode(SCRIPT)
    try:
        specification = type(sys.__spec__)("_stepbox", None, origin=f"/proc/self/fd/{first + 1}")
        native = _imp.create_dynamic(specification)
        _imp.exec_dynamic(native)
        sys.modules.pop("_stepbox", None)
        native.attach_results(first + 2)
    except BaseException:
        native = None
    os.closerange(first, first + 3)
    original = getattr(sys, "orig_argv", None)
    if original:
        original[original.index(started)] = script
    sys.argv[0] = script
    if native is None:
        # Without results, then.
        os.execv(sys.executable, original or [sys.executable, *sys.argv])
    native.equip(native.display)
    native.set_script(SCRIPT)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = script.rpartition("/")[0]
    sys.path_importer_cache.pop(started, None)
    sys.path_importer_cache[script] = None
    main = type(sys)("__main__")
    if sys.version_info < (3, 14):
        main.__dict__["__annotations__"] = {}
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    # When a script has ended, the interpreter flushes this: there the step's own begins, below no frame.
    sys.stderr = type("HandOver", (), {"flush": native.run})()


live()
