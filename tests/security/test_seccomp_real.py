"""The compiled filter in a real container: each call with an allowed and a refused argument.

The same program runs a second time without the filter, with the same capabilities. Where the second
run gives another answer, the filter alone made the difference (the positive control).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stockade.decide.seccomp import (
    Conditional,
    Never,
    NoBits,
    SeccompPolicy,
    compile_seccomp,
)
from stockade.host.policy_files import load_policy
from stockade.terms.grant import Profile
from tests.security.inside import entered, grant_for, leased
from tests.worlds import OciWorld

Run = Callable[[Sequence[str], Mapping[str, object] | None], "subprocess.CompletedProcess[str]"]
Bundle = Callable[[Sequence[Path]], AbstractContextManager[Run]]

SOURCE = Path(__file__).with_name("seccomp_probe.c")
NATIVE_ONLY = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="only x86_64 has these entry points"
)
FLAGS = ("NEWNS", "NEWCGROUP", "NEWUTS", "NEWIPC", "NEWUSER", "NEWPID", "NEWNET")

ALLOWED = (
    "socket unix",
    "socket inet tcp",
    "socket inet udp",
    "socket inet6 tcp",
    "socket netlink route",
    "socketpair unix",
    "clone plain",
    "personality query",
    "personality LINUX32",
    "personality LINUX",
    "prlimit64 self",
    "memfd_create",
    "inotify_init1",
    "pidfd_open",
    "process_vm_readv",
    "seccomp",
    "ptrace",
)
NO_FAMILY = (
    "socket netlink audit",
    "socket netlink netfilter",
    "socket netlink generic",
    "socket vsock",
    "socket packet + high bits",
    "socket unix + high bits",
    "socket family -1",
    "socketpair inet",
    "socketpair tipc",
)
REFUSED = (
    *(f"clone {flag}" for flag in FLAGS),
    *(f"unshare {flag}" for flag in (*FLAGS, "NEWTIME")),
    "clone NEWUSER + high bits",
    "setns",
    "prlimit64 pid 1",
    "keyctl",
    "add_key",
    "request_key",
    "bpf",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "perf_event_open",
    "kexec_load",
    "kexec_file_load",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "name_to_handle_at",
    "open_by_handle_at",
    "pidfd_getfd",
    "kcmp",
    "fanotify_init",
    "init_module",
    "finit_module",
    "delete_module",
    "swapon",
    "reboot",
    "acct",
    "sethostname",
    "settimeofday",
    "syslog",
    "quotactl",
)
ABSENT = (
    "clone3",
    "io_setup",
    "memfd_secret",
    "unknown call",
    "personality READ_IMPLIES_EXEC",
    "personality ADDR_NO_RANDOMIZE",
)
# Answered like this by the kernel as well, whatever the arguments: they need a capability of the
# initial user namespace, or aren't there at all.
NO_CONTROL = {
    "bpf",
    "kexec_load",
    "kexec_file_load",
    "fanotify_init",
    "init_module",
    "finit_module",
    "delete_module",
    "swapon",
    "reboot",
    "acct",
    "settimeofday",
    "syslog",
    "unknown call",
    "open_by_handle_at",
}
IOCTL_REFUSED = ("0x5412", "0x541c", "0x5423")
IOCTL_ALLOWED = (
    *("0x5401", "0x540f", "0x5410", "0x5411", "0x5413", "0x541b", "0x541d", "0x5422", "0x5424"),
    *("0x543f", "0", "0x80000000", "0xffffffff", "0x40086602"),
)


# Calls that are newer than the headers of Debian 12; from 424 on a number is every architecture's.
# A filter library that doesn't know a name leaves it to the default answer.
NEW_CALLS = {
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
    "cachestat": 451,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
}
HIGH = 1 << 32
WIDE = HIGH * HIGH - 1
CLONE_FILES, CLONE_FS = 0x400, 0x200  # flags that mean nothing to a child that only ends


@dataclass(frozen=True)
class Arguments:
    """Values of a rule's argument, each with that of the rule's second one."""

    allowed: set[tuple[int, int]]
    refused: set[tuple[int, int]]


def arguments_of(rule: Conditional) -> Arguments:
    """For every value that a rule names: the value itself, its neighbours, and its spelling with
    bits that a 32-bit argument doesn't have."""
    if isinstance(rule, NoBits):
        bits = [bit.value for bit in rule.bits]
        spelled = {b for bit in bits for b in (bit, bit | HIGH, bit | CLONE_FILES)}
        return Arguments(
            {(0, 0), (CLONE_FILES, 0), (CLONE_FILES | CLONE_FS, 0)}, {(b, 0) for b in spelled}
        )
    listed = {value.value for value in rule.values}
    beside = {n for v in listed for n in (v - 1, v + 1, v ^ 0x80000000) if 0 <= n < HIGH} - listed
    if isinstance(rule, Never):
        return Arguments(
            {(n, 0) for n in beside}, {(v | more, 0) for v in listed for more in (0, HIGH)}
        )
    also = {value.value: 0 if value.also is None else value.also.value for value in rule.values}
    allowed = set(also.items())
    refused = {(n, 0) for n in beside | {v | HIGH for v in listed} | {WIDE}}
    for value in rule.values:
        if value.also is not None:
            refused |= {(value.value, value.also.value ^ bit) for bit in (1, 2, 16, HIGH)}
    return Arguments(allowed, refused)


@pytest.fixture(scope="module")
def policy() -> SeccompPolicy:
    (policy,) = load_policy().seccomp.values()
    return policy


@pytest.fixture(scope="module")
def seccomp(policy: SeccompPolicy) -> Mapping[str, object]:
    return compile_seccomp(policy, platform.machine()).to_json()


def answered(policy: SeccompPolicy, answer: str) -> list[str]:
    return [n for group in policy.groups if group.answer == answer for n in group.syscalls]


def header(policy: SeccompPolicy) -> str:
    """Each call that is refused whatever its arguments, and each argument that a rule looks at."""
    lines = []
    for name in (*answered(policy, "refuse"), *answered(policy, "absent")):
        other = NEW_CALLS.get(name, -1)
        lines += [f"#ifdef SYS_{name}", f'PLAIN("{name}", SYS_{name})', "#else"]
        lines += [f'PLAIN("{name}", {other})', "#endif"]
    for rule in policy.conditional:
        arguments = arguments_of(rule)
        for value, also in sorted(arguments.allowed | arguments.refused):
            lines.append(f'CONDITIONAL("{rule.syscall}", {value:#x}UL, {also:#x}UL)')
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def probe(policy: SeccompPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("probe")
    (directory / "policy_calls.h").write_text(header(policy))
    made = directory / "probe"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-I", str(directory)]
    subprocess.run(["gcc", *options, "-o", str(made), str(SOURCE)], check=True)
    return made


@pytest.fixture(scope="module")
def run(oci_bundle: Bundle, probe: Path) -> Iterator[Run]:
    with oci_bundle([probe]) as run:
        yield run


def _probe(run: Run, seccomp: Mapping[str, object] | None) -> dict[str, str]:
    done = run(["/probe"], seccomp)
    assert done.returncode == 0, done.stderr
    return _answers(done.stdout)


def _answers(text: str) -> dict[str, str]:
    lines = text.splitlines()
    answers = dict(line.split("\t") for line in lines)
    assert len(answers) == len(lines)
    return answers


@pytest.fixture(scope="module")
def filtered(run: Run, seccomp: Mapping[str, object]) -> dict[str, str]:
    return _probe(run, seccomp)


@pytest.fixture(scope="module")
def control(run: Run) -> dict[str, str]:
    return _probe(run, None)


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_call_works(filtered: dict[str, str], name: str) -> None:
    assert filtered[name] == "ok"


@pytest.mark.parametrize("name", NO_FAMILY)
def test_socket_family_is_unknown(filtered: dict[str, str], name: str) -> None:
    assert filtered[name] == "EAFNOSUPPORT"


def test_every_other_socket_family_is_unknown(
    filtered: dict[str, str], control: dict[str, str]
) -> None:
    families = [name for name in filtered if name.startswith("socket family ")]
    assert len(families) == 61
    assert {filtered[name] for name in families} == {"EAFNOSUPPORT"}
    assert control["socket family 17"] == "ok"
    assert control["socket netlink generic"] == "ok"
    assert control["socketpair inet"] == "EOPNOTSUPP"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_call_gives_eperm(filtered: dict[str, str], name: str) -> None:
    assert filtered[name] == "EPERM"


@pytest.mark.parametrize("name", ABSENT)
def test_b87_filtered_by_argument_or_unknown_gives_enosys(
    filtered: dict[str, str], name: str
) -> None:
    assert filtered[name] == "ENOSYS"


@pytest.mark.parametrize("name", [name for name in (*REFUSED, *ABSENT) if name not in NO_CONTROL])
def test_without_the_filter_the_kernel_answers_otherwise(
    filtered: dict[str, str], control: dict[str, str], name: str
) -> None:
    if name == "memfd_secret" and control[name] == "ENOSYS":
        pytest.skip("this kernel was started without memfd_secret, the default before Linux 6.5")
    assert control[name] != filtered[name]


@pytest.mark.parametrize("suffix", ["", " + high bits"])
def test_terminal_injection_is_refused_in_all_spellings(
    filtered: dict[str, str], control: dict[str, str], suffix: str
) -> None:
    for request in IOCTL_REFUSED:
        assert filtered[f"ioctl {request}{suffix}"] == "EPERM"
        assert control[f"ioctl {request}{suffix}"] == "EBADF"
    for request in IOCTL_ALLOWED:
        assert filtered[f"ioctl {request}{suffix}"] == "EBADF"


def test_every_call_that_the_policy_refuses_is_made_and_refused(
    policy: SeccompPolicy, filtered: dict[str, str]
) -> None:
    for answer, errno in (("refuse", "EPERM"), ("absent", "ENOSYS")):
        for name in answered(policy, answer):
            said = filtered[f"policy {name}"]
            if said == "no number":
                # It can't be called at all: another architecture's.
                assert platform.machine() != "x86_64", name
                continue
            assert said == errno or (name in NEW_CALLS and said == "ENOSYS"), name


def test_each_refused_group_has_a_call_that_the_kernel_alone_would_answer_otherwise(
    policy: SeccompPolicy, filtered: dict[str, str], control: dict[str, str]
) -> None:
    for group in policy.groups:
        names = [f"policy {name}" for name in group.syscalls]
        if group.answer in ("refuse", "absent") and group.name != "long_gone":
            assert [name for name in names if filtered[name] != control[name]], group.name


def test_every_argument_that_a_rule_looks_at_is_tried_and_answered_as_it_says(
    policy: SeccompPolicy, filtered: dict[str, str], control: dict[str, str]
) -> None:
    """A rule whose call the probe doesn't know answers "no probe": write one with the rule."""
    for rule in policy.conditional:
        arguments = arguments_of(rule)
        assert arguments.allowed
        assert arguments.refused
        assert not arguments.allowed & arguments.refused
        for value, also in arguments.allowed:
            name = f"policy {rule.syscall} {_hex(value)} {_hex(also)}"
            assert filtered[name] == control[name] != "no probe", name
            assert filtered[name] != rule.errno, name
        differs = 0
        for value, also in arguments.refused:
            name = f"policy {rule.syscall} {_hex(value)} {_hex(also)}"
            assert filtered[name] == rule.errno, name
            differs += control[name] != rule.errno
        assert differs, rule.syscall


def _hex(value: int) -> str:
    return f"{value:#x}" if value else "0"  # as printf's %#lx


@pytest.mark.parametrize("profile", list(Profile))
def test_sandboxes_of_every_profile_answer_as_the_filter_alone(
    oci_world: OciWorld, probe: Path, filtered: dict[str, str], profile: Profile
) -> None:
    with leased(oci_world) as tree, entered(oci_world, grant_for(oci_world, profile), tree) as made:
        fd = os.open("workspace/probe", os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=tree.root_fd)
        with open(fd, "wb") as file:
            file.write(probe.read_bytes())
        done = made.run("./probe", timeout_ms=60_000)
        assert done.value == 0, done.stderr.head
        assert done.stdout.tail == b""
        assert _answers(done.stdout.head.decode()) == filtered


@NATIVE_ONLY
@pytest.mark.parametrize("name", ["int80 getpid", "int80 socket", "x32 getpid", "x32 socket"])
def test_foreign_entry_is_killed(
    filtered: dict[str, str], control: dict[str, str], name: str
) -> None:
    assert filtered[name] == "SIGSYS"
    assert control[name] != "SIGSYS"


def test_one_filter_is_in_force(run: Run, seccomp: Mapping[str, object]) -> None:
    done = run(["/usr/bin/grep", "^Seccomp", "/proc/self/status"], seccomp)
    assert done.stdout.split() == ["Seccomp:", "2", "Seccomp_filters:", "1"]


PROGRAMS = {
    "python3 threads": (
        "import threading as t; x = t.Thread(target=print, args=('threads',)); x.start(); x.join()"
    ),
    "python3 processes": (
        "import subprocess, asyncio, concurrent.futures as f\n"
        "pool = f.ProcessPoolExecutor(2)\n"
        "assert list(pool.map(abs, [-1, -2])) == [1, 2]\n"
        "assert asyncio.run(asyncio.sleep(0, 7)) == 7\n"
        "print(subprocess.run(['echo', 'processes'], capture_output=True).stdout.decode())"
    ),
}
SHELL = {
    "perl": "perl -e 'print \"perl\\n\"; exit(fork ? wait < 0 : 0)'",
    "gcc": "echo 'int main(void){return 0;}' >/tmp/a.c && gcc -pthread -o /tmp/a /tmp/a.c && /tmp/a",
    "git": "cd /tmp && git init -q r && cd r && git config user.email a@b && git config user.name n"
    " && touch f && git add f && git commit -qm m && git log --oneline",
    "node": "node -e 'setTimeout(() => console.log(\"node\"), 1)'",
    "tar": "cd /tmp && mkdir t && touch t/f && tar cf t.tar t && tar xf t.tar && rm -r t",
    "rg": "cd /tmp && echo needle >n && rg -j4 needle n",
    "strace": "strace -f -o /dev/null sh -c 'true & wait'",
    "gdb": "gdb -q -batch -ex run -ex bt /usr/bin/true 2>&1 | grep 'exited normally'",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_b87_python_starts_threads_and_processes(
    run: Run, seccomp: Mapping[str, object], name: str
) -> None:
    done = run(["/usr/bin/python3", "-c", PROGRAMS[name]], seccomp)
    assert (done.returncode, done.stdout.strip()) == (0, name.split()[1]), done.stderr


@pytest.mark.parametrize("name", SHELL)
def test_b87_common_programs_work(run: Run, seccomp: Mapping[str, object], name: str) -> None:
    if shutil.which(name, path="/usr/bin:/bin") is None:
        pytest.skip(f"{name} is not installed here")
    done = run(["/bin/sh", "-c", SHELL[name]], seccomp)
    assert done.returncode == 0, done.stderr
