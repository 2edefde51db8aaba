"""The same events in each language, and in a static binary where one can be built: verdicts are not Python's."""

from __future__ import annotations

import shutil
import subprocess

import pytest

# For each event: the code in a language, and the exit code, the fault and standard output that must come back.
EVENTS = {
    "clean": (0, None, "on\n"),
    "exit 137": (137, None, "on\n"),
    "exit 159": (159, None, "on\n"),
    "exit 125": (125, None, "on\n"),
    "terminate": (143, None, "on\n"),
    "kill": (137, "killed", "on\n"),
    "deadline": (137, "timeout", "on\n"),
    "memory": (137, "oom", "on\n"),
}
PYTHON = {
    "clean": "pass",
    "exit": "import sys; sys.exit({0})",
    "terminate": "import os; os.kill(os.getpid(), 15)",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "deadline": "while True: pass",
    "memory": "b = []\nwhile True: b.append(bytearray(10 << 20))",
}
BASH = {
    "clean": ":",
    "exit": "exit {0}",
    "terminate": "kill -TERM $$",
    "kill": "kill -KILL $$",
    "deadline": "trap '' TERM INT; while :; do :; done",
    "memory": "a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done",
}
NODE = {
    "clean": ";",
    "exit": "process.exit({0})",
    "terminate": "process.kill(process.pid, 'SIGTERM'); setInterval(() => 0, 1000)",
    "kill": "process.kill(process.pid, 'SIGKILL'); setInterval(() => 0, 1000)",
    "deadline": "while (true);",
    # At once: in small pieces the kernel evicts the program's own text between them, which docs/notes.md tells of.
    "memory": "const b = []; while (true) b.push(Buffer.alloc(512 << 20, 1))",
}
C = {
    "clean": "return 0;",
    "exit": "return {0};",
    "terminate": "raise(15);",
    "kill": "raise(9);",
    "deadline": "for (;;) ;",
    "memory": "for (;;) memset(malloc(10 << 20), 1, 10 << 20);",
}
LANGUAGES = {
    "python": ("print('on', flush=True)\n", PYTHON, "python3"),
    "bash": ("echo on\n", BASH, "bash"),
    "javascript": ("require('fs').writeSync(1, 'on\\n');\n", NODE, "node"),
}


def code_of(codes, event):
    word, _, number = event.partition(" ")
    return codes[word].replace("{0}", number)


def judge(result, event):
    exit_code, fault, stdout = EVENTS[event]
    assert (result.exit_code, result.fault and result.fault.type, result.stdout) == (exit_code, fault, stdout)
    if fault is None:
        assert result.signal == (15 if event == "terminate" else None)


def options_of(sandbox, event):
    if event == "memory":
        if sandbox.limits["memory"].enforced_by == "none":
            pytest.skip("nothing on this host binds memory")
        return {"memory_mb": 128, "timeout_s": 60}
    return {"timeout_s": 2 if event == "deadline" else 30}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_an_event_has_the_same_verdict_in_each_language(sandbox, language, event):
    start, codes, program = LANGUAGES[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on this host")
    judge(sandbox.run_code(start + code_of(codes, event), language, **options_of(sandbox, event)), event)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_has_the_same_verdict_in_a_static_binary(sandbox, tmp_path, event):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not on this host")
    source = (
        "#include <signal.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
        f'int main(void) {{ write(1, "on\\n", 3); {code_of(C, event)} }}\n'
    )
    (tmp_path / "p.c").write_text(source)
    command = ["gcc", "-O0", "-w", "-static", "-o", "p", "p.c"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode != 0:
        pytest.skip("no static libc on this host")
    sandbox.upload(tmp_path / "p", "p")
    judge(sandbox.run(["./p"], **options_of(sandbox, event)), event)
