"""The seccomp list as data, and its translation into the OCI runtime's `linux.seccomp` object.

A file says what is meant; three forms cover what depends on an argument: `no_bits` (flags that
must be clear), `only` (the values that are allowed) and `never` (the values that are refused).
OCI rules have traps that the translation knows, found by running the result with crun and runc:

- A conditional allow that doesn't match falls to the default answer, so another answer needs rules
  for the complement. An unconditional rule beside conditional ones swallows them.
- Two conditions on one argument in one rule are not joined by "and": no range can be written.
  A complement is therefore split into aligned blocks, each one comparison under a mask, and rules
  of one system call never overlap, since which of two would win isn't defined.
- The filter compares 64 bits, the kernel reads an int argument as 32. For `only` the wide compare
  is the safe side; for `never` it is a hole (CVE-2019-10063), so `never` masks to 32 bits.

Only the native architecture is named: a 32-bit or x32 entry is then killed by SIGSYS, and 32-bit
socketcall can't get round the rule of socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from stockade.decide.canonical import digest
from stockade.decide.grant_file import Reason
from stockade.terms.base import Model
from stockade.terms.fault import Code, failure
from stockade.terms.ids import Name

# Linux numbers, equal on every architecture below (asm-generic/errno.h).
ERRNO: Final = {"EPERM": 1, "ENOSYS": 38, "EAFNOSUPPORT": 97}
ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_WIDE: Final = (1 << 64) - 1

ErrnoName = Literal["EPERM", "ENOSYS", "EAFNOSUPPORT"]
SyscallName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{1,63}$")]
Index = Annotated[int, Field(ge=0, le=5)]
Word = Annotated[int, Field(ge=0, lt=1 << 32)]


class Default(Model):
    errno: ErrnoName
    reason: Reason


class Group(Model):
    """System calls with one answer whatever their arguments: `refuse` is EPERM, `absent` ENOSYS."""

    name: Name
    answer: Literal["allow", "refuse", "absent"]
    reason: Reason
    syscalls: Annotated[tuple[SyscallName, ...], Field(min_length=1)]


class Also(Model):
    """A second argument that must have this value as well."""

    arg: Index
    value: Word


class Value(Model):
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    value: Word
    reason: Reason
    also: Also | None = None


class _Conditional(Model):
    syscall: SyscallName
    arg: Index
    errno: ErrnoName
    reason: Reason


class NoBits(_Conditional):
    """Allowed while every one of `bits` is clear."""

    form: Literal["no_bits"]
    bits: Annotated[tuple[Value, ...], Field(min_length=1)]


class Only(_Conditional):
    """Allowed with one of `values`, refused with any other."""

    form: Literal["only"]
    values: Annotated[tuple[Value, ...], Field(min_length=1)]


class Never(_Conditional):
    """Refused with one of `values`, allowed with any other."""

    form: Literal["never"]
    values: Annotated[tuple[Value, ...], Field(min_length=1)]


Conditional = Annotated[NoBits | Only | Never, Field(discriminator="form")]


class SeccompPolicy(Model):
    """One file of `policy/seccomp/`. A system call stands in exactly one rule."""

    version: Literal[1]
    name: Name
    reason: Reason
    default: Default
    groups: tuple[Group, ...]
    conditional: tuple[Conditional, ...]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = self.syscalls()
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"in more than one rule: {', '.join(twice)}")
        for rule in self.conditional:
            values = rule.bits if isinstance(rule, NoBits) else rule.values
            if len({value.value for value in values}) != len(values):
                raise ValueError(f"{rule.syscall}: a value is named twice")
            if not isinstance(rule, Only) and any(value.also for value in values):
                raise ValueError(f"{rule.syscall}: only the form 'only' takes a second argument")
            if isinstance(rule, NoBits) and any(v.value.bit_count() != 1 for v in values):
                raise ValueError(f"{rule.syscall}: a bit is a power of two")
        return self

    def syscalls(self) -> list[str]:
        """Every name, in the order of the file."""
        plain = [name for group in self.groups for name in group.syscalls]
        return plain + [rule.syscall for rule in self.conditional]

    @cached_property
    def ref(self) -> str:
        """Name and content, `default:` and 16 hex digits; a plan carries it."""
        return f"{self.name}:{digest(self.model_dump(mode='json'))[:16]}"


class _Oci(Model):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True
    )


class OciArgument(_Oci):
    """One comparison of runtime-spec 1.0. For MASKED_EQ `value` is the mask, `value_two` the
    wanted bits."""

    index: int
    value: int
    value_two: int
    op: Literal["SCMP_CMP_EQ", "SCMP_CMP_NE", "SCMP_CMP_GT", "SCMP_CMP_MASKED_EQ"]


class OciRule(_Oci):
    names: tuple[str, ...]
    action: Literal["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"]
    errno_ret: int | None = None
    args: tuple[OciArgument, ...] = ()


class OciSeccomp(_Oci):
    """`linux.seccomp` of runtime-spec 1.0; `to_json` gives its JSON value."""

    default_action: Literal["SCMP_ACT_ERRNO"]
    default_errno_ret: int
    architectures: tuple[str, ...]
    syscalls: tuple[OciRule, ...]

    def to_json(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def compile_seccomp(policy: SeccompPolicy, architecture: str) -> OciSeccomp:
    """Translate for `architecture`, the machine name of uname(2). Raises Failure(unenforceable)
    for one whose entry points and argument order were not checked."""
    native = ARCHITECTURES.get(architecture)
    if native is None:
        raise failure(
            Code.UNENFORCEABLE,
            "no seccomp list for this processor architecture",
            rule="seccomp",
            architectures=tuple(ARCHITECTURES),
        )
    rules = [_group(group) for group in policy.groups]
    default = ERRNO[policy.default.errno]
    for conditional in policy.conditional:
        rules += (_rule(conditional, args, errno) for args, errno in _cases(conditional, default))
    return OciSeccomp(
        default_action="SCMP_ACT_ERRNO",
        default_errno_ret=default,
        architectures=(native,),
        syscalls=tuple(rules),
    )


_Case = tuple[tuple[OciArgument, ...], int | None]


def _group(group: Group) -> OciRule:
    if group.answer == "allow":
        return OciRule(names=group.syscalls, action="SCMP_ACT_ALLOW")
    errno = ERRNO["EPERM" if group.answer == "refuse" else "ENOSYS"]
    return OciRule(names=group.syscalls, action="SCMP_ACT_ERRNO", errno_ret=errno)


def _rule(rule: Conditional, args: tuple[OciArgument, ...], errno: int | None) -> OciRule:
    if errno is None:
        return OciRule(names=(rule.syscall,), action="SCMP_ACT_ALLOW", args=args)
    return OciRule(names=(rule.syscall,), action="SCMP_ACT_ERRNO", errno_ret=errno, args=args)


def _cases(rule: Conditional, default: int) -> Iterator[_Case]:
    """Conditions that don't overlap, each with its errno or None for allowed."""
    errno = ERRNO[rule.errno]
    if isinstance(rule, NoBits):
        mask = sum(bit.value for bit in rule.bits)
        yield (_masked(rule.arg, mask, 0),), None
        for bit in rule.bits:
            yield (_masked(rule.arg, bit.value, bit.value),), errno
    elif isinstance(rule, Only):
        for value in rule.values:
            equal = _compare(rule.arg, "SCMP_CMP_EQ", value.value)
            if value.also is None:
                yield (equal,), None
            else:
                also = value.also
                yield (equal, _compare(also.arg, "SCMP_CMP_EQ", also.value)), None
                yield (equal, _compare(also.arg, "SCMP_CMP_NE", also.value)), errno
        if errno != default:
            listed = frozenset(value.value for value in rule.values)
            yield (_compare(rule.arg, "SCMP_CMP_GT", max(listed)),), errno
            width = max(listed).bit_length()
            for mask, bits in _free_blocks(listed, width):
                if bits < max(listed):
                    yield (_masked(rule.arg, mask | (_WIDE >> width << width), bits),), errno
    else:
        listed = frozenset(value.value for value in rule.values)
        for number in sorted(listed):
            yield (_masked(rule.arg, (1 << 32) - 1, number),), errno
        for mask, bits in _free_blocks(listed, 32):
            yield (_masked(rule.arg, mask, bits),), None


def _free_blocks(taken: frozenset[int], width: int) -> Iterator[tuple[int, int]]:
    """Aligned blocks (mask, bits) that hold exactly the numbers of `width` bits not in `taken`."""
    pending = [(0, width)]
    while pending:
        start, size = pending.pop()
        inside = frozenset(n for n in taken if n >> size == start >> size)
        if not inside:
            yield ((1 << width) - 1) >> size << size, start
        elif size:
            half = 1 << (size - 1)
            pending += [(start + half, size - 1), (start, size - 1)]


def _masked(index: int, mask: int, bits: int) -> OciArgument:
    return OciArgument(index=index, value=mask, value_two=bits, op="SCMP_CMP_MASKED_EQ")


def _compare(
    index: int, op: Literal["SCMP_CMP_EQ", "SCMP_CMP_NE", "SCMP_CMP_GT"], value: int
) -> OciArgument:
    return OciArgument(index=index, value=value, value_two=0, op=op)
