"""What is done sooner is done the same: each short way beside the reference that it stands for."""

from __future__ import annotations

import base64
import hmac
import string
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stockade.decide.attenuation import meet
from stockade.decide.blocks import block_bytes, narrow, normal, root_block
from stockade.decide.canonical import canonical, canonical_closed
from stockade.decide.plain import is_plain
from stockade.decide.tokens import KeyRing, Verifier, attenuate, mint, verify
from stockade.decide.tokentext import decode, join, split
from stockade.terms import pathname
from stockade.terms.base import MAX_INTEGER
from stockade.terms.call import Permit
from stockade.terms.fault import Failure, Fault
from stockade.terms.grant import Block, Grant, LeaseBinding, Scope
from tests.laws.test_attenuation_laws import LEASE, NOW, RING, chains, grants

CLOSED = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(max_codepoint=127)), inner, max_size=4)
    ),
)


@given(CLOSED)
@example({"b": '\x00\x1f\x7f"\\/\b\t\n\f\r\u2028\U0001f600', "a": [MAX_INTEGER, {}, []], "A": -1})
@settings(max_examples=500)
def test_the_closed_writer_is_rfc_8785(value: Any) -> None:
    assert canonical_closed(value) == canonical(value)


PATH = st.text(st.sampled_from("ab/.- ~\\x") | st.characters(max_codepoint=300), max_size=6)
PATHS = st.lists(PATH.map(lambda text: "/" + text), max_size=3).map(tuple)


@given(grants(supported=True), PATHS, PATHS, PATHS, st.booleans())
@settings(max_examples=500)
def test_a_plain_block_is_one_that_the_reference_accepts(
    grant: Grant, read: Any, write: Any, deny: Any, root: bool
) -> None:
    """Also for lists that nobody has put in order; and what the reference accepts of plain
    characters is plain, or the short way would be of no use."""
    scope = grant.scope
    for changed in (
        grant,
        grant.model_copy(update={"deny": deny}),
        grant.model_copy(
            update={"scope": Scope(read=read, write=write, execute=scope.execute, connect=())}
        ),
    ):
        block = _block(changed, root=root)
        raw = block_bytes(block)
        try:
            accepted = block_bytes(normal(block)) == raw
        except Failure:
            accepted = False
        assert accepted or not is_plain(block, raw)
        simple = raw.isascii() and b"\\" not in raw and not (block.checks or block.approve)
        assert is_plain(block, raw) == accepted or not simple


def _block(grant: Grant, *, root: bool) -> Block:
    fields: dict[str, Any] = {name: getattr(grant, name) for name in Grant.model_fields}
    own: dict[str, Any] = (
        {"v": 1, "kid": "k1", "tenant": "acme", "trajectory": "run-1"} if root else {}
    )
    lease = LeaseBinding(id="ls_00112233445566aa", generation=1)
    return Block(**fields, **own, lease=None if root else lease, not_before_s=0, not_after_s=9)


@given(st.text(st.sampled_from(string.ascii_letters + string.digits + "-_+/= é\n"), max_size=9))
def test_a_part_has_one_spelling(part: str) -> None:
    try:
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        one = part != "" and base64.urlsafe_b64encode(raw).decode().rstrip("=") == part
    except ValueError:
        one = False
    try:
        assert decode(part) == raw
        assert one
    except Failure:
        assert not one


@given(st.binary(max_size=12) | st.text(max_size=12).map(str.encode))
def test_a_name_is_shown_as_it_always_was(raw: bytes) -> None:
    """Each byte by itself: the plain ones, and what the walk makes of the others."""
    text = "".join(
        char if " " <= char != "\x7f" and char != "\\" else f"\\x{ord(char) & 0xFF:02x}"
        for char in raw.decode("utf-8", "surrogateescape")
        if not 0xDC80 <= ord(char) <= 0xDCFF
    )
    shown = pathname.to_text(raw)
    if raw.decode("utf-8", "replace").find("\ufffd") == -1:
        assert shown == text
    if raw and 0 not in raw:
        assert pathname.to_bytes(shown) == raw


def verdict(check: Any, token: str) -> Permit | Fault:
    try:
        answer: Permit = check(token)
    except Failure as error:
        return error.fault
    return answer


@given(st.data(), st.lists(chains(), min_size=1, max_size=3))
@settings(max_examples=100)
def test_what_is_remembered_never_changes_a_verdict(
    data: st.DataObject, made: list[tuple[Block, Block]]
) -> None:
    """Parts of a few tokens, some seen before, put together in every way."""
    verifier = Verifier(RING)
    parts: list[str] = []
    for root, child in made:
        token = mint(RING, "k1", root)
        low = narrow(root, depth=max(0, root.depth - 1)) if root.depth else None
        tokens = [token]
        if low is not None:
            tokens.append(attenuate(token, low.model_copy(update={"lease": LEASE})))
        for one in tokens:
            assert verdict(lambda t: verifier.verify(t, NOW), one) == verdict(
                lambda t: verify(t, RING, NOW), one
            )
            parts += one.split(".")[1:]
        parts.append(base64.urlsafe_b64encode(block_bytes(child)).decode().rstrip("="))
    for _ in range(5):
        token = ".".join(["stk1", *data.draw(st.lists(st.sampled_from(parts), max_size=4))])
        for _ in range(2):
            assert verdict(lambda t: verifier.verify(t, NOW), token) == verdict(
                lambda t: verify(t, RING, NOW), token
            )


@given(grants(supported=True), grants(supported=True))
def test_a_block_known_below_one_parent_is_not_known_below_another(
    wide: Grant, other: Grant
) -> None:
    """The same child's bytes below a parent that it narrows, then below one that it doesn't."""
    ring = KeyRing({"k1": bytes(32)})
    verifier = Verifier(ring)
    roots = [root_block(g, "acme", "run-1", "k1", 0, NOW + 9) for g in (wide, meet(wide, other))]
    if wide.depth == 0:
        return
    child = narrow(roots[0])
    tokens = [mint(ring, "k1", root) for root in roots]
    verifier.verify(attenuate(tokens[0], child), NOW)
    text, raw = split(tokens[1]), block_bytes(child)
    forced = join((*text.blocks, raw), hmac.digest(text.signature, raw, "sha256"))
    assert verdict(lambda t: verifier.verify(t, NOW), forced) == verdict(
        lambda t: verify(t, ring, NOW), forced
    )
