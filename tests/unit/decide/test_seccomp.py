"""The seccomp list and its translation: shapes here, behaviour in tests/security."""

from __future__ import annotations

import ctypes
import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.decide.policy import parse_seccomp
from stockade.decide.seccomp import (
    ARCHITECTURES,
    OciArgument,
    OciSeccomp,
    SeccompPolicy,
    compile_seccomp,
)
from stockade.host.data import data_directory
from stockade.host.policy_files import load_policy
from stockade.terms.fault import Code, Failure

FULL = (1 << 64) - 1

# Calls of kernels newer than the libseccomp of Debian 12 (2.5.4) knows.
NEWER = frozenset(
    [
        "cachestat",
        "fchmodat2",
        "file_getattr",
        "file_setattr",
        "futex_requeue",
        "futex_wait",
        "futex_wake",
        "getxattrat",
        "listmount",
        "listxattrat",
        "lsm_get_self_attr",
        "lsm_list_modules",
        "lsm_set_self_attr",
        "map_shadow_stack",
        "mseal",
        "open_tree_attr",
        "removexattrat",
        "setxattrat",
        "statmount",
    ]
)


@pytest.fixture(scope="module")
def policy() -> SeccompPolicy:
    (found,) = load_policy().seccomp.values()
    return found


@pytest.fixture(scope="module")
def compiled(policy: SeccompPolicy) -> OciSeccomp:
    return compile_seccomp(policy, "x86_64")


@functools.cache
def _compiled() -> OciSeccomp:
    (policy,) = load_policy().seccomp.values()
    return compile_seccomp(policy, "x86_64")


def _holds(argument: OciArgument, values: tuple[int, ...]) -> bool:
    value = values[argument.index]
    if argument.op == "SCMP_CMP_MASKED_EQ":
        return value & argument.value == argument.value_two
    return {
        "SCMP_CMP_EQ": value == argument.value,
        "SCMP_CMP_NE": value != argument.value,
        "SCMP_CMP_GT": value > argument.value,
    }[argument.op]


def _answers(compiled: OciSeccomp, name: str, *values: int) -> list[int]:
    """The errnos (0 for allowed) of all rules that match; empty means the default."""
    padded = values + (0,) * (6 - len(values))
    return [
        0 if rule.action == "SCMP_ACT_ALLOW" else rule.errno_ret or 0
        for rule in compiled.syscalls
        if name in rule.names and all(_holds(argument, padded) for argument in rule.args)
    ]


def test_a_call_stands_in_one_rule_or_in_conditional_ones_only(compiled: OciSeccomp) -> None:
    plain = [name for rule in compiled.syscalls if not rule.args for name in rule.names]
    conditional = {name for rule in compiled.syscalls if rule.args for name in rule.names}
    assert len(plain) == len(set(plain))
    assert conditional.isdisjoint(plain)
    assert conditional == {"clone", "socket", "socketpair", "personality", "prlimit64", "ioctl"}


def test_no_rule_has_two_conditions_on_one_argument(compiled: OciSeccomp) -> None:
    for rule in compiled.syscalls:
        assert len({argument.index for argument in rule.args}) == len(rule.args)


def test_every_name_is_known_to_libseccomp(policy: SeccompPolicy) -> None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed here")
    unknown = {
        name
        for name in policy.syscalls()
        if library.seccomp_syscall_resolve_name(name.encode()) == -1
    }
    assert unknown <= NEWER


def test_what_crun_needs_is_exact(compiled: OciSeccomp) -> None:
    value = compiled.to_json()
    assert value["defaultAction"] == "SCMP_ACT_ERRNO"
    assert value["defaultErrnoRet"] == 38
    assert value["architectures"] == ["SCMP_ARCH_X86_64"]
    rules = value["syscalls"]
    assert isinstance(rules, list)
    assert {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": []} in rules
    assert {
        "names": ["clone"],
        "action": "SCMP_ACT_ALLOW",
        "args": [
            {"index": 0, "value": 0x7E020080, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"},
        ],
    } in rules


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_only_the_native_architecture_is_named(policy: SeccompPolicy, machine: str) -> None:
    compiled = compile_seccomp(policy, machine)
    assert compiled.architectures == (ARCHITECTURES[machine],)
    assert compiled.syscalls == compile_seccomp(policy, "x86_64").syscalls


def test_an_unchecked_architecture_is_refused(policy: SeccompPolicy) -> None:
    with pytest.raises(Failure) as caught:
        compile_seccomp(policy, "s390x")  # clone's arguments are the other way round there
    assert caught.value.fault.code is Code.UNENFORCEABLE


@given(family=st.integers(0, FULL) | st.integers(0, 64), protocol=st.integers(0, 20))
def test_every_socket_has_exactly_one_answer(family: int, protocol: int) -> None:
    allowed = family in (1, 2, 10) or (family == 16 and protocol == 0)
    assert _answers(_compiled(), "socket", family, 3, protocol) == [0 if allowed else 97]


@given(request=st.integers(0, FULL) | st.integers(0x5400, 0x5440))
def test_every_ioctl_has_exactly_one_answer_by_its_low_32_bits(request: int) -> None:
    refused = request & 0xFFFFFFFF in (0x5412, 0x541C, 0x5423)
    assert _answers(_compiled(), "ioctl", 0, request) == [1 if refused else 0]


@given(pid=st.integers(0, FULL))
def test_prlimit64_is_for_the_caller_only(pid: int) -> None:
    assert _answers(_compiled(), "prlimit64", pid) == [1 if pid else 0]


@given(flags=st.integers(0, FULL))
def test_clone_makes_no_namespace(flags: int) -> None:
    assert set(_answers(_compiled(), "clone", flags)) == {1 if flags & 0x7E020080 else 0}


@given(persona=st.integers(0, FULL) | st.sampled_from([0, 8, 0x20000, 0x20008, 0xFFFFFFFF]))
def test_personality_is_one_of_a_few(persona: int) -> None:
    allowed = persona in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
    assert _answers(_compiled(), "personality", persona) == ([0] if allowed else [])


@pytest.mark.parametrize(
    ("name", "errno"),
    [
        *itertools.product(("read", "ptrace", "vmsplice", "landlock_add_rule"), [0]),
        *itertools.product(("mount", "unshare", "bpf", "io_uring_setup", "kcmp"), [1]),
        *itertools.product(("clone3", "io_setup", "uselib"), [38]),
    ],
)
def test_some_answers(compiled: OciSeccomp, name: str, errno: int) -> None:
    assert _answers(compiled, name) == [errno]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"syscalls": ["clone3"]', b'"syscalls": ["clone3", "mount"]', "more than one rule"),
        (b'"syscalls": ["clone3"]', b'"syscalls": ["clone3", "socket"]', "more than one rule"),
        (b'"syscalls": ["clone3"]', b'"syscalls": ["Clone3"]', "pattern"),
        (b'"answer": "absent"', b'"answer": "log"', "allow"),
        (b'"value": 131072,', b'"value": 131073,', "power of two"),
        (b'"value": 33554432', b'"value": 131072', "clone: a value is named twice"),
        (b'"UNAME26", "value": 131072', b'"UNAME26", "value": 8', "personality: .* named twice"),
        (
            b'"value": 131072,',
            b'"also": {"arg": 1, "value": 1}, "value": 131072,',
            "only the form 'only' takes a second argument",
        ),
        (b'"errno": "EPERM"', b'"errno": "EINVAL"', "EPERM"),
        (b'"version": 1', b'"version": 2', "version"),
        (b'"version": 1', b'"version": 1, "version": 1', "twice"),
        (b'"version": 1', b'"version": 1, "extra": 1', "extra"),
    ],
)
def test_a_bad_file_is_refused_by_name(old: bytes, new: bytes, message: str) -> None:
    data = (data_directory("policy") / "seccomp" / "default.json").read_bytes()
    assert old in data
    parse_seccomp(data)
    with pytest.raises(ValueError, match=message):
        parse_seccomp(data.replace(old, new, 1))


def test_the_ref_names_the_content(policy: SeccompPolicy) -> None:
    changed = policy.model_copy(update={"groups": policy.groups[1:]})
    again = SeccompPolicy.model_validate(changed.model_dump())
    assert policy.ref.startswith("default:")
    assert policy.ref != again.ref
