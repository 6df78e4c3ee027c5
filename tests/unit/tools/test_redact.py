"""Secrets and credentials in bytes: forms, cuts, lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from stockade.decide.redaction_file import TokenPattern
from stockade.host.policy_files import load_policy
from stockade.terms.secret import Secret
from stockade.tools.needles import needles
from stockade.tools.redact import Findings, Redactor, Tokens

VALUE = b"pa55/word+with=odd chars\xc3\xa9 and more"
TOKENS = Tokens(load_policy().redaction)
PLAIN = Redactor(TOKENS)
# Put together here, so that nobody who scans this repository takes them for real ones.
EXAMPLES = {
    "aws_access_key": "AKIA" + "ABCDEFGHIJKLMNO2",
    "github_token": "ghp_" + "a1B2c3" * 6,
    "gitlab_token": "glpat-" + "a1B2c3d4e5" * 2,
    "slack_token": "xoxb-" + "123456789012-abcdef",
    "model_api_key": "sk-" + "ant-api03-" + "aB3_" * 8,
    "google_api_key": "AIza" + "a1B2c" * 7,
    "stripe_key": "sk_" + "live_" + "a1B2" * 6,
    "npm_token": "npm_" + "a1B2c3" * 6,
    "pypi_token": "pypi-" + "AgEIcHlwaS5vcmc" + "a1B2" * 16,
    "hugging_face_token": "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "sendgrid_key": "SG." + "a1B2c3d4e5f6g7h8i9j0kl" + "." + "a1B2c" * 8 + "abc",
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N",
    "stockade_token": "stk1."
    + "eyJ2IjoxLCJraWQiOiJrMSIsInRlbmFudCI6ImFjbWUifQ" * 2
    + "."
    + "aB3-" * 11,
}
KEY_BODY = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 20)
KEY = f"-----BEGIN PRIVATE KEY-----\n{KEY_BODY}\nMIIE==\n-----END PRIVATE KEY-----"
EXAMPLES["private_key"] = KEY


def redactor(value: bytes = VALUE, name: str = "NAME") -> Redactor:
    return Redactor(TOKENS, [Secret("ls", name, value, True, 0.0)])


def hide(data: bytes, *, open_start: bool = False, open_end: bool = False) -> bytes:
    return redactor().hide(data, Findings(), open_start=open_start, open_end=open_end)


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        base64.b64encode(VALUE),
        base64.urlsafe_b64encode(VALUE).rstrip(b"="),
        base64.encodebytes(VALUE * 3),
        VALUE.hex().encode(),
        VALUE.hex(" ").upper().encode(),
        quote(VALUE, safe="").encode(),
        quote(VALUE).encode(),
        quote_plus(VALUE).encode(),
        json.dumps(VALUE.decode()).encode(),
        VALUE.replace(b" ", b"\n"),
    ],
)
def test_every_form_is_found(form: bytes) -> None:
    findings = Findings()
    shown = redactor().hide(b"before " + form + b" after", findings)
    assert b"[redacted:NAME]" in shown
    assert not any(needle in shown for needle in needles(VALUE))
    assert shown.startswith(b"before ")
    assert shown.endswith(b" after")
    assert findings.hidden["NAME"] >= 1


def test_no_character_of_a_form_is_left() -> None:
    text = 'pa"ss\\word+w\u00e9\u00e9th & ~more~'
    value = text.encode()
    made = redactor(value)
    for form in (
        value,
        value.hex().encode(),
        value.hex().upper().encode(),
        quote(value, safe="").encode(),
        quote_plus(value).encode(),
        json.dumps(text)[1:-1].encode(),
        json.dumps(text, ensure_ascii=False)[1:-1].encode(),
    ):
        assert made.hide(b"<" + form + b">", Findings()) == b"<[redacted:NAME]>", form


def test_the_shortest_secret_and_one_of_short_lines_are_hidden() -> None:
    assert redactor(b"8-bytes!").hide(b"a 8-bytes! b", Findings()) == b"a [redacted:NAME] b"
    short = b"\xff123\n\xfe567\n\xfd9ab"
    assert redactor(short).hide(b"<" + short + b">", Findings()) == b"<[redacted:NAME]>"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("after", range(3))
def test_of_base64_exactly_what_stands_for_the_secret_alone_is_hidden(
    encode: Callable[[bytes], bytes], before: int, after: int
) -> None:
    value = b"~~~???>>>key-with-odd~~~???>>>"
    encoded = encode(b"#" * before + value + b"#" * after)
    first, last = -(-before * 8 // 6), (before + len(value)) * 8 // 6
    shown = redactor(value).hide(encoded, Findings())
    assert shown == encoded[:first] + b"[redacted:NAME]" + encoded[last:]


@pytest.mark.parametrize("before", [b"", b"x", b"xy", b"xyz"])
@pytest.mark.parametrize("after", [b"", b"x", b"xy"])
def test_base64_of_a_text_around_it(before: bytes, after: bytes) -> None:
    shown = hide(base64.b64encode(before + VALUE + after))
    assert b"[redacted:NAME]" in shown
    assert len(shown) < 30


def test_what_is_no_secret_stays() -> None:
    for data in (b"", b"word", VALUE[:20], b"pa55/word+with!", b"a" * 1000):
        assert hide(data) == data


def test_open_ends_hide_a_part_of_eight_bytes() -> None:
    assert hide(b"x " + VALUE[:8], open_end=True) == b"x [redacted:NAME]"
    assert hide(b"x " + VALUE[:7], open_end=True) == b"x " + VALUE[:7]
    assert hide(VALUE[-10:] + b" x", open_start=True) == b"[redacted:NAME] x"
    assert hide(VALUE[4:20], open_start=True, open_end=True) == b"[redacted:NAME]"
    assert hide(VALUE[4:20]) == VALUE[4:20]


def test_the_inside_of_a_secret_is_hidden_between_two_open_ends_only() -> None:
    assert hide(VALUE[4:12], open_start=True, open_end=True) == b"[redacted:NAME]"
    assert hide(VALUE[4:11], open_start=True, open_end=True) == VALUE[4:11]
    assert hide(VALUE[4:20], open_start=True) == VALUE[4:20]
    assert hide(VALUE[4:20], open_end=True) == VALUE[4:20]
    made = redactor(b"a-line-as-long-as-a-part\nas-short")
    inside = made.hide(b"line-as-long", Findings(), open_start=True, open_end=True)
    assert inside == b"[redacted:NAME]"


def test_nothing_of_a_secret_at_either_end_is_left() -> None:
    assert hide(VALUE + b" x") == b"[redacted:NAME] x"
    assert hide(b"x " + VALUE) == b"x [redacted:NAME]"
    assert hide(VALUE) == b"[redacted:NAME]"


def test_a_window_shows_what_is_in_it_and_a_sign_for_a_secret_that_reaches_into_it() -> None:
    made, data = redactor(), b"abc" + VALUE + b"def"
    start, end = 3, 3 + len(VALUE)
    for first in range(len(data) + 1):
        for last in range(first + 1, len(data) + 1):
            sign = b"[redacted:NAME]" if first < end and last > start else b""
            expected = data[first : min(last, start)] + sign + data[max(first, end) : last]
            assert made.hide(data, Findings(), shown=(first, last)) == expected, (first, last)


def test_a_string_may_be_cut_on_both_sides_unless_it_is_whole() -> None:
    made, inside = redactor(), VALUE[4:20].decode()
    for text in (inside, f"x {VALUE[:12].decode()}", f"{VALUE[-12:].decode()} x"):
        assert "[redacted:NAME]" in made.text(text, Findings())
        assert made.text(text, Findings(), part=False) == text


def test_lines_of_a_secret_with_several_are_hidden_one_by_one() -> None:
    lines = b"first-line-of-it\nsecond-line-of-it\nx\n"
    made = redactor(lines)
    shown = made.hide(b"1:first-line-of-it\n2:second-line-of-it\n3:x\n", Findings())
    assert shown == b"1:[redacted:NAME]\n2:[redacted:NAME]\n3:x\n"


def test_lines_keep_their_number_and_ends() -> None:
    made = redactor(b"first-line-of-it\nsecond-line-of-it")
    lines = [b"a\r\n", b"x=first-line-of-it\r\n", b"second-line-of-it;\r\n", b"b"]
    shown = made.lines(lines, Findings(), apart=False)
    assert shown == [b"a\r\n", b"x=[redacted:NAME]\r\n", b";\r\n", b"b"]


def test_lines_from_somewhere_in_a_file_are_open_at_both_ends() -> None:
    lines = [VALUE[-12:] + b"\n", b"x " + VALUE[4:20] + b"\n", b"y " + VALUE[:12]]
    sign = b"[redacted:NAME]"
    together = redactor().lines(lines, Findings(), apart=False)
    assert together == [sign + b"\n", lines[1], b"y " + sign]
    one = [VALUE[4:20] + b"\n"]
    assert redactor().lines(one, Findings(), apart=False) == [sign + b"\n"]


def test_where_something_may_be_missing_between_lines_each_is_open_at_both_ends() -> None:
    lines = [b"a\n", VALUE[4:20] + b"\n", b"x " + VALUE[:12] + b"\n", VALUE[-12:] + b" y\n"]
    sign = b"[redacted:NAME]"
    shown = redactor().lines([*lines, b"b\n"], Findings(), apart=True)
    assert shown == [b"a\n", sign + b"\n", b"x " + sign + b"\n", sign + b" y\n", b"b\n"]


def test_overlapping_secrets_leave_nothing_between() -> None:
    made = Redactor(
        TOKENS,
        [
            Secret("ls", "A", b"0123456789", True, 0.0),
            Secret("ls", "B", b"56789abcdef", True, 0.0),
        ],
    )
    assert made.hide(b"<0123456789abcdef>", Findings()) == b"<[redacted:A]>"


def test_bytes_that_are_no_text() -> None:
    value = b"\xff\xfeabcdefgh\x00ijklmnop\xff"
    made = redactor(value)
    assert made.hide(b"x" + value + b"y", Findings()) == b"x[redacted:NAME]y"
    shown = made.text(value.decode("utf-8", "replace"), Findings())
    assert shown == "[redacted:NAME]"
    assert made.text(value.decode("utf-8", "backslashreplace"), Findings()) == "[redacted:NAME]"


def test_every_pattern_has_an_example() -> None:
    assert set(EXAMPLES) == {pattern.kind for pattern in load_policy().redaction}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_credentials_are_found_by_their_form(kind: str) -> None:
    example = EXAMPLES[kind].encode()
    marker = f"[redacted:{kind}]".encode()
    for before, after in ((b"", b""), (b"TOKEN=", b"\n"), (b'"', b'", '), (b"a ", b" b")):
        assert PLAIN.hide(before + example + after, Findings()) == before + marker + after
    for shift in range(3):
        for encode in (base64.b64encode, base64.encodebytes):
            shown = PLAIN.hide(encode(b"#" * shift + example + b" tail"), Findings())
            assert marker in shown
            assert len(shown) < len(marker) + 16


@pytest.mark.parametrize("shift", [0, 1, 2, 7])
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("tail", [b"", b" t", b" ta", b" tail"])
def test_of_base64_exactly_what_holds_a_bit_of_the_credential_is_hidden(
    shift: int, before: int, tail: bytes
) -> None:
    """Base64 may begin at any character: `before` are others of its alphabet in front of it."""
    example = EXAMPLES["github_token"].encode()
    encoded = base64.b64encode(b"#" * shift + example + tail)
    first, last = shift * 8 // 6, -(-(shift + len(example)) * 8 // 6)
    shown = PLAIN.hide(b"/" * before + encoded + b"\n", Findings())
    kept = (b"/" * before + encoded[:first], encoded[last:] + b"\n")
    assert shown == b"[redacted:github_token]".join(kept)


def test_base64_is_found_in_both_alphabets() -> None:
    odd = TokenPattern(kind="odd", begins=("?>?>",), pattern=r"\?>\?>[0-9]{4}", reason="of a test")
    made = Redactor(Tokens([odd]))
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            shown = made.hide(encode(b"#" * shift + b"?>?>1234" + b" tail"), Findings())
            assert b"[redacted:odd]" in shown, (shift, encode)


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn sk-ant-hill the-sk-proj-x",
        "github_pattern = ghp_short",
        "eyJ is how JSON begins, eyJhbGciOi and eyJ.eyJ.x too",
        "AKIA, AKIAabc, THEAKIAABCDEFGHIJKLMNOPQ",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUYd\n-----END CERTIFICATE-----",
        'if line == "-----BEGIN PRIVATE KEY-----":\n    raise ValueError("no keys, please")\n',
        "pk_live_0123456789abcdef01234567",
        "hf_hub_download npm_config_registry xoxb-short SG.x.y stk1.a",
        "d41d8cd98f00b204e9800998ecf8427e",
        base64.b64encode(bytes(range(256)) * 8).decode(),
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert PLAIN.hide(text.encode(), Findings()).decode() == text


def test_a_key_that_was_cut_is_found() -> None:
    for part in (KEY[:200], KEY[-200:]):
        assert "MIIEvQIBADANBg" not in PLAIN.text(part, Findings())


def test_numbers_beyond_the_bounds_are_linear() -> None:
    """The worst texts for a search that goes back: each takes milliseconds."""
    hard = [b"-----BEGIN PRIVATE KEY-----" * 4000, b"eyJ" * 20_000, b"ghp_" * 20_000, b"A" * 65_536]
    made = redactor(b"a" * 4096 + b"b")
    for data in [*hard, b"a" * 65_536, (b"a" * 4095 + b"c") * 16]:
        assert made.hide(data, Findings(), open_start=True, open_end=True)


def test_a_secret_that_repeats_itself_leaves_no_part_behind() -> None:
    made = redactor(b"ab" * 8)
    assert made.hide(b"x" + b"ab" * 15 + b"y" + b"ab" * 8, Findings()) == (
        b"x[redacted:NAME]y[redacted:NAME]"
    )
