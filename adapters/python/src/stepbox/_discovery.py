"""Where the engine is: the binary to start, or the address of one that runs."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stepbox._errors import EngineError

BINARY = "stepbox"


@dataclass(frozen=True)
class Address:
    """A running engine.

    Attributes:
        target: What gRPC connects to: `unix:/path` or `host:port`.
        token_file: Where its token is, or None when none is known.
    """

    target: str
    token_file: Path | None

    @property
    def is_unix(self) -> bool:
        """Whether the engine is on this host for certain."""
        return self.target.startswith("unix:")


def find_address(environment: Mapping[str, str]) -> Address | None:
    """The engine that `STEPBOX_ADDRESS` names, or None when it names none."""
    given = environment.get("STEPBOX_ADDRESS")
    if not given:
        return None
    return address_of(given, environment.get("STEPBOX_TOKEN_FILE"))


def address_of(target: str, token_file: str | None) -> Address:
    """An engine by its address; the token of a unix socket lies beside it unless another file is named."""
    if target.startswith("/"):
        target = f"unix:{target}"
    if target.startswith("unix:"):
        socket = Path(target.removeprefix("unix:").removeprefix("//"))
        if not socket.is_absolute():
            raise EngineError(f"STEPBOX_ADDRESS must be unix:/absolute/path or host:port, got {target!r}")
        return Address(f"unix:{socket}", Path(token_file) if token_file else socket.with_name("token"))
    host, colon, port = target.rpartition(":")
    if "//" in target or not host or not colon or not port.isdigit():
        raise EngineError(f"STEPBOX_ADDRESS must be unix:/absolute/path or host:port, got {target!r}")
    return Address(target, Path(token_file) if token_file else None)


def find_binary(environment: Mapping[str, str]) -> Path:
    """The engine's binary.

    Raises:
        EngineError: It is nowhere; the text lists every place that was looked at.
    """
    given = environment.get("STEPBOX_BIN")
    if given is not None:
        # A wrong value is never passed over for another binary: whoever set it meant that one.
        if not _is_program(Path(given)):
            raise EngineError(f"STEPBOX_BIN names no executable file: {given!r}")
        return Path(given)

    places = [directory / BINARY for directory in _script_directories()]
    places += [Path(directory) / BINARY for directory in environment.get("PATH", "").split(os.pathsep) if directory]
    places += _checkout_builds()
    for place in places:
        if _is_program(place):
            return place
    looked = "".join(f"\n  {place}" for place in dict.fromkeys(places))
    raise EngineError(
        "the stepbox engine was not found; build it (cargo build --release, in a checkout) or set STEPBOX_BIN to "
        "where it is. "
        f"Looked at:{looked}"
    )


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _script_directories() -> list[Path]:
    """Where a wheel puts a binary: beside this interpreter, or in the user's scheme."""
    found = [Path(sysconfig.get_path("scripts"))]
    if sys.executable:
        found.append(Path(sys.executable).parent)
    found.append(Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))))
    return list(dict.fromkeys(found))


def _checkout_builds() -> list[Path]:
    for parent in Path(__file__).resolve().parents:
        if (parent / "Cargo.toml").is_file() and (parent / "engine").is_dir():
            return [parent / "target" / profile / BINARY for profile in ("release", "debug")]
    return []
