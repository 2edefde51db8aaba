# What code shows beside its output: the value of a last expression, what it gives to `display`, figures. Each as data of
# several kinds, by the methods that notebooks ask objects for. Runs in the process of the code, which can do to it what it
# likes; the bounds here are for code that means no harm, and the engine keeps them anyway.
import builtins
import sys

__name__ = "_stepbox"
# Those of the interpreter, whatever becomes of them. Where this is run late, what else code put there is not to be kept.
__builtins__ = {name: value for name, value in vars(builtins).items() if isinstance(value, (type, type(len)))}

# Bytes of a text, and of the form of a figure that has no bound by itself.
TEXT_MOST = 1 << 20
DRAWING_MOST = 1 << 20
# Pixels of a figure.
PIXELS_MOST = 8_000_000
KINDS_MOST = 32
KIND_LONGEST = 128
# In the order in which they are kept where not all fit.
METHODS = {
    "text/plain": None,
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "image/svg+xml": "_repr_svg_",
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
}
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/.+-;=_")


class Full(Exception):
    """There is no room for the rest."""


def encoded(text):
    # What is given may be of a class of the code's.
    return str.encode(text, "utf-8", "backslashreplace")


def cut(data):
    if len(data) <= TEXT_MOST:
        return data
    return data[:TEXT_MOST].decode("utf-8", "ignore").encode() + "…".encode()


def data_of(kind, value):
    """The bytes of what a method gave, if it is what the method is for."""
    if isinstance(value, tuple) and len(value) == 2:
        # The second says how it is to be shown.
        value = value[0]
    if value is None:
        return None
    if kind == "application/json" or kind.endswith("+json"):
        if isinstance(value, str):
            return encoded(value)
        import json

        return encoded(json.dumps(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, str):
        return None
    if kind.startswith("image/") and kind != "image/svg+xml":
        import binascii

        return binascii.a2b_base64(encoded(value))
    return encoded(value)


def method(value, name):
    """A method of an object, unless it has every attribute that it is asked for."""
    if isinstance(value, type) or getattr(value, "_stepbox_no_such_method_", None) is not None:
        return None
    found = getattr(value, name, None)
    return found if callable(found) else None


class Showing:
    def __init__(self, native):
        self.native = native
        # In a kernel, figures are shown at the end of each cell; else at the end of the process.
        self.in_kernel = False
        # What an interrupt is, which ends a cell.
        self.passed = ()
        self.process = None
        # What was shown of a figure last.
        self.figures = None

    # ---- what is heard from outside ----

    def display(self, *objects, raw=False, **ignored):
        """Shows objects: to whoever runs this code, as notebooks do."""
        for value in objects:
            if raw and isinstance(value, dict):
                self.guarded(lambda: self.emit(self.taken(value), False))
            else:
                self.show(value, False)

    def show(self, value, main=True):
        if self.native.room() is None:
            return
        self.guarded(lambda: self.emit(self.bundle(value), main))

    def guarded(self, work):
        """Whatever goes wrong is no part of what the code does."""
        try:
            return work()
        except self.passed:
            raise
        except BaseException:
            return None

    def imported(self, name):
        try:
            __import__(name)
            module = sys.modules[name]
        except BaseException:
            # The code will hear of it.
            self.native.await_again()
            return
        if name == "matplotlib.pyplot":
            self.equip_figures(module)
        elif name == "multiprocessing.util":
            self.equip_children(module)
        else:
            module.display = self.native.display

    # ---- data of an object ----

    def bundle(self, value):
        if self.native.room() == 0:
            return {}
        figure = self.figure(value)
        if figure is not None:
            return self.drawn(figure)
        found = {}
        whole = self.guarded(lambda: method(value, "_repr_mimebundle_"))
        if whole is not None:
            found = self.guarded(lambda: self.taken(whole(include=None, exclude=None))) or {}
        for kind, name in METHODS.items():
            if name is None or kind in found or (kind == "image/jpeg" and "image/png" in found):
                continue
            own = self.guarded(lambda: method(value, name))
            if own is not None:
                data = self.guarded(lambda: data_of(kind, own()))
                if data is not None:
                    found[kind] = data
        if "text/plain" not in found:
            found["text/plain"] = self.text(value)
        return found

    def taken(self, bundle):
        if isinstance(bundle, tuple) and bundle:
            bundle = bundle[0]
        found = {}
        if isinstance(bundle, dict):
            for kind, value in list(dict.items(bundle)):
                if type(kind) is str and "/" in kind and len(kind) <= KIND_LONGEST and LETTERS.issuperset(kind):
                    data = self.guarded(lambda: data_of(kind, value))
                    if data is not None:
                        found[kind] = data
        return found

    def text(self, value):
        try:
            return cut(encoded(repr(value)))
        except self.passed:
            raise
        except BaseException as error:
            kind = type(value).__name__
            return cut(encoded(f"<{kind} whose repr raised {type(error).__name__}>"))

    def emit(self, found, main):
        room = self.native.room()
        if room is None or not (found or room == 0):
            return
        ranks = list(METHODS)
        kinds = sorted(found, key=lambda kind: ranks.index(kind) if kind in METHODS else len(ranks))
        pieces, lost, left = [], room == 0, room - 5
        for kind in kinds:
            data = found[kind]
            if kind == "text/plain":
                data = cut(data)
            size = 8 + len(kind) + len(data)
            if size > left or len(pieces) == KINDS_MOST:
                lost = True
                continue
            left -= size
            sizes = [len(part).to_bytes(4, "little") for part in (kind, data)]
            pieces.append(sizes[0] + kind.encode() + sizes[1] + data)
        if pieces:
            self.native.keep((b"\1" if main else b"\0") + len(pieces).to_bytes(4, "little") + b"".join(pieces))
        if lost:
            self.native.lose()

    # ---- figures ----

    def figure(self, value):
        kind = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        return value if isinstance(kind, type) and isinstance(value, kind) else None

    def drawn(self, figure):
        import io
        import warnings

        found = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dots = figure.dpi
            width, height = figure.get_size_inches()
            most = (PIXELS_MOST / max(width * height, 1e-9)) ** 0.5
            try:
                if dots > most:
                    figure.dpi = most
                for kind, form in (("image/png", "png"), ("image/svg+xml", "svg")):
                    data = self.guarded(lambda: self.written(figure, form, io))
                    if data is not None:
                        found[kind] = data
            finally:
                if figure.dpi != dots:
                    figure.dpi = dots
        if self.figures is None:
            import weakref

            self.figures = weakref.WeakKeyDictionary()
        self.figures[figure] = hash(found.get("image/png"))
        found["text/plain"] = self.text(figure)
        return found

    def written(self, figure, form, io):
        showing = self

        class File(io.BytesIO):
            def write(self, data):
                if form != "png" and self.tell() + len(data) > DRAWING_MOST:
                    raise Full
                return io.BytesIO.write(self, data)

        file = File()
        options = {"metadata": {"Date": None}} if form == "svg" else {}
        box = showing.guarded(lambda: showing.frame(figure))
        if box is not None:
            options["bbox_inches"] = box
        try:
            figure.savefig(file, format=form, dpi=figure.dpi, **options)
        except Full:
            showing.native.lose()
            return None
        return file.getvalue()

    def frame(self, figure):
        """What is to be seen of a figure, labels outside of it too; none where that would be too much."""
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        box = box.padded(0.1)
        pixels = box.width * box.height * figure.dpi**2
        return box if 0 < pixels <= PIXELS_MOST else None

    def show_figure(self, figure):
        """Unless it looks as it did when it was shown last."""
        before = self.figures.get(figure) if self.figures is not None else None
        found = self.drawn(figure)
        if before is None or before != self.figures[figure]:
            self.emit(found, False)

    def open_figures(self):
        """Shows all that are open, and closes them."""
        if self.native.room() is None:
            return
        managers = getattr(getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None), "figs", None)
        for manager in list(managers.values()) if managers else ():
            self.guarded(lambda: self.show_figure(manager.canvas.figure))
            self.guarded(lambda: sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(manager.num))

    def equip_figures(self, pyplot):
        showing = self
        plain = pyplot.show

        def show(*args, **kwargs):
            """Shows all open figures to whoever runs this code, and closes them."""
            # Without waiting: they stay, and are shown in the end.
            if kwargs.get("block", args[0] if args else None) is not False:
                showing.open_figures()

        show.__wrapped__ = plain
        pyplot.show = show

        def show_one(figure, warn=True):
            """Shows the figure to whoever runs this code."""
            showing.show(figure, False)

        pyplot.Figure.show = show_one
        managers = sys.modules["matplotlib._pylab_helpers"].Gcf
        made = managers._set_new_active_manager.__func__

        def new(cls, manager):
            showing.await_end()
            return made(cls, manager)

        managers._set_new_active_manager = classmethod(new)

    def await_end(self):
        """Has the figures shown that are open when the process ends by itself."""
        import os

        if not self.in_kernel and self.process != os.getpid() and self.native.room() is not None:
            import atexit

            self.process = os.getpid()
            atexit.register(self.open_figures)

    # ---- processes that run the script once more ----

    def equip_children(self, util):
        """They import it for its functions, and are to find the same names in it."""
        plain = util.spawnv_passfds

        def spawnv_passfds(path, args, passfds):
            args = list(args)
            if "-c" in args[:-1]:
                at = args.index("-c") + 1
                args[at] = "import builtins; builtins.display = lambda *shown, **how: None; " + args[at]
            return plain(path, args, passfds)

        spawnv_passfds.__wrapped__ = plain
        util.spawnv_passfds = spawnv_passfds


def parts(native):
    showing = Showing(native)
    return showing.display, showing.show, showing.imported, showing
