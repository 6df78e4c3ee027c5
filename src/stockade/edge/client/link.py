"""Requests over a transport, and what its failures mean.

Nothing was sent: `unavailable: daemon_unreachable`, the call may be repeated. It was sent and the
reply is lost: it may have run, so `unknown: connection_lost`. What can't add an effect by that is
sent again then, once: reads, and calls with an id of their own, whose repetition is given the result
of the first.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from stockade import __version__
from stockade.edge.bodies import check
from stockade.edge.client.connection import Message, NotSent, ReplyLost
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.transport import Reply, Sink, Transport
from stockade.edge.exchange import TOKEN_HEADER, FrameReader, FrameType
from stockade.edge.refusal import NO_CALL, refusal
from stockade.edge.wire import ErrorReply
from stockade.terms.base import Model
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.ids import CallRef
from stockade.terms.result import Error, error_of

M = TypeVar("M", bound=Model)

# Beyond a call's own limit: waiting for a thread, ending its tree, shaping and sending the result.
GRACE_S: Final = 60.0


def _no_call() -> CallRef:
    return NO_CALL


class Link:
    """One transport, with an optional token that is sent along, and `origin`: headers in which the
    client names itself, printable ASCII. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        token: str | None = None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        self.transport = transport
        # Anything else could end the header's line and begin another. No token has a backslash, so
        # one that is written with them is still none.
        plain = token is None or (token.isascii() and token.isprintable())
        self._token = token if plain else ascii(token)
        self._origin = dict(origin or {})

    def with_token(self, token: str | None) -> Link:
        return Link(self.transport, token, self._origin)

    def message(
        self, method: str, target: str, body: Model | None = None, silence_s: float | None = GRACE_S
    ) -> Message:
        content = b"" if body is None else _json(body)
        headers = dict(self._origin)
        if self._token is not None:
            headers[TOKEN_HEADER] = self._token
        return Message(method, "/v1/" + target, headers, content, silence_s=silence_s)

    def ask(self, message: Message, model: type[M]) -> M:
        """A plain reply. Raises StockadeError."""
        return _parse(model, self.fetch(message))

    def fetch(self, message: Message) -> bytes:
        """The bytes of a plain reply. Raises StockadeError."""
        try:
            send = self._twice if message.method == "GET" else self.transport.send
            return _accept(send(message)).body
        except (NotSent, ReplyLost) as error:
            raise StockadeError(error_of(_fault(error))) from error

    def pour(self, message: Message, sink: Sink) -> None:
        """A plain reply's bytes as they come. Raises StockadeError."""
        try:
            _accept(self.transport.stream(message, sink))
        except (NotSent, ReplyLost) as error:
            raise StockadeError(error_of(_fault(error))) from error

    def result(
        self, message: Message, call: Callable[[], CallRef] = _no_call, *, again: bool = False
    ) -> Result:
        """The result of a call. Never raises for what happens to the call. `call` says which one it
        was, where the result has to be made here."""
        try:
            reply = self._twice(message) if again else self.transport.send(message)
            return _parse(Result, _accept(reply).body)
        except (NotSent, ReplyLost) as error:
            return self.refused(StockadeError(error_of(_fault(error))), call())
        except StockadeError as error:
            return self.refused(error, call())

    def frames(
        self,
        message: Message,
        call: Callable[[], CallRef],
        outputs: Mapping[FrameType, Sink],
        stdin: int | None,
    ) -> Result:
        """A program's output to `outputs` as it comes, then its result."""
        reader = FrameReader()
        last: list[bytes] = []

        def sink(data: bytes) -> None:
            for kind, payload in reader.feed(data):
                if kind is FrameType.RESULT:
                    last.append(payload)
                elif kind in outputs:
                    outputs[kind](payload)

        try:
            _accept(self.transport.stream(message, sink, stdin))
            if not last:
                raise ReplyLost("the stream ended without a result")
            return _parse(Result, last[-1])
        except (NotSent, ReplyLost) as error:
            return self.refused(StockadeError(error_of(_fault(error))), call())
        except StockadeError as error:
            return self.refused(error, call())

    def _twice(self, message: Message) -> Reply:
        try:
            return self.transport.send(message)
        except ReplyLost as lost:
            try:
                return self.transport.send(message)
            except NotSent:
                raise lost from None  # of the first one nobody knows

    def refused(self, error: StockadeError, call: CallRef = NO_CALL) -> Result:
        """The error in the shape of a result."""
        fault = Fault(error.error.code, error.error.message)
        made = refusal(fault, f"rq_{secrets.token_hex(8)}", __version__, call)
        value = made.model_copy(update={"error": error.error}).model_dump(by_alias=True)
        return Result.model_validate(value)


def _json(body: Model) -> bytes:
    try:
        return body.model_dump_json(exclude_none=True, by_alias=True).encode()
    except PydanticSerializationError:
        # Half of a surrogate pair, as json.loads gives it of what a model wrote. The daemon says
        # what is wrong with it, in a result.
        return json.dumps(body.model_dump(exclude_none=True, by_alias=True)).encode()


def asked(model: type[M], **fields: object) -> M:
    """The request that says this. Raises StockadeError for what no request can hold, in the
    daemon's words."""
    try:
        return check(model, fields)
    except Failure as failure:
        raise StockadeError(error_of(failure.fault)) from None


def reply_lost(message: str) -> Error:
    """For a reply that came and says nothing."""
    return error_of(Fault(Code.CONNECTION_LOST, message))


def _fault(error: NotSent | ReplyLost) -> Fault:
    if isinstance(error, NotSent):
        return Fault(Code.DAEMON_UNREACHABLE, f"no daemon answers: {error}")
    return Fault(Code.CONNECTION_LOST, f"the connection to the daemon was lost: {error}")


def _accept(reply: Reply) -> Reply:
    if reply.status < 300:
        return reply
    raise StockadeError(_parse(ErrorReply, reply.body).error)


def _parse(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise StockadeError(reply_lost(f"the reply is not a {model.__name__}")) from error
