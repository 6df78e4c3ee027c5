"""Records, links, checkpoints and lines: what they are made of, and what a verifier refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial

import pytest
import rfc8785

from stockade.decide import signatures
from stockade.decide.chain import (
    CLOSED,
    GENESIS,
    body_of,
    checkpoint_body,
    genuine,
    hash_of,
    line_of,
    make_checkpoint,
    refer,
    result_digest,
)
from stockade.decide.chain_verifier import Flaw, Verifier, closes
from stockade.edge.refusal import refusal
from stockade.terms.audit import AuditEvent, AuditKind, AuditLine, AuditUsage, Head, Link
from stockade.terms.fault import Code, Fault
from stockade.terms.result import AuditRef, ToolResult

SEED = bytes(range(32))
KEY = signatures.public_key(SEED)
OTHER = bytes(range(1, 33))


def event(number: int = 0, **values: object) -> AuditEvent:
    made = {"kind": AuditKind.CALL_OUTCOME, "at_ms": 1_700_000_000_000 + number, **values}
    return AuditEvent(**made)  # type: ignore[arg-type]


def chain_of(
    bodies: int = 0, *, checkpoints: Sequence[int] = (), seed: bytes = SEED, change: int = 0
) -> list[Link]:
    """Records 1 to `bodies`; those of `checkpoints` are signatures. `change` is another record's
    content than usual, with everything after it made anew."""
    links: list[Link] = []
    prev = GENESIS
    for seq in range(1, bodies + 1):
        if seq in checkpoints:
            made = make_checkpoint(
                seq - 1,
                prev,
                seq,
                signatures.public_key(seed),
                lambda data: signatures.sign(seed, data),
            )
            body = checkpoint_body(made)
        else:
            body = body_of(event(seq, tenant="evil" if seq == change else "acme"), seq)
        link = Link(seq, prev, hash_of(prev, body), body)
        links.append(link)
        prev = link.hash
    return links


def verified(links: Sequence[Link], **options: object) -> Flaw | None:
    verifier = Verifier(**options)  # type: ignore[arg-type]
    for link in links:
        flaw = verifier.add(link)
        if flaw is not None:
            return flaw
    return verifier.end()


def test_the_bytes_are_rfc_8785_without_what_does_not_apply() -> None:
    body = body_of(
        event(
            tenant="acme",
            call_id="c-1",
            chain=("aa", "bb"),
            usage=AuditUsage(wall_ms=3, cpu_ms=2),
            arguments='{"command":"é\\u0001"}',
            detail={"n": 1, "yes": True, "names": ["b", "a"]},
        ),
        7,
    )
    value = json.loads(body)
    assert rfc8785.dumps(value) == body.encode()
    assert value["seq"] == 7
    assert value["usage"] == {"wall_ms": 3, "cpu_ms": 2}
    assert value["chain"] == ["aa", "bb"]
    assert "trajectory" not in value
    assert AuditLine.model_validate_json(line_of(Link(7, GENESIS, GENESIS, body))).record.seq == 7


def test_a_hash_is_over_the_hash_before_and_the_bytes() -> None:
    first, second = chain_of(2)
    assert first.hash == hashlib.sha256(bytes(32) + first.body.encode()).digest()
    assert second.hash == hashlib.sha256(first.hash + second.body.encode()).digest()


def is_read(line: bytes) -> bool:
    """Whether it is a record, and one that may be the first of a chain."""
    flaw = Verifier().add_line(line)
    assert flaw in (None, Flaw(1, "is no record of this format"))
    return flaw is None


def test_a_line_is_canonical_and_is_read_back() -> None:
    line = line_of(chain_of(1)[0])
    assert rfc8785.dumps(json.loads(line)) == line
    assert is_read(line)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"x" * 400, line_of(chain_of(1)[0])[:-1], line_of(chain_of(1)[0]) + b" "],
)
def test_what_is_no_line_is_not_read(line: bytes) -> None:
    assert not is_read(line)


def test_a_line_with_other_spelling_is_not_read() -> None:
    line = line_of(chain_of(1)[0])
    upper = line[:9] + line[9:73].upper() + line[73:]
    assert upper != line
    assert not is_read(upper)
    assert not is_read(line.replace(b'"seq":1', b'"seq":1.0'))
    assert not is_read(line.replace(b'"seq":1', b'"seq":"1"'))


def test_a_whole_chain_is_fine_and_says_who_signed() -> None:
    verifier = Verifier(keys=frozenset({KEY.hex()}), whole=True)
    for link in chain_of(9, checkpoints=(4, 8)):
        assert verifier.add(link) is None
    assert verifier.end() is None
    assert (verifier.first, verifier.last, verifier.sealed, verifier.count) == (1, 9, 7, 9)
    assert verifier.signers == {KEY.hex()}


def test_an_empty_chain_is_fine_unless_something_was_known_of_it() -> None:
    assert verified([]) is None
    assert verified([], known={3: "0" * 64}) == Flaw(
        1, "is missing: a checkpoint signs records up to 3"
    )


def test_every_byte_of_a_record_counts() -> None:
    """Also where what comes after it follows the hash that it says it has."""
    lines = [line_of(link) for link in chain_of(4, checkpoints=(4,))]
    for at in range(len(lines[1])):
        changed = bytearray(lines[1])
        changed[at] ^= 1
        verifier = Verifier(keys=frozenset({KEY.hex()}))
        given = (lines[0], bytes(changed), *lines[2:])
        flaw = next(filter(None, map(verifier.add_line, given)), None)
        assert flaw is not None, at
        assert flaw.seq == 2
    links = chain_of(2)
    other = links[0].body.replace("acme", "evil")
    assert verified([Link(1, GENESIS, links[0].hash, other), links[1]]) == Flaw(
        1, "was changed: its hash is not its own"
    )


def test_the_first_record_follows_nothing_and_each_says_its_own_number() -> None:
    body = chain_of(1)[0].body
    before = bytes(range(32))
    flaw = verified([Link(1, before, hash_of(before, body), body)])
    assert flaw == Flaw(1, "is the first one and follows another")
    first, second = chain_of(2)
    body = second.body.replace('"seq":2', '"seq":3')
    odd = Link(2, first.hash, hash_of(first.hash, body), body)
    assert verified([first, odd]) == Flaw(2, "is no record of this format")


def test_everything_made_anew_after_a_change_meets_the_checkpoint() -> None:
    good = chain_of(9, checkpoints=(5,))
    forged = chain_of(4, change=2)
    # The forger has no key: the signature is the old one, and its record is linked in anew.
    body = good[4].body
    forged.append(Link(5, forged[-1].hash, hash_of(forged[-1].hash, body), body))
    flaw = verified(forged)
    assert flaw is not None
    assert flaw.seq == 5
    assert "records 1 to 4 are not those that were signed" in flaw.reason


def test_a_forger_with_a_key_of_its_own_meets_the_known_key() -> None:
    forged = chain_of(6, checkpoints=(5,), seed=OTHER, change=2)
    assert verified(forged) is None
    flaw = verified(forged, keys=frozenset({KEY.hex()}))
    assert flaw is not None
    assert flaw.seq == 5
    assert "unknown key" in flaw.reason


def test_a_forger_without_the_key_can_not_sign_what_he_made() -> None:
    links = chain_of(4, change=2)
    end = links[-1]
    for seq, seed in ((4, OTHER), (3, SEED), (5, SEED)):
        made = make_checkpoint(seq, end.hash, 5, KEY, partial(signatures.sign, seed))
        body = checkpoint_body(made).replace(f'"seq":{seq + 1}', '"seq":5')
        flaw = verified([*links, Link(5, end.hash, hash_of(end.hash, body), body)])
        assert flaw is not None
        assert flaw.seq == 5
        assert "that does not fit" in flaw.reason


def test_everything_made_anew_without_any_checkpoint_meets_one_that_was_kept() -> None:
    good, forged = chain_of(6), chain_of(6, change=2)
    assert verified(forged) is None
    flaw = verified(forged, known={4: good[3].hash.hex()})
    assert flaw is not None
    assert (flaw.seq, flaw.reason) == (4, "is not the one that a checkpoint signs")


def test_a_piece_begins_at_a_checkpoint() -> None:
    links = chain_of(9, checkpoints=(4,))
    assert verified(links[3:]) is None
    flaw = verified(links[4:])
    assert flaw is not None
    assert flaw.seq == 5


def test_a_beginning_is_missing_unless_a_record_says_that_it_was_dropped() -> None:
    links = chain_of(9, checkpoints=(4,))[3:]
    flaw = verified(links, whole=True)
    assert flaw is not None
    assert flaw.seq == 3
    body = body_of(event(kind=AuditKind.AUDIT_DROPPED, detail={"through": 3}), 10)
    links.append(Link(10, links[-1].hash, hash_of(links[-1].hash, body), body))
    # Whoever took the beginning away can have written it.
    assert verified(links, whole=True) == flaw
    end = links[-1].hash
    made = make_checkpoint(10, end, 11, KEY, lambda data: signatures.sign(SEED, data))
    body = checkpoint_body(made)
    links.append(Link(11, end, hash_of(end, body), body))
    assert verified(links, whole=True) is None


def test_one_record_that_is_missing_at_the_beginning_is_missed() -> None:
    rest = chain_of(3, checkpoints=(2,))[1:]
    assert verified(rest) is None
    flaw = verified(rest, whole=True)
    assert flaw is not None
    assert flaw.seq == 1


def test_a_daemon_that_missed_records_at_its_start_said_so() -> None:
    links = chain_of(3)
    body = body_of(event(kind=AuditKind.DAEMON_STARTED, detail={"missing_through": 9}), 4)
    links.append(Link(4, links[-1].hash, hash_of(links[-1].hash, body), body))
    flaw = verified(links)
    assert flaw is not None
    assert flaw.seq == 4


STOP = event(kind=AuditKind.DAEMON_STOPPED, detail={CLOSED: True})
START = event(kind=AuditKind.DAEMON_STARTED)


def test_the_last_record_of_a_process_says_that_it_is() -> None:
    assert closes(body_of(STOP, 1))
    for made in (START, event(detail={CLOSED: True})):
        assert not closes(body_of(made, 1))
    for detail in (None, {CLOSED: False}, {CLOSED: 1}, {"other": True}):
        assert not closes(body_of(event(kind=AuditKind.DAEMON_STOPPED, detail=detail), 1))
    for text in ("", "[]", "null", "{}"):
        assert not closes(text)


def followed(stop: AuditEvent, *behind: AuditEvent | None) -> Flaw | None:
    """What is said of a stop, its signature and what stands behind; None is a signature."""
    links = chain_of(2)
    for made in (stop, None, *behind):
        end, seq = links[-1], len(links) + 1
        if made is None:
            signed = make_checkpoint(
                end.seq, end.hash, seq, KEY, lambda data: signatures.sign(SEED, data)
            )
            body = checkpoint_body(signed)
        else:
            body = body_of(made, seq)
        links.append(Link(seq, end.hash, hash_of(end.hash, body), body))
    return verified(links)


def test_behind_an_orderly_end_there_is_a_signed_start_and_nothing_else() -> None:
    assert followed(STOP) is None
    assert followed(STOP, START, None) is None
    assert followed(STOP, START, None, event(), START, None) is None  # killed after it
    for behind in ((event(),), (event(), START, None), (None, START, None)):
        flaw = followed(STOP, *behind)
        assert flaw is not None
        assert (flaw.seq, flaw.reason) == (5, "was added after the daemon had stopped")
    for behind in ((START,), (START, event(), None), (START, START, None)):
        flaw = followed(STOP, *behind)
        assert flaw is not None
        assert (flaw.seq, flaw.reason) == (5, "was added after the daemon had stopped")
    # An end that does not promise it: of a version that did not sign its starts.
    assert followed(event(kind=AuditKind.DAEMON_STOPPED), event(), START) is None


@pytest.mark.parametrize("body", ["", "[]", "null", '{"seq":2}', "{", '{"kind":"checkpoint"}'])
def test_what_is_no_record_is_a_flaw(body: str) -> None:
    first = chain_of(1)[0]
    odd = Link(2, first.hash, hash_of(first.hash, body), body)
    flaw = verified([first, odd])
    assert flaw is not None
    assert flaw.seq == 2
    verifier = Verifier()
    assert verifier.add_line(line_of(first)) is None
    assert verifier.add_line(line_of(odd)) is not None


def test_a_checkpoint_record_without_a_signature_is_a_flaw() -> None:
    body = '{"kind":"checkpoint","seq":1,"v":1}'
    flaw = verified([Link(1, GENESIS, hash_of(GENESIS, body), body)])
    assert flaw == Flaw(1, "is a checkpoint without a signature")


def test_a_checkpoint_is_genuine_only_as_it_was_signed() -> None:
    made = make_checkpoint(3, bytes(32), 5, KEY, lambda data: signatures.sign(SEED, data))
    assert genuine(made)
    for change in ({"seq": 4}, {"hash": "1" * 64}, {"at_ms": 6}, {"key": "2" * 64}):
        assert not genuine(made.model_copy(update=change))


def test_a_results_digest_covers_all_but_three_fields() -> None:
    result = refusal(Fault(Code.TOKEN_EXPIRED, "é"), "rq_1", "1.0")
    value = json.loads(result.to_json())
    for name in ("request_id", "replayed", "audit"):
        del value[name]
    assert result_digest(result) == hashlib.sha256(rfc8785.dumps(value)).hexdigest()
    same = result.model_copy(
        update={"request_id": "rq_2", "replayed": True, "audit": AuditRef(seq=1, hash="00")}
    )
    assert result_digest(same) == result_digest(result)
    assert result_digest(result.model_copy(update={"retry_safe": False})) != result_digest(result)


@pytest.mark.parametrize(
    "text", ['"audit":null}', '\\"audit":null}', '\\\\"audit":null}', '{"audit":null}}', "é\0"]
)
def test_no_text_of_a_result_is_taken_for_the_place_of_its_record(text: str) -> None:
    """A sandbox can print what the stored result is searched for."""
    result = refusal(Fault(Code.NOT_FOUND, text, details={"x": text}), "rq_1", "1")
    place = Head(7, bytes(range(32)))
    stored = ToolResult.model_validate_json(refer(result.to_text(), place))
    named = AuditRef(seq=7, hash=place.hash.hex())
    assert stored == result.model_copy(update={"audit": named})
