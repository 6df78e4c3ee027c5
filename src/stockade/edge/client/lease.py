"""A lease as its holder works with it: tools, programs, files, and what became of the files."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from pydantic import JsonValue

from stockade.decide.idempotency import Place, canonical_arguments, idempotency_key
from stockade.edge.bodies import check
from stockade.edge.client.connection import Message
from stockade.edge.client.given import given_arguments, given_argv
from stockade.edge.client.link import GRACE_S, Link, asked, reply_lost
from stockade.edge.client.local_files import fetch_file, send_file
from stockade.edge.client.narrowing import attenuate
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.transport import Sink
from stockade.edge.exchange import FrameType
from stockade.edge.secret_wire import SecretAdd, SecretList, SecretRemove, SecretView
from stockade.edge.wire import (
    ArtifactRange,
    CallRequest,
    CancelReply,
    CancelRequest,
    Empty,
    LeaseCreate,
    LeaseExport,
    LeaseRenew,
    LeaseReply,
    LeaseView,
    RunRequest,
)
from stockade.terms.base import Model
from stockade.terms.fault import Failure
from stockade.terms.grant import ApprovalRule, Check, Profile
from stockade.terms.ids import CallRef
from stockade.terms.ports import MAX_ARTIFACT_READ
from stockade.terms.result import error_of
from stockade.tools.catalog import TOOLS
from stockade.tools.execution import MAX_TIMEOUT_MS

# Tools of effect level A0: repeating them is free, so a lost reply is asked for again.
READS: Final = frozenset(tool.name for tool in TOOLS.values() if tool.effect == "A0")
# Copying and removing a large tree.
_SLOW_S: Final = 600.0


def create(link: Link, request: LeaseCreate) -> tuple[Result, Lease | None]:
    """The result, and the lease if it was made. Never raises for what happens to it."""
    try:
        reply = link.ask(link.message("POST", "leases", request, _SLOW_S), LeaseReply)
    except StockadeError as error:
        return link.refused(error), None
    result = Result.model_validate(reply.result.model_dump(by_alias=True))
    granted = reply.lease
    if granted is None:
        return result, None
    data = result.data
    owner = (data.tenant, data.trajectory) if data is not None and data.kind == "lease" else None
    lease = Lease(link.with_token(granted.token), granted.lease_id, granted.token, owner)
    lease.generation, lease.expires_at = granted.generation, granted.expires_at
    return result, lease


def made(result: Result, lease: Lease | None) -> Lease:
    """What `create` gives, for who wants the lease. Raises ToolError, StockadeError."""
    result.check()
    if lease is None:
        raise StockadeError(reply_lost("the daemon made a lease and did not name it"))
    return lease


class Lease:
    """`with` releases it. Calls may be made from several threads at once. `generation` and
    `expires_at` (RFC 3339 UTC) are known of a lease that was created here.

    A call with a `call_id` runs once, however often it is sent; so one whose reply is lost is sent
    again. `owner` is (tenant, trajectory) where they are known: then such a call carries its
    idempotency key, and the daemon checks it."""

    def __init__(
        self, link: Link, lease: str, token: str | None, owner: tuple[str, str] | None = None
    ) -> None:
        self._link = link
        self._owner = owner
        self.id = lease
        self.token = token
        self.generation: int | None = None
        self.expires_at: str | None = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def narrowed(
        self,
        *,
        read: Sequence[str] | None = None,
        write: Sequence[str] | None = None,
        execute: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        tools: Sequence[str] | None = None,
        profile: Profile | str | None = None,
        limits: Mapping[str, int] | None = None,
        checks: Sequence[Check | str] = (),
        approve: Sequence[ApprovalRule | str] = (),
        ttl_s: int | None = None,
    ) -> Lease:
        """The same lease under a narrower capability, made here without daemon or key; see
        `stockade.attenuate`. Raises Failure(wider_block) naming the component, ValueError for a
        lease without a token."""
        if self.token is None:
            raise ValueError("a lease that was attached without its token can't be narrowed")
        token = attenuate(
            self.token,
            read=read,
            write=write,
            execute=execute,
            deny=deny,
            tools=tools,
            profile=profile,
            limits=limits,
            checks=checks,
            approve=approve,
            ttl_s=ttl_s,
        )
        return Lease(self._link.with_token(token), self.id, token, self._owner)

    def child(
        self,
        name: str,
        *,
        share: bool = False,
        fork: bool = False,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        ttl_s: int | None = None,
    ) -> Lease:
        """A lease of the trajectory `name` below this one's: in the same workspace (`share`), or
        with one of its own that begins as a copy of what is there now (`fork`). Its authority is
        this object's token, so narrow first what the child is not to have. Raises ToolError,
        StockadeError, ValueError unless exactly one of the two is asked for."""
        if share == fork:
            raise ValueError("a child lease either shares or forks the workspace")
        above = self.show()
        request = asked(
            LeaseCreate,
            tenant=above.tenant,
            trajectory=f"{above.trajectory}/{name}",
            image=image,
            env=dict(env or {}),
            ttl_s=ttl_s,
            share=above.lease_id if share else None,
            fork=above.lease_id if fork else None,
        )
        return made(*create(self._link, request))

    # The four tools. Arguments that are left out have the tool's own defaults.

    def bash_execute(self, command: str, timeout_ms: int | None = None) -> Result:
        return self.call("bash_execute", {"command": command, "timeout_ms": timeout_ms})

    def file_view(self, path: str, offset: int | None = None, limit: int | None = None) -> Result:
        return self.call("file_view", {"path": path, "offset": offset, "limit": limit})

    def file_edit(
        self,
        path: str,
        old_str: str,
        new_str: str,
        allow_multiple: bool | None = None,
        expected_version: str | None = None,
    ) -> Result:
        return self.call(
            "file_edit",
            {
                "path": path,
                "old_str": old_str,
                "new_str": new_str,
                "allow_multiple": allow_multiple,
                "expected_version": expected_version,
            },
        )

    def grep_search(
        self, pattern: str, path: str = "/workspace", glob: str | None = None
    ) -> Result:
        return self.call("grep_search", {"pattern": pattern, "path": path, "glob": glob})

    bash = bash_execute
    view = file_view
    edit = file_edit
    grep = grep_search

    def call(
        self,
        tool: str,
        arguments: Mapping[str, JsonValue],
        *,
        turn: int | None = None,
        call_id: str | None = None,
    ) -> Result:
        """Any tool by its name. Arguments that are None are left out. With a `call_id` it runs
        once, and a repetition gets its result. Ids that no call can have are `invalid`."""
        try:
            given = given_arguments(arguments)
            fields = {"tool": tool, "arguments": given, "lease": self.id, "turn": turn}
            key = self._key(turn, call_id, tool, given)
            request = check(CallRequest, {**fields, "call_id": call_id, "idempotency_key": key})
        except Failure as failure:
            return self._unsent(failure)
        limit = given.get("timeout_ms")
        limit_ms = MAX_TIMEOUT_MS  # for calls that do not say theirs
        if isinstance(limit, int) and 0 < limit < limit_ms:
            limit_ms = limit
        # How long a program may run says its capability.
        silence_s = None if tool == "run" else limit_ms / 1000 + GRACE_S
        message = self._link.message("POST", "calls", request, silence_s)
        ref = partial(self._ref, turn, call_id, tool)
        return self._link.result(message, ref, again=tool in READS or call_id is not None)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_ms: int | None = None,
        turn: int | None = None,
        call_id: str | None = None,
        stdin: int | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> Result:
        """A program by its argument vector. `stdin` is a descriptor to read (else empty);
        `stdout` and `stderr` get every byte while it runs; nothing when the result is that of an
        earlier call with this `call_id` (`replayed`)."""
        try:
            arguments: dict[str, JsonValue] = {"argv": [*given_argv(argv)]}
            if timeout_ms is not None:
                arguments["timeout_ms"] = timeout_ms
            fields = {**arguments, "lease": self.id, "turn": turn, "call_id": call_id}
            key = self._key(turn, call_id, "run", arguments)
            request = check(RunRequest, {**fields, "idempotency_key": key})
        except Failure as failure:
            return self._unsent(failure)
        message = self._link.message("POST", "run", request, None)
        outputs = {
            kind: sink
            for kind, sink in ((FrameType.STDOUT, stdout), (FrameType.STDERR, stderr))
            if sink is not None
        }
        ref = partial(self._ref, turn, call_id, "run")
        return self._link.frames(message, ref, outputs, stdin)

    def cancel(self, call_id: str, turn: int | None = None) -> int:
        """End the running call with this id; gives how many there were. Raises StockadeError."""
        request = asked(CancelRequest, lease=self.id, call_id=call_id, turn=turn)
        return self._link.ask(
            self._link.message("POST", "calls/cancel", request), CancelReply
        ).cancelled

    # The lease itself.

    def show(self) -> LeaseView:
        """Raises StockadeError."""
        return self._link.ask(self._message("GET", ""), LeaseView)

    def renew(self, ttl_s: int) -> Result:
        """Counted from now; never shortens."""
        result = self._operate("/renew", LeaseRenew, ttl_s=ttl_s)
        if result.data is not None and result.data.kind == "lease":
            self.expires_at = result.data.expires_at
        return result

    def reset(self) -> Result:
        """Drop everything that was written since the lease was made."""
        return self._operate("/reset", Empty)

    def release(self) -> Result:
        return self._operate("/release", Empty)

    # Its secrets.

    def add_secret(self, name: str, value: str | bytes, *, redact_only: bool = False) -> SecretView:
        """Give the lease's later commands the variable `name`, unless `redact_only`, and hide the
        value from every result. Replaces the one of that name. Raises StockadeError."""
        raw = value.encode() if isinstance(value, str) else value
        value = base64.b64encode(raw).decode()
        request = asked(SecretAdd, name=name, value_base64=value, redact_only=redact_only)
        return self._link.ask(self._message("POST", "/secrets", request), SecretView)

    def secrets(self) -> list[SecretView]:
        """Their names; never a value. Raises StockadeError."""
        return self._link.ask(self._message("GET", "/secrets"), SecretList).secrets

    def remove_secret(self, name: str) -> None:
        """Later commands don't get it any more, and results show it. Raises StockadeError."""
        request = asked(SecretRemove, name=name)
        self._link.ask(self._message("POST", "/secrets/remove", request), SecretList)

    # Its files.

    def changes(self) -> Result:
        """Counts of what differs from the source, in `data`."""
        return self._operate("/export", LeaseExport)

    def export_to(self, directory: str | os.PathLike[str]) -> Result:
        """Apply the changes to a directory of the daemon's host."""
        return self._operate("/export", LeaseExport, to=str(Path(directory).absolute()))

    def export_patch(self) -> bytes:
        """The changes as a git-applicable patch. Raises StockadeError."""
        parts: list[bytes] = []
        self.pour_patch(parts.append)
        return b"".join(parts)

    def pour_patch(self, sink: Sink) -> None:
        """The patch piece by piece. Raises StockadeError."""
        self._link.pour(self._message("GET", "/patch"), sink)

    def upload(self, local: str | os.PathLike[str], path: str) -> str:
        """Write a whole file of this machine into the workspace; gives its version. Raises
        StockadeError, and OSError for the local file."""
        return send_file(self._link, self._message("PUT", self._file(path)), local)

    def download(self, path: str, local: str | os.PathLike[str]) -> None:
        """Write a whole file of the workspace to `local`, which appears only when it is whole.
        Raises StockadeError, and OSError for the local file."""
        fetch_file(self._link, self._message("GET", self._file(path)), local)

    def artifact(self, artifact_id: str, offset: int = 0, length: int | None = None) -> bytes:
        """Raw bytes of an artifact from stream offset `offset`, at most 4 MiB at once. A short
        answer is not the end, an empty one is. Raises StockadeError: not_found inside the part
        that was not kept, with its borders in `details`."""
        if length is None:
            length = MAX_ARTIFACT_READ
        wanted = asked(ArtifactRange, lease=self.id, id=artifact_id, offset=offset, length=length)
        query = urlencode({"offset": wanted.offset, "length": wanted.length})
        target = f"artifacts/{quote(self.id, safe='')}/{wanted.id}?{query}"
        return self._link.fetch(self._link.message("GET", target))

    def _key(
        self, turn: int | None, call_id: str | None, tool: str, arguments: Mapping[str, JsonValue]
    ) -> str | None:
        """None where it is not known, or the arguments are none that the daemon will take."""
        if self._owner is None or call_id is None:
            return None
        try:
            text = canonical_arguments(arguments)
        except Failure:
            return None
        return idempotency_key(Place(*self._owner, turn, call_id), tool, text)

    def _message(self, method: str, tail: str, body: Model | None = None) -> Message:
        return self._link.message(method, f"leases/{quote(self.id, safe='')}{tail}", body, _SLOW_S)

    def _operate(self, tail: str, model: type[Model], **fields: JsonValue) -> Result:
        try:
            body = check(model, fields)
        except Failure as failure:
            return self._unsent(failure)
        return self._link.result(self._message("POST", tail, body))

    def _unsent(self, failure: Failure) -> Result:
        """As the daemon answers it: no id is named, for it may be what is wrong."""
        return self._link.refused(StockadeError(error_of(failure.fault)))

    def _file(self, path: str) -> str:
        return f"/files/{quote(path, safe='')}"

    def _ref(self, turn: int | None, call_id: str | None, tool: str) -> CallRef:
        return CallRef(lease_id=self.id, trajectory_id=None, turn=turn, call_id=call_id, tool=tool)
