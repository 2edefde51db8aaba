"""Containers of podman's, from none of the rights to those that docs/deploy.md recommends; and hosts with a switch off.

Run as root. The root of each container is the machine's own, under an overlay. Podman's covered paths and AppArmor profile
are Docker's in all that matters here; its filter is wider.
"""

import json
import os
import pathlib
import re
import subprocess
import unittest

HERE = pathlib.Path(__file__).resolve().parent
STEPBOX = str(HERE / "stepbox")
PATIENCE_S = 120

SECCOMP = ("--security-opt", "seccomp=unconfined")
APPARMOR = ("--security-opt", "apparmor=unconfined")
# Docker's word for the latter is `systempaths=unconfined`.
PATHS = ("--security-opt", "unmask=ALL")
ADMIN = ("--cap-add", "SYS_ADMIN")
CGROUPS = ("--cgroupns=host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw")
RECOMMENDED = (*SECCOMP, *APPARMOR, *PATHS, *ADMIN, *CGROUPS)
BY_FILTER = ("the seccomp filter of", "seccomp=unconfined")
USER = ("--user", "1000:1000")
# What the restricted profile of Kubernetes asks for.
RESTRICTED = (*USER, "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
LANDLOCK_IS_NEW = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)


def contained(flags, *words):
    """Runs the engine's binary as the first process of a container."""
    command = ["podman", "run", "--rm", "--network", "none", *flags, "--rootfs", "/:O", STEPBOX, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    print(
        f"\n$ podman run {' '.join(flags)} stepbox {' '.join(words)} -> {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done


def line(doctor, name):
    """A finding of doctor's, with the lines that belong to it."""
    found = re.search(rf"^\w+ +{name} .*(\n {{20,}}.*)*", doctor, re.MULTILINE)
    return found[0] if found else ""


class AContainer(unittest.TestCase):
    def assert_full(self, flags, kept):
        doctor = contained(flags, "doctor")
        self.assertEqual(doctor.returncode, 0)
        done = contained(flags, "run", "--json", "-c", "print(1)")
        result = json.loads(done.stdout)
        self.assertEqual((result["stdout"], result["fault"]), ("1\n", None))
        self.assertEqual({limit["resource"]: limit["enforced_by"] for limit in result["limits"]}["memory"], kept)

    def assert_refused(self, flags, finding, *words):
        doctor = contained(flags, "doctor")
        self.assertNotEqual(doctor.returncode, 0)
        said = line(doctor.stdout, finding)
        for word in words:
            self.assertIn(word, said)
        return doctor

    def test_that_was_given_what_is_recommended_has_all(self):
        self.assert_full(RECOMMENDED, "cgroup2")

    def test_of_an_ordinary_user_needs_no_capability(self):
        self.assert_full((*SECCOMP, *APPARMOR, *PATHS, *USER), "watchdog")

    def test_under_the_default_filter_is_told_so(self):
        # Podman's lets namespaces pass, and refuses what is done in them.
        doctor = self.assert_refused((*APPARMOR, *PATHS, *USER), "other_namespaces", *BY_FILTER)
        self.assertIn("MISSING  sandbox", doctor.stdout)

    def test_under_a_filter_that_lets_no_namespace_pass_is_told_so(self):
        # As Docker's does for whoever has no SYS_ADMIN.
        calls = ["unshare", "setns", "mount", "umount2", "pivot_root", "sethostname", "open_tree", "move_mount"]
        rules = [{"names": calls, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]
        rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38})
        spaces = {"index": 0, "value": 0x10000000, "valueTwo": 0x10000000, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [spaces]})
        profile = HERE / "docker.json"
        profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}))
        flags = ("--security-opt", f"seccomp={profile}")
        for more in ((*APPARMOR, *PATHS, *USER), RESTRICTED):
            doctor = contained((*flags, *more), "doctor")
            self.assertNotEqual(doctor.returncode, 0)
            self.assertIn("the seccomp filter of Podman", doctor.stdout)
            # The way without namespaces is there: what `clone3` is refused `clone` may do.
            self.assert_reduced((*flags, *more))

    def test_with_covered_places_in_proc_is_told_so(self):
        self.assert_refused((*SECCOMP, *APPARMOR, *ADMIN), "fresh_proc", "places of /proc are masked", "unmask=ALL")

    def test_of_root_without_the_capability_is_as_an_ordinary_user_there(self):
        # Unmasked, its cgroup can be written to as well.
        self.assert_full((*SECCOMP, *APPARMOR, *PATHS), "cgroup2")

    def test_under_the_default_profile_of_apparmor_is_told_so(self):
        if not pathlib.Path("/sys/kernel/security/apparmor/profiles").exists():
            self.skipTest("the kernel has no AppArmor")
        self.assert_refused((*SECCOMP, *PATHS), "mount_namespaces", "the AppArmor profile", "apparmor=unconfined")

    def test_without_any_flag_is_told_what_it_lacks_and_runs_nothing(self):
        self.assert_refused((), "mount_namespaces", "podman")
        done = contained((), "run", "-c", "print(1)")
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("to mend it: ", done.stderr)

    def test_without_any_flag_has_reduced_isolation_where_the_kernel_has_what_it_takes(self):
        for flags in ((), USER, RESTRICTED):
            self.assert_reduced(flags)

    def assert_reduced(self, flags):
        done = contained(flags, "run", "--isolation", "reduced", "--no-enforce-limits", "--json", "-c", "print(1)")
        if not LANDLOCK_IS_NEW:
            self.assertEqual((done.returncode, done.stdout), (125, ""))
            self.assertIn("Linux 6.12", done.stderr)
            return
        self.assertEqual(done.returncode, 0)
        result = json.loads(done.stdout)
        self.assertEqual((result["stdout"], result["fault"]), ("1\n", None))
        self.assertTrue([word for word in result["isolation"] if "reduced" in word], result["isolation"])


class AHost(unittest.TestCase):
    """Switches of the kernel's, as an ordinary user. What is set is the machine's, which is thrown away."""

    def assert_named(self, switch, value, *words):
        path = pathlib.Path("/proc/sys", *switch.split("."))
        if not path.exists():
            self.skipTest(f"the kernel has no {switch}")
        before = path.read_text()
        path.write_text(value)
        try:
            doctor = subprocess.run(
                ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", STEPBOX, "doctor"],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        finally:
            path.write_text(before)
        print(doctor.stdout)
        self.assertNotEqual(doctor.returncode, 0)
        for word in words:
            self.assertIn(word, line(doctor.stdout, "user_namespaces"))

    def test_that_allows_no_user_namespace_is_named(self):
        self.assert_named("user.max_user_namespaces", "0", "user.max_user_namespaces is 0", "sudo sysctl -w")

    def test_that_allows_them_to_root_alone_is_named(self):
        self.assert_named("kernel.unprivileged_userns_clone", "0", "only root may", "unprivileged_userns_clone=1")

    def test_that_restricts_them_by_apparmor_is_named(self):
        self.assert_named("kernel.apparmor_restrict_unprivileged_userns", "1", "AppArmor", "userns,")


if __name__ == "__main__":
    unittest.main(verbosity=2)
