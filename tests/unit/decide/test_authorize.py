from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stockade.decide.authorize import allowed_path, authorize, failed_on_path, path_scope
from stockade.decide.blocks import lease_block, narrow
from stockade.decide.tokens import KeyRing, attenuate, mint, verify
from stockade.terms.call import Permit, Right
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.grant import (
    Block,
    Check,
    CheckPattern,
    CheckPrefix,
    ConnectHost,
    Grant,
    LeaseBinding,
)
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import PathScope
from tests.grants import lease_of

LEASE_ID = "ls_00112233445566aa"


@pytest.fixture
def bound(root: Block) -> Block:
    return lease_block(root, LEASE_ID, 2, root.not_after_s)


@pytest.fixture
def token(root: Block, bound: Block, ring: KeyRing) -> str:
    return attenuate(mint(ring, "k1", root), bound)


@pytest.fixture
def permit(token: str, ring: KeyRing, now: int) -> Permit:
    return verify(token, ring, now)


@pytest.fixture
def lease(token: str, permit: Permit, now: int) -> LeaseRecord:
    return lease_of(
        permit,
        generation=2,
        uid_base=100_000,
        token=token,
        created_at_s=now,
        expires_at_s=now + 60,
        not_after_s=now + 600,
    )


def refusal(
    permit: Permit, lease: LeaseRecord | None, *rights: Right, tool: str = "file_view"
) -> Fault | None:
    try:
        authorize(permit, tool, rights, {}, lease)
    except Failure as error:
        return error.fault
    return None


def scoped(permit: Permit, **update: Any) -> Permit:
    scope = permit.grant.scope.model_copy(update=update)
    return replace(permit, grant=permit.grant.model_copy(update={"scope": scope}))


def test_a_call_within_the_capability_passes(permit: Permit, lease: LeaseRecord) -> None:
    rights = (
        Right("read", "/workspace/a"),
        Right("write", "/tmp"),
        Right("execute", "/usr"),
    )
    assert refusal(permit, lease, *rights) is None
    assert refusal(permit, lease) is None


def test_an_ungranted_tool_is_refused(permit: Permit, lease: LeaseRecord) -> None:
    fault = refusal(permit, lease, tool="grep_search")
    assert fault is not None
    assert (fault.code, fault.rule) == (Code.TOOL_NOT_GRANTED, "tools")


@pytest.mark.parametrize(
    ("right", "rule"),
    [
        (Right("read", "/etc/passwd"), "scope.read"),
        (Right("read", "/workspace-evil/x"), "scope.read"),
        (Right("read", "/"), "scope.read"),
        (Right("read", ""), "scope.read"),
        (Right("read", "/workspace/\x00"), "scope.read"),
        (Right("write", "/workspace/.git/hooks"), "deny"),
        (Right("write", "/workspace/.git//hooks/./pre-commit"), "deny"),
        (Right("write", ".git/hooks/pre-commit"), "deny"),
        (Right("write", r"/workspace/\x2egit/hooks/x"), "deny"),
        (Right("connect", "example.org:443"), "scope.connect"),
        (Right("connect", "*"), "scope.connect"),
        (Right("delete", "/workspace/a"), "scope"),
        (Right("Read", "/workspace/a"), "scope"),
        (Right("", "/workspace/a"), "scope"),
    ],
)
def test_an_ungranted_right_is_refused_by_component(
    permit: Permit, lease: LeaseRecord, right: Right, rule: str
) -> None:
    fault = refusal(permit, lease, right)
    assert fault is not None
    assert (fault.code, fault.rule) == (Code.RIGHT_NOT_GRANTED, rule)


def test_b48_refusals_of_paths_carry_one_code(permit: Permit, lease: LeaseRecord) -> None:
    for text in ("/workspace-evil/x", "/etc", "", "\x00", "a" * 5000):
        fault = refusal(permit, lease, Right("read", text))
        assert fault is not None
        assert fault.code is Code.RIGHT_NOT_GRANTED
    for text in ("/workspace/./x", "/workspace/x/", "~", "/workspace"):
        assert refusal(permit, lease, Right("read", text)) is None


def test_b48_a_path_with_dots_is_decided_where_it_leads(permit: Permit, lease: LeaseRecord) -> None:
    # What `..` means depends on links, so this stage only asks for the right itself ...
    dotted = Right("read", "/workspace/../workspace-evil/x")
    assert refusal(permit, lease, dotted) is None
    assert refusal(permit, lease, Right("write", "/workspace/.git/hooks/../x")) is None
    none = refusal(scoped(permit, read=()), lease, dotted)
    assert none is not None
    assert none.code is Code.RIGHT_NOT_GRANTED
    # ... and the resolved path decides.
    scope = path_scope(permit, "file_view")
    assert not allowed_path(scope, "/workspace-evil/x", "read")
    assert not allowed_path(scope, "/workspace/../workspace-evil/x", "read")


def test_every_right_is_checked_not_only_the_first(permit: Permit, lease: LeaseRecord) -> None:
    rights = (Right("read", "/workspace/a"), Right("write", "/etc"))
    assert refusal(permit, lease, *rights) is not None


def test_execute_follows_its_own_prefixes(permit: Permit, lease: LeaseRecord) -> None:
    narrowed = scoped(permit, execute=("/workspace/bin",))
    assert refusal(narrowed, lease, Right("execute", "/workspace/bin/x")) is None
    assert refusal(narrowed, lease, Right("execute", "/usr")) is not None
    assert refusal(scoped(permit, execute=()), lease, Right("execute", "/usr")) is not None


@pytest.mark.parametrize("name", ["disk_bytes", "inodes"])
def test_less_of_the_disk_than_it_was_made_with_writes_nothing(
    permit: Permit, lease: LeaseRecord, name: str
) -> None:
    limits = permit.grant.per_lease
    less = limits.model_copy(update={name: getattr(limits, name) - 1})
    narrow = replace(permit, grant=permit.grant.model_copy(update={"per_lease": less}))
    read, write, run = (
        Right("read", "/workspace/a"),
        Right("write", "/workspace/a"),
        Right("execute", "/usr/bin"),
    )
    for rights in ((read, write), (run,)):
        assert refusal(permit, lease, *rights) is None
        fault = refusal(narrow, lease, *rights)
        assert fault is not None
        assert (fault.code, fault.rule) == (Code.UNENFORCEABLE, f"per_lease.{name}")
    assert refusal(narrow, lease, read) is None
    # A lease that is made of the narrower capability has a disk of that size.
    assert refusal(narrow, replace(lease, grant=narrow.grant), read, write) is None


def test_connect_follows_the_destinations(permit: Permit, lease: LeaseRecord) -> None:
    item = ConnectHost(kind="host", host="*.ok.test", ports=(443,), tls=True)
    granted = scoped(permit, connect=(item,))
    assert refusal(granted, lease, Right("connect", "x.ok.test:443")) is None
    assert refusal(granted, lease, Right("connect", "X.OK.test.:443")) is None
    for text in ("ok.test:443", "xok.test:443", "x.ok.test:80", "x.ok.test", "x.ok.test:443\x00"):
        assert refusal(granted, lease, Right("connect", text)) is not None


def test_not_there_and_not_yours_are_one_answer(permit: Permit, lease: LeaseRecord) -> None:
    unbound = replace(permit, lease_id=None, generation=None)
    answers = [
        refusal(permit, None),
        refusal(unbound, None),
        refusal(unbound, lease),
        refusal(permit, replace(lease, id="ls_ffffffffffffffff")),
        refusal(permit, replace(lease, tenant="other")),
        refusal(permit, replace(lease, trajectory="run-2")),
        refusal(permit, replace(lease, trajectory="run-10")),
        refusal(permit, replace(lease, chain=("0" * 32, *permit.chain[1:]))),
        refusal(permit, replace(lease, chain=())),
    ]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] is not None
    assert (answers[0].code, answers[0].rule) == (Code.LEASE_NOT_GRANTED, "lease")


def test_a_late_owner_is_refused_as_late(permit: Permit, lease: LeaseRecord) -> None:
    taken_over = replace(lease, generation=3, chain=("f" * 32, "e" * 32))
    fault = refusal(permit, taken_over)
    assert fault is not None
    assert fault.code is Code.STALE_GENERATION


def test_a_holder_of_a_narrower_chain_acts_on_the_lease(
    token: str, bound: Block, lease: LeaseRecord, ring: KeyRing, now: int
) -> None:
    narrower = verify(attenuate(token, narrow(bound, tools=("file_view",))), ring, now)
    assert refusal(narrower, lease, Right("read", "/workspace/a")) is None
    assert refusal(narrower, lease, tool="file_edit") is not None


def test_a_holder_cannot_bind_itself_to_a_lease(
    root: Block, lease: LeaseRecord, ring: KeyRing, now: int
) -> None:
    side = narrow(root, tools=("file_view",))
    binding = LeaseBinding(id=LEASE_ID, generation=2)
    forged = attenuate(attenuate(mint(ring, "k1", root), side), narrow(side, lease=binding))
    fault = refusal(verify(forged, ring, now), lease)
    assert fault is not None
    assert fault.code is Code.LEASE_NOT_GRANTED


def test_a_parent_trajectory_reaches_the_leases_of_its_children(
    permit: Permit, lease: LeaseRecord
) -> None:
    assert refusal(permit, replace(lease, trajectory="run-1/sub-2")) is None
    child = replace(permit, trajectory="run-1/sub-2")
    assert refusal(child, lease) is not None


def test_allowed_path_takes_resolved_paths_only(grant: Grant) -> None:
    scope = PathScope(grant.scope.read, grant.scope.write, grant.deny)
    for path in ("/workspace", "/workspace/a", "/tmp/x", r"/workspace/\x0a\xff"):
        assert allowed_path(scope, path, "read")
        assert allowed_path(scope, path, "write")
    for path in (
        "",
        "a",
        "/etc",
        "/workspace/",
        "/workspace//a",
        "/workspace/./a",
        "/workspace/..",
        "/workspace/a\n",
        r"/workspace/\x61",
        r"/workspace/.git/\x68ooks",  # another spelling of what is denied
    ):
        assert not allowed_path(scope, path, "read")
        assert not allowed_path(scope, path, "write")


def test_deny_is_for_writing_and_for_everything_below(grant: Grant) -> None:
    scope = PathScope(grant.scope.read, grant.scope.write, grant.deny)
    for path in ("/workspace/.git/hooks", "/workspace/.git/hooks/not/there/yet"):
        assert allowed_path(scope, path, "read")
        assert not allowed_path(scope, path, "write")
    for path in ("/workspace/.git", "/workspace/.git/hooks2", "/workspace/sub/.git/hooks"):
        assert allowed_path(scope, path, "write")


def test_reading_does_not_allow_writing() -> None:
    scope = PathScope(read=("/workspace",), write=("/workspace/out",), deny=())
    assert not allowed_path(scope, "/workspace/a", "write")
    assert allowed_path(scope, "/workspace/out/a", "write")
    assert not allowed_path(PathScope((), (), ()), "/", "read")


def checked(permit: Permit, *checks: Check) -> Permit:
    return replace(permit, grant=permit.grant.model_copy(update={"checks": checks}))


def prefix(*paths: str, tool: str = "file_view", argument: str = "path") -> CheckPrefix:
    return CheckPrefix(kind="prefix", tool=tool, argument=argument, paths=paths)


def test_a_failed_check_refuses_by_argument_and_kind(permit: Permit, lease: LeaseRecord) -> None:
    holder = checked(permit, prefix("/workspace/src"), prefix("/never", tool="file_edit"))
    authorize(holder, "file_view", [], {"path": "src/a"}, lease)
    with pytest.raises(Failure) as caught:
        authorize(holder, "file_view", [], {"path": "a"}, lease)
    fault = caught.value.fault
    assert (fault.code, fault.rule) == (Code.CHECK_FAILED, "checks")
    assert fault.details == {"argument": "path", "kind": "prefix"}
    assert "file_view.path" in fault.message
    assert refusal(holder, lease) is not None, "the argument is absent"
    assert refusal(holder, lease, tool="bash_execute") is None


def test_the_lease_the_tool_and_the_rights_are_asked_before_the_checks(
    permit: Permit, lease: LeaseRecord
) -> None:
    never = checked(permit, prefix("/never"), prefix("/never", tool="grep_search"))
    outside = Right("read", "/etc")
    assert code(refusal(never, None, outside)) is Code.LEASE_NOT_GRANTED
    assert code(refusal(never, lease, outside, tool="grep_search")) is Code.TOOL_NOT_GRANTED
    assert code(refusal(never, lease, outside)) is Code.RIGHT_NOT_GRANTED
    assert code(refusal(never, lease)) is Code.CHECK_FAILED


def code(fault: Fault | None) -> Code | None:
    return None if fault is None else fault.code


def test_the_resolved_path_must_satisfy_the_checks_on_the_path(permit: Permit) -> None:
    length = CheckPattern(kind="pattern", tool="file_view", argument="path", pattern=".{1,20}")
    other = prefix("/never", argument="old_str")
    holder = checked(permit, prefix("/workspace/src"), length, other)
    scope = path_scope(holder, "file_view")
    assert failed_on_path(scope, "/workspace/src/a") is None
    for path in ("/workspace/srcs", "/workspace", "/tmp/a", "/workspace/src/" + "a" * 9):
        assert code(fault_of(failed_on_path(scope, path))) is Code.CHECK_FAILED, path
    assert failed_on_path(path_scope(holder, "file_edit"), "/tmp/a") is None


def fault_of(error: Failure | None) -> Fault | None:
    return None if error is None else error.fault
