"""The description of the tool, made from what its sandbox really is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepbox.text.untrusted import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_PAST_LIMITS = "Too much time or memory stops the code, told as a [fault] line; more processes are refused."


def tool_description(
    options: Mapping[str, object] | None = None,
    *,
    languages: Sequence[str] = ("python", "bash", "sh", "javascript"),
    packages: Sequence[str] = (),
) -> str:
    """What a model is told of the tool before it calls it: languages, state, limits, network and packages.

    `options` are the options of the sandbox as given to `stepbox.Sandbox`; one that is not there has its default.
    """
    given = dict(options or {})
    return "\n".join(
        line
        for line in (
            f"Runs code in an isolated Linux sandbox{_image(given)} and returns its output.",
            f"Languages: {', '.join(languages)}.",
            "Only what the code prints comes back: print what you want to see. A last expression's value is not shown.",
            "State: files below /workspace (the working directory) persist between calls.",
            "Processes and variables do not: each call starts anew, so import and load again.",
            f"Limits of a call: {_limits(given)}. {_PAST_LIMITS}",
            f"Network: {_network(given)}",
            f"Python packages: {', '.join(packages)}, and the standard library." if packages else "",
            "Charts: save them below /workspace as .png, .jpg or .webp of at most 1 MiB. There is no display.",
        )
        if line
    )


def _image(options: Mapping[str, object]) -> str:
    image = options.get("image") or "host"
    return "" if image == "host" else f" ({one_line(str(image), 120)})"


def _limits(options: Mapping[str, object]) -> str:
    memory = options.get("memory_mb", 512)
    pids = options.get("pids", 256)
    cpus = options.get("cpus")
    limits = [
        f"{options.get('timeout_s') or 30:g} s" if isinstance(options.get("timeout_s") or 30, int | float) else "30 s",
        f"{memory} MiB of memory" if memory is not None else "no memory limit",
        f"{pids} processes and threads" if pids is not None else "no limit of processes",
    ]
    if cpus is not None:
        limits.append(f"{cpus} CPUs")
    return ", ".join(limits)


def _network(options: Mapping[str, object]) -> str:
    if options.get("network") not in (None, False, "none"):
        return "on."
    allowed = options.get("egress_allow")
    if isinstance(allowed, list | tuple) and allowed:
        return f"off, but for {', '.join(one_line(str(host), 80) for host in allowed)}."
    return "off. Nothing can be downloaded or installed."
