from __future__ import annotations

import pytest

from stockade.decide import patterns
from stockade.decide.patterns import MAX_TEXT_BYTES, check_pattern, matches

LONG = 100_000


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("make", "make", True),
        ("make", "make test", False),
        ("make", "remake", False),
        ("a|ab", "ab", True),
        ("a|b", "ab", False),
        ("ab|cd", "abd", False),
        ("(?:a|ab)(?:c|bcd)", "abcd", True),
        ("a*?", "aaa", True),
        ("", "", True),
        ("^a$", "a", True),
        (r"\Aa\z", "a", True),
        ("(?i)MAKE", "make", True),
        ("(?i)k", "\u212a", True),
        (r"\pL+", "éß", True),
        ("é", "e\u0301", False),
        ("..", "éß", True),
        (r"\x{1F600}", "\U0001f600", True),
        ("a\x00b", "a\x00b", True),
        ("a", "a\x00", False),
    ],
)
def test_a_pattern_fits_the_whole_text(pattern: str, text: str, expected: bool) -> None:
    assert matches(pattern, text) is expected


@pytest.mark.parametrize("pattern", ["a", "a$", "^a$", "(?m)^a$", "a.?", "a.*", r"a\z", "[ab]"])
@pytest.mark.parametrize("end", ["\n", "\nb", "\r", "\u2028"])
def test_nothing_after_the_last_fitting_character_is_forgiven(pattern: str, end: str) -> None:
    one_more = pattern in ("a.?", "a.*") and end in ("\r", "\u2028")
    assert matches(pattern, "a") is True
    assert matches(pattern, "a" + end) is one_more
    assert matches(pattern, "\n" + "a") is False


def test_a_dot_is_any_character_but_a_newline_unless_the_pattern_says_so() -> None:
    assert matches("a.b", "a\nb") is False
    assert matches("(?s)a.b", "a\nb") is True
    assert matches("[^x]*", "a\nb") is True


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        r"(?P<x>a)(?P=x)",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?<!a)b",
        "(?>a)",
        "a++",
        "(",
        "[a",
        "*",
        "a{2,1}",
        "a{1001}",
        "(?:(?:a{100}){100}){100}",
        ".{1000}",
        r"[\pL\pN]{200}",
        "\ud800",
    ],
)
def test_what_linear_time_and_bounded_memory_can_not_do_is_refused(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="pattern"):
            check_pattern(pattern)
    with pytest.raises(ValueError, match="pattern"):
        matches(pattern, "a")
    assert capfd.readouterr() == ("", "")


def test_a_refusal_does_not_repeat_the_pattern() -> None:
    with pytest.raises(ValueError, match="not a pattern of RE2 syntax: invalid escape") as caught:
        check_pattern(r"secret\1")
    assert "secret" not in str(caught.value)


# Each takes a backtracking matcher more steps than there are atoms; the last also has more states
# than the automaton's memory holds, so it goes by the slowest of RE2's ways.
HOSTILE = [
    ("(a+)+b", "a" * LONG),
    ("(a|aa)*b", "a" * LONG),
    ("(a|a)*b", "a" * LONG),
    ("(?:x+x+)+y", "x" * LONG),
    ("(.*)*b", "a" * LONG),
    ("(a*)*(a*)*(a*)*b", "a" * LONG),
    ("(?:a?){200}a{200}b", "a" * LONG),
    ("([a-z]+)*[0-9]", "a" * LONG),
    ("(.*a){20}b", "ba" * (LONG // 2)),
    ("[ab]*a[ab]{300}c", "abbaabab" * (LONG // 8)),
]


@pytest.mark.parametrize(("pattern", "text"), HOSTILE, ids=[pattern for pattern, _ in HOSTILE])
def test_hostile_patterns_return(
    pattern: str, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check_pattern(pattern) == pattern
    assert matches(pattern, text) is False
    assert capfd.readouterr() == ("", "")


def test_what_is_remembered_is_bounded() -> None:
    for n in range(300):
        assert matches(f"a{n}", f"a{n}") is True
    kept = patterns._compile.cache_info()
    assert kept.currsize == kept.maxsize == 256


def test_text_that_can_not_be_judged_is_neither() -> None:
    assert matches(".*", "a" * MAX_TEXT_BYTES) is True
    assert matches(".*", "a" * (MAX_TEXT_BYTES + 1)) is None
    assert matches(".*", "é" * (MAX_TEXT_BYTES // 2 + 1)) is None
    assert matches(".*", "\ud800") is None


def test_the_size_of_a_program_is_bounded() -> None:
    assert check_pattern("[^a]{250}")
    with pytest.raises(ValueError, match="too large"):
        check_pattern("[^a]{250}" * 2)
