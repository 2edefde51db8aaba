"""Profiles: what the engine's user has written in stepbox.toml stands where a request says nothing."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

import stepbox

ENGINE = os.environ.get("STEPBOX_BIN", "stepbox")


@pytest.fixture
def config(tmp_path):
    """Writes the file; gives its path."""

    def write(text):
        path = tmp_path / "config" / "stepbox" / "stepbox.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


def run(tmp_path, *words):
    """`stepbox run` of an engine whose user has that file."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return subprocess.run(
        [ENGINE, "run", *words], env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


def test_a_profile_gives_what_is_not_said_and_an_option_beats_it(config, tmp_path):
    config('[vcpu.small]\nmemory = "96m"\n\n[vdisk.small]\nsize = "2m"\n')
    names = ["--profile", "vcpu:small", "--profile", "vdisk:small"]
    told = run(tmp_path, *names, "--json", "-c", "pass")
    assert told.returncode == 0, told.stderr
    assert '"max":100663296' in told.stdout.replace(" ", "")
    assert '"max":2097152' in told.stdout.replace(" ", "")
    told = run(tmp_path, *names, "--memory-mb", "128", "--json", "-c", "pass")
    assert '"max":134217728' in told.stdout.replace(" ", "")


def test_a_mistake_is_told_with_file_line_and_key(config, tmp_path):
    path = config('# mine\n\n[vcpu.small]\nmemory = 96\nram = "1g"\n')
    told = run(tmp_path, "--profile", "vcpu:small", "-c", "pass")
    assert told.returncode == 125
    assert f'"{path}":4: vcpu.small.memory: ' in told.stderr
    assert '"96m"' in told.stderr
    assert f'"{path}":5: vcpu.small.ram: there is no such key; write cpus or memory' in told.stderr
    assert "--profile" in told.stderr


def test_a_profile_that_others_could_have_written_is_not_read(config, tmp_path):
    path = config('[vcpu.small]\nmemory = "96m"\n')
    path.chmod(0o666)
    told = run(tmp_path, "--profile", "vcpu:small", "-c", "pass")
    assert told.returncode == 125
    assert "chmod go-w" in told.stderr


def test_a_workspace_that_a_profile_names_is_judged_as_any_other(config, tmp_path):
    path = config(f'[vdisk.bad]\npath = "/etc/x"\n\n[vdisk.good]\npath = "{tmp_path}/work"\nsize = "4m"\n')
    told = run(tmp_path, "--profile", "vdisk:bad", "-c", "pass")
    assert told.returncode == 125
    assert f'"{path}":2: vdisk.bad.path: ' in told.stderr
    told = run(tmp_path, "--profile", "vdisk:good", "-c", "open('made', 'w').close()")
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "work" / "made").exists()


def test_devices_are_exact_nodes_and_none_of_the_kernels_own(config, tmp_path):
    for device, why in (
        ("/dev/null", "never given"),
        ("/dev/no-such-device", "no such device"),
        ("/dev", "not a character device"),
        ("/dev/fd", "link"),
        ("/etc/passwd", "not below /dev"),
        ("/dev/../dev/null", "not below /dev"),
    ):
        path = config(f'[vgpio.pins]\ndevices = ["{device}"]\n')
        told = run(tmp_path, "--profile", "vgpio:pins", "-c", "pass")
        assert told.returncode == 125, device
        assert f'"{path}":2: vgpio.pins.devices: ' in told.stderr
        assert why in told.stderr


def usable_device():
    """A character device that is not the kernel's own and that this user may use; most users may use none."""
    for path in sorted(Path("/dev").rglob("*")):
        try:
            facts = path.lstat()
        except OSError:
            continue
        own = {1, 4, 5, 7, 10, *range(136, 144), 202}
        if (
            stat.S_ISCHR(facts.st_mode)
            and os.major(facts.st_rdev) not in own
            and os.access(path, os.R_OK | os.W_OK)
            and path.resolve() == path
        ):
            return path
    return None


def test_a_device_that_a_profile_names_is_there_and_no_other_is(config, tmp_path):
    device = usable_device()
    if device is None:
        if os.getuid() == 0:
            pytest.skip("this host has no device that could be given")
        # One that is there and not this user's to give is refused.
        config('[vgpio.pins]\ndevices = ["/dev/mem"]\n')
        assert run(tmp_path, "--profile", "vgpio:pins", "-c", "pass").returncode == 125
        return
    config(f'[vgpio.pins]\ndevices = ["{device}"]\n')
    look = f"import os; d = os.stat('{device}').st_rdev; print(os.major(d), os.minor(d)); os.open('{device}', 0)"
    told = run(tmp_path, "--profile", "vgpio:pins", "-c", look)
    facts = device.stat()
    assert told.stdout == f"{os.major(facts.st_rdev)} {os.minor(facts.st_rdev)}\n", told.stderr
    assert run(tmp_path, "--profile", "vgpio:pins", "--json", "-c", "pass").stdout.count(f"device: {device}") == 1
    without = run(tmp_path, "-c", f"import os; print(os.path.exists('{device}'))")
    assert without.stdout == "False\n"


def test_the_client_names_profiles_and_hears_of_their_mistakes():
    with pytest.raises(stepbox.SandboxError) as refused:
        stepbox.Sandbox(profiles=["small"])
    assert "vcpu:NAME" in str(refused.value)
