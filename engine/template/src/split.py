# Finds the last expression of a script, so that its value can be shown. Where there is none, or anything is unusual, the
# interpreter runs the script by itself, and says what it has to say of it: nothing is printed here.
import sys

TRIES = 200
BYTES = 1 << 20


def whole(source, file):
    """By the tree, which takes longer and knows of semicolons."""
    tree = compile(source, file, "exec", 0x400, True)
    last = tree.body[-1] if tree.body else None
    if type(last).__name__ != "Expr":
        return None
    lines = source.splitlines()[last.end_lineno - 1 :]
    if lines:
        lines[0] = lines[0][last.end_col_offset :]
    if b"".join(line.partition(b"#")[0] for line in lines).rstrip().endswith(b";"):
        return None
    kinds = {kind.__name__: kind for kind in type(tree).__base__.__subclasses__()}
    tree.body.pop()
    return compile(tree, file, "exec", 0, True), compile(kinds["Expression"](last.value), file, "eval", 0, True)


def compiled(text, file, mode):
    try:
        return compile(text, file, mode, 0, True)
    except SyntaxError:
        return None


def split(source, file):
    """All but the last expression, and that; by lines, which takes no longer than to compile it at once."""
    lines = source.splitlines(True)
    if b"coding" in b"".join(lines[:2]):
        return whole(source, file)
    length = 0
    tries = 0
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        length += len(line)
        # What begins further in, or with a bracket that closes, begins no statement.
        if not line.strip() or line[:1] in b" \t\f)]}#":
            continue
        tries += 1
        if tries > TRIES or length > BYTES:
            return None
        tail = b"".join(lines[at:])
        # Where it is said to be.
        last = compiled(b"\n" * at + tail, file, "eval")
        if last is not None:
            head = b"".join(lines[:at])
            # A text that is only that is also its own description.
            alone = not last.co_names and len(last.co_consts) == 1 and type(last.co_consts[0]) is str
            body = compiled(source if alone else head, file, "exec")
            if body is not None:
                return body, last
        elif compiled(tail, file, "exec") is not None:
            # Another statement, or several.
            return whole(source, file) if b";" in tail else None
    return None


def parts(native):
    warnings = sys.modules["_warnings"]
    kind, name = Warning, "__main__"
    module = type(sys)

    def tried(action, source, file):
        python = sys.modules.get("warnings")
        filters = getattr(python, "filters", None) or warnings.filters
        filters.insert(0, (action, None, kind, None, 0))
        try:
            return split(source, file)
        except SyntaxError:
            return None
        finally:
            del filters[0]

    def found(file):
        with open(file, "rb") as script:
            source = script.read()
        # The compiler warns of some things. As long as it may turn out that the script is to be run whole, it must not.
        pair = tried("error", source, file)
        if pair is None:
            pair = tried("ignore", source, file)
            if pair is not None:
                # In the order in which it warns of a script that it compiles at once.
                pair = whole(source, file)
        if pair is None:
            return None
        main = sys.modules.get(name)
        if main is None:
            main = sys.modules[name] = module(name)
        scope = main.__dict__
        scope.setdefault("__builtins__", sys.modules["builtins"])
        if "__file__" not in scope:
            scope["__file__"] = file
            if sys.version_info < (3, 15):
                scope["__cached__"] = None
        scope["__loader__"] = sys.modules["_frozen_importlib_external"].SourceFileLoader(name, file)
        return scope, *pair

    return found
