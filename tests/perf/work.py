"""What is run: one program or one piece of source, and what it has to print."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Source in a language, or a program by its arguments."""

    title: str
    output: str
    code: str = ""
    language: str = "python"
    argv: tuple[str, ...] = ()

    def arguments(self, python: str) -> list[str]:
        """The program to start for those who know nothing of languages."""
        if self.argv:
            return list(self.argv)
        interpreter = {"python": [python, "-c"], "bash": ["bash", "-c"], "javascript": ["node", "-e"]}
        return [*interpreter[self.language], self.code]

    def check(self, output: str) -> None:
        """A call that printed something else counts as failed."""
        if output != self.output:
            raise RuntimeError(f"{self.title} printed {output[:200]!r}")


_IMPORT = "import numpy, pandas; print(1)"
_TABLE = "from pandas import DataFrame\ndf = DataFrame({'a': range(1000)}); print(int(df.a.sum()))"

TRUE = Work('run(["true"])', "", argv=("true",))
PRINT = Work("print(1)", "1\n", "print(1)")
BASH = Work("bash: echo hi", "hi\n", "echo hi", "bash")
NODE = Work("node: console.log(1)", "1\n", "console.log(1)", "javascript")
STANDARD = Work("import json, re; print(1)", "1\n", "import json, re; print(1)")
PANDAS = Work(_IMPORT, "1\n", _IMPORT)
TABLE = Work("a small pandas job", "499500\n", _TABLE)
