# The start of a step of Python that is not forked: makes ready what code shows results with, and then the step's own script
# is the interpreter's, as if this one had never been. In the arguments: descriptors of the library and of the memory for
# results, which are closed here, and the script with its own arguments.
import sys


def live():
    import _imp
    import posix

    started = sys.argv[0]
    file, library, memory = started.rpartition("/")[2], *sys.argv[1:3]
    script = sys.argv[3]
    try:
        specification = type(sys.__spec__)("_stepbox", None, origin="/proc/self/fd/" + library)
        native = _imp.create_dynamic(specification)
        _imp.exec_dynamic(native)
        sys.modules.pop("_stepbox", None)
        native.attach_results(int(memory))
    except BaseException:
        native = None
    for descriptor in (file, library, memory):
        try:
            posix.close(int(descriptor))
        except OSError:
            pass
    original = getattr(sys, "orig_argv", None)
    if native is None:
        # Without results, then.
        before = original[: original.index(started)] if original else [sys.executable]
        posix.execv(sys.executable, [*before, *sys.argv[3:]])
    native.equip(native.display)
    native.set_script(script.encode("utf-8", "surrogateescape"))
    del sys.argv[:3]
    if original:
        at = original.index(started)
        del original[at : at + 3]
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
