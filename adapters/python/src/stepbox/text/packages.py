"""Which packages the code can import when the sandbox runs the caller's own interpreter (image `host`)."""

from __future__ import annotations

import sys
from functools import cache
from importlib import metadata

MAX_PACKAGES = 20

# What models reach for, in the order in which it is worth knowing: the distribution, and its import name where another.
_SOUGHT = {
    "numpy": "", "pandas": "", "matplotlib": "", "scipy": "", "scikit-learn": "sklearn", "polars": "", "pyarrow": "",
    "openpyxl": "", "seaborn": "", "plotly": "", "pillow": "PIL", "sympy": "", "networkx": "", "statsmodels": "",
    "requests": "", "httpx": "", "beautifulsoup4": "bs4", "lxml": "", "pyyaml": "yaml", "pydantic": "", "duckdb": "",
    "sqlalchemy": "", "torch": "", "transformers": "", "opencv-python": "cv2", "python-docx": "docx", "pypdf": "",
    "reportlab": "", "xlsxwriter": "", "tabulate": "", "jinja2": "", "python-dateutil": "dateutil", "pytest": "",
}  # fmt: skip
# Present in nearly every environment, or part of what runs the sandbox.
_PLUMBING = frozenset({"pip", "setuptools", "wheel", "uv", "stepbox"})


@cache
def host_packages() -> tuple[str, ...]:
    """Up to 20 packages of this interpreter with their versions, the ones that models look for before others.

    Reads the installed metadata once; imports nothing.
    """
    found: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions(path=[entry for entry in sys.path if _is_below_a_prefix(entry)]):
        name = distribution.metadata["Name"]
        if name and not _is_editable(distribution):
            found.setdefault(name.lower().replace("_", "-"), distribution)
    asked_for = sorted(
        name for name, dist in found.items() if name not in _PLUMBING and dist.read_text("REQUESTED") is not None
    )
    names = [name for name in _SOUGHT if name in found] + [name for name in asked_for if name not in _SOUGHT]
    return tuple(_describe(name, found[name].version) for name in names[:MAX_PACKAGES])


def _describe(name: str, version: str) -> str:
    module = _SOUGHT.get(name, "")
    return f"{module} ({name} {version})" if module else f"{name} {version}"


def _is_below_a_prefix(entry: str) -> bool:
    return entry.startswith((sys.prefix, sys.base_prefix)) and not entry.endswith(".zip")


def _is_editable(distribution: metadata.Distribution) -> bool:
    # Its files lie outside the interpreter's prefix, which alone is in the sandbox.
    return '"editable": true' in (distribution.read_text("direct_url.json") or "")
