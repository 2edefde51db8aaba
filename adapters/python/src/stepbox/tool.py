"""The tool that agents call, whatever their framework: code in, a reply for the model out.

An adapter turns its framework's call into `run` or `arun`, and the `Reply` into its framework's message.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from stepbox import text
from stepbox._errors import StepboxError
from stepbox._tool_sandbox import Refusal, SandboxSource, owner_of
from stepbox.images import MAX_IMAGE_BYTES, MAX_IMAGES, Image, as_image, figures, image_paths
from stepbox.text.untrusted import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from stepbox._results import ExecutionResult
    from stepbox._tool_sandbox import AsyncCalls

__all__ = [
    "CODE_DESCRIPTION",
    "LANGUAGES",
    "LANGUAGE_DESCRIPTION",
    "TOOL_NAME",
    "CodeTool",
    "Language",
    "Reply",
    "SandboxSource",
    "refusal",
]

TOOL_NAME: Final = "stepbox_run_code"
CODE_DESCRIPTION: Final = "The source code to run. Print what you want to see."
LANGUAGE_DESCRIPTION: Final = "The language of the code."

Language = Literal["python", "bash", "sh", "javascript"]
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)

_FENCE: Final = re.compile(r"\A\s*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*\n(.*?)\n?[ \t]*\1\s*\Z", re.DOTALL)
_FENCE_LANGUAGES: Final[dict[str, Language]] = {
    "python": "python",
    "python3": "python",
    "py": "python",
    "bash": "bash",
    "shell": "bash",
    "sh": "sh",
    "javascript": "javascript",
    "js": "javascript",
    "node": "javascript",
}


@dataclass(frozen=True)
class Reply:
    """What goes back to the model.

    Attributes:
        text: The rendered result, or why nothing ran.
        images: Pictures that the step made, at most four of at most 1 MiB.
        result: The result itself, for the program around the model; None when nothing ran.
    """

    text: str
    images: tuple[Image, ...] = ()
    result: ExecutionResult | None = None


class CodeTool:
    """Runs a model's code in one sandbox that is made at the first call and lives until `close()`.

    Calls may come from any thread and any event loop, at the same time; all of them share one workspace. Cancelling
    the task that awaits `arun`, or interrupting `run`, stops the code.

    Args:
        sandbox: An open sandbox to use instead, which stays the caller's to close; or a function that makes an
            `AsyncSandbox`, which is called at the first call (the description then tells of the default options).
        max_chars: The length of a reply's text.
        max_images: How many pictures a reply may carry; 0 turns them off.
        options: The options of `stepbox.Sandbox`, checked at once: a mistake raises here, not in the agent's loop.
    """

    def __init__(
        self,
        sandbox: SandboxSource | None = None,
        *,
        max_chars: int = text.MAX_CHARS,
        max_images: int = MAX_IMAGES,
        **options: Any,
    ) -> None:
        if sandbox is not None and options:
            raise TypeError(f"a sandbox was given, so its options cannot be: {', '.join(sorted(options))}")
        if max_chars < text.MIN_CHARS:
            raise ValueError(f"max_chars must be {text.MIN_CHARS} or more, not {max_chars}")
        self._max_chars = max_chars
        self._max_images = max_images
        lent = getattr(sandbox, "options", None)
        self._options: dict[str, Any] = lent if isinstance(lent, dict) else options
        self._owner = owner_of(sandbox, options)

    @property
    def description(self) -> str:
        """What a model is told before it calls the tool."""
        languages = [name for name in LANGUAGES if not self._is_host or name != "javascript" or shutil.which("node")]
        return text.tool_description(self._options, languages=languages, packages=self._packages)

    def run(self, code: str, language: Language = "python") -> Reply:
        """Runs the code and blocks until it has ended.

        Raises:
            StepboxError: The sandbox cannot be made or the engine cannot be reached: the operator's to mend.
        """
        if (mistake := _mistake(code, language)) is not None:
            return Reply(mistake)
        try:
            return self._owner.run(lambda sandbox: self._step(sandbox, code, language))
        except Refusal as refusal:
            return Reply(str(refusal))

    async def arun(self, code: str, language: Language = "python") -> Reply:
        """Runs the code; cancelling stops it.

        Raises:
            StepboxError: The sandbox cannot be made or the engine cannot be reached: the operator's to mend.
        """
        if (mistake := _mistake(code, language)) is not None:
            return Reply(mistake)
        try:
            return await self._owner.arun(lambda sandbox: self._step(sandbox, code, language))
        except Refusal as refusal:
            return Reply(str(refusal))

    def close(self) -> None:
        """Removes the sandbox that was made here and its private workspace; a call after this raises."""
        self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def _is_host(self) -> bool:
        return bool(self._options.get("image", "host") == "host")

    @property
    def _packages(self) -> tuple[str, ...]:
        return text.host_packages() if self._is_host else ()

    async def _step(self, sandbox: AsyncCalls, code: str, language: Language) -> Reply:
        code, language = unfenced(code, language)
        result = await sandbox.run_code(code, language=language)
        images: list[Image] = []
        for path in image_paths(result.files, self._max_images):
            # It may be gone by now, or the session with it; what the code did is told all the same.
            with suppress(StepboxError):
                data = await sandbox.read_file(path, max_bytes=MAX_IMAGE_BYTES)
                if (image := as_image(path, data)) is not None:
                    images.append(image)
        # Who saves a figure leaves it open, as a rule: it is the same picture.
        if not images:
            images = figures(result, self._max_images)
        shown = text.render(
            result,
            max_chars=self._max_chars,
            images=[image.path for image in images],
            packages=self._packages if language == "python" else (),
            network=self._options.get("network", False) not in (False, "none"),
        )
        return Reply(shown, tuple(images), result)


def refusal(mistakes: Iterable[tuple[str, str]]) -> str:
    """What a model is told when the arguments of its call were wrong: pairs of an argument's name and what is wrong."""
    told = "; ".join(f"{name}: {message}" if name else message for name, message in mistakes)
    return f"[sandbox] Nothing ran, the arguments are wrong: {one_line(told, 1000)}"


def _mistake(code: object, language: object) -> str | None:
    # Frameworks differ in what they check before they call; a model's arguments are never trusted to have a type.
    mistakes = []
    if not isinstance(code, str):
        mistakes.append(("code", "must be a string"))
    if language not in LANGUAGES:
        mistakes.append(("language", f"must be one of {', '.join(LANGUAGES)}, not {str(language)[:80]}"))
    return refusal(mistakes) if mistakes else None


def unfenced(code: str, language: Language) -> tuple[str, Language]:
    """Code without the Markdown fence that models put around it, whose language is taken when none was chosen."""
    fence = _FENCE.match(code)
    if fence is None:
        return code, language
    named = _FENCE_LANGUAGES.get(fence[2].lower())
    return fence[3] + "\n", named if named is not None and language == "python" else language
