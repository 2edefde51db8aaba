from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import stepbox

SPEC_5 = {
    "image": "host",
    "setup": None,
    "workspace": None,
    "memory_mb": 512,
    "cpus": None,
    "pids": 256,
    "timeout_s": 30,
    "network": False,
    "egress_allow": None,
    "mounts": None,
    "tmpfs": {"/tmp": "64m"},
    "env": None,
    "max_output_bytes": 64 * 1024 * 1024,
    "deps_readonly": True,
    "enforce_limits": True,
    "track_files": True,
    "prewarm": None,
    "preload": None,
    "security_profile": "default",
    "cap_drop": ("ALL",),
    "user": None,
    "workspace_max_bytes": None,
    "workspace_max_files": None,
    "profiles": None,
    "name": None,
    "resident": False,
    "ttl_s": 3600,
    "file_diffs": True,
    "labels": None,
}


def test_the_public_names_are_these():
    assert stepbox.__all__ == [
        "AsyncKernel",
        "AsyncSandbox",
        "Edit",
        "EngineError",
        "ExecutionResult",
        "FileChange",
        "FileInfo",
        "FileStat",
        "GrepMatch",
        "Kernel",
        "Limit",
        "MountRefused",
        "RichResult",
        "Sandbox",
        "SandboxError",
        "SandboxFault",
        "SessionInfo",
        "SessionLost",
        "StepboxError",
        "Usage",
        "run_code",
        "sessions",
        "sessions_async",
    ]
    for name in stepbox.__all__:
        assert getattr(stepbox, name) is not None
    assert stepbox.FileInfo is stepbox.FileChange
    assert set(stepbox.__all__) <= set(dir(stepbox))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = stepbox.nonsense


def test_importing_it_imports_no_grpc():
    code = (
        "import sys, stepbox; print([name for name in ('grpc', 'google.protobuf', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_options_have_the_names_and_defaults_of_the_spec():
    for kind in (stepbox.Sandbox, stepbox.AsyncSandbox):
        parameters = inspect.signature(kind).parameters
        assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        assert {name: defaults[name] for name in SPEC_5} == SPEC_5


def test_both_faces_have_the_same_methods():
    def public(kind):
        return {
            name: list(inspect.signature(value).parameters.items())
            for name, value in vars(kind).items()
            if not name.startswith("_") and inspect.isfunction(value)
        }

    assert public(stepbox.Sandbox) == public(stepbox.AsyncSandbox)
    assert public(stepbox.Kernel) == public(stepbox.AsyncKernel)


def test_a_method_that_is_still_to_come_is_not_there():
    for kind in (stepbox.Sandbox, stepbox.AsyncSandbox):
        assert not [name for name in ("snapshot", "restore") if hasattr(kind, name)]


def test_all_errors_have_one_root():
    assert issubclass(stepbox.SandboxError, stepbox.StepboxError)
    assert issubclass(stepbox.MountRefused, stepbox.SandboxError)
    assert issubclass(stepbox.EngineError, stepbox.StepboxError)
    assert issubclass(stepbox.SessionLost, stepbox.StepboxError)
    assert not issubclass(stepbox.EngineError, stepbox.SandboxError)
    assert not issubclass(stepbox.SessionLost, stepbox.SandboxError)


def test_results_and_errors_can_be_pickled():
    result = stepbox.ExecutionResult(stdout_bytes=b"x", files=[stepbox.FileChange("a", "created")])
    assert pickle.loads(pickle.dumps(result)) == result
    error = stepbox.SandboxError("no", reason="not_found")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason) == ("no", "not_found")


def test_a_program_written_for_the_same_words_runs_with_the_import_changed():
    program = """
import stepbox as kern
with kern.Sandbox(memory_mb=128, timeout_s=5) as sandbox:
    sandbox.write_file("a.txt", "hello")
    assert sandbox.read_file("a.txt") == b"hello"
    assert sandbox.list_files() == ["a.txt"]
    result = sandbox.run_code("print 4950")
    assert result.success and result.fault is None and result.stdout == "4950\\n" and result.files == []
    assert sandbox.run_code("fault timeout").fault.type == "timeout"
try:
    kern.Sandbox(mounts={"relative": "/box"})
except kern.MountRefused as refused:
    print("refused", refused.violations[0].field)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert (done.stdout, done.stderr, done.returncode) == ("refused mounts[0].source\n", "", 0)


def test_client_and_engine_carry_one_version():
    manifest = (Path(__file__).parents[4] / "Cargo.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{stepbox.__version__}"\n' in manifest


def test_the_stubs_are_current():
    pytest.importorskip("grpc_tools", reason="the generator of the stubs is not installed")
    script = Path(__file__).parents[2] / "scripts" / "generate_stubs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_methods_are_those_of_the_service():
    from stepbox import _calls
    from stepbox._pb import sandbox_pb2

    service = sandbox_pb2.DESCRIPTOR.services_by_name["Sandbox"]
    methods = [value for value in vars(_calls).values() if isinstance(value, _calls.Method)]
    assert service.full_name == _calls.SERVICE
    for method in methods:
        described = service.methods_by_name[method.name]
        assert described.input_type is method.request.DESCRIPTOR
        assert described.output_type is method.reply.DESCRIPTOR


def test_every_option_but_files_reaches_the_spec_and_every_field_of_the_spec_has_an_option():
    from stepbox import _options
    from stepbox._pb import sandbox_pb2

    fields = {field.name for field in sandbox_pb2.SandboxSpec.DESCRIPTOR.fields}
    options = set(_options.DEFAULTS)
    assert options - fields == {"files"}
    assert {name for name in fields - options if not name.endswith("_set")} == {"interpreter"}
    assert set(_options._SETTERS) == options - {"files"}
    assert set(_options.SandboxOptions.__annotations__) == options
