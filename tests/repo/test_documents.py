"""The documents say what is there: tests, links, commands, codes, versions and dependencies exist."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from stockade.terms.version import VERSION

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if page.name != "LICENSE.md"
)
SPEC = ROOT / "SPEC.md"
# A test's name, in a table cell: path below tests, two colons, name.
TEST_ID = re.compile(r"`((?:[\w-]+/)*test_\w+\.py)(?:::(test_\w+))?`")
BARE_TEST = re.compile(r"`(test_\w+)`")
CASE_ROW = re.compile(r"^\| (B\d\d) \| .* \|$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MENTION = re.compile(r"docs/[\w./-]*\w|SPEC\.md|SECURITY\.md|CHANGELOG\.md")
DECISION = re.compile(r"decisions/(\d{4})(?![\w-]*\.md)")


def names_of_tests(source: str) -> set[str]:
    """Every test function of a module, also in classes."""
    return {
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@cache
def named_in(path: Path) -> frozenset[str]:
    return frozenset(names_of_tests(path.read_text("utf-8")))


@cache
def all_tests() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for file in files for name in named_in(file))


def missing_tests(text: str) -> Iterator[str]:
    """What `text` names as a test and isn't one."""
    for file, name in TEST_ID.findall(text):
        path = ROOT / "tests" / file.removeprefix("tests/")
        if not path.is_file():
            yield file
        elif name and name not in named_in(path):
            yield f"{file}::{name}"
    yield from (name for name in BARE_TEST.findall(text) if name not in all_tests())


def broken_links(page: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", text)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = page if not file else page.parent / file
        if not found.exists() or (anchor and anchor not in anchors(found.read_text("utf-8"))):
            yield target


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_reference", ROOT / "docs" / "make_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_document_names_exists(page: Path) -> None:
    assert list(missing_tests(page.read_text("utf-8"))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text("utf-8"))) == []


def test_every_row_of_the_spec_has_a_test_or_says_why_not() -> None:
    for line in SPEC.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 2 or set(cells[0]) <= {"-"} or cells[0] in ("promise", "what", "case"):
            continue
        if CASE_ROW.match(line):  # its tests are found by their names, see below
            continue
        assert TEST_ID.search(cells[1]) or cells[1].startswith("unproven:"), line


def test_every_case_of_the_spec_has_a_test_and_every_tested_case_a_row() -> None:
    claimed = set(CASE_ROW.findall(SPEC.read_text("utf-8")))
    tested = {
        f"B{number}" for name in all_tests() for number in re.findall(r"^test_b(\d\d)_", name)
    }
    assert claimed - tested == set(), "claimed without a test"
    assert tested - claimed == set(), "tested and not in SPEC.md"


@pytest.mark.parametrize("page", ["cli.md", "result.md"])
def test_the_generated_parts_are_what_the_program_says(page: str) -> None:
    assert reference().rendered(page) == (ROOT / "docs" / page).read_text("utf-8"), "make schemas"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_document_shows_exists(page: Path) -> None:
    known = {name for name, _ in reference().commands()}
    groups = {name.rpartition(" ")[0] for name in known}
    shown = re.findall(r"(?<![\w/.-])stockade ((?:[a-z]+ ?)+)", code_of(page.read_text("utf-8")))
    for words in (text.split() for text in shown):
        name = "stockade"
        while name in groups and words:
            name = f"{name} {words.pop(0)}"
            assert name in known, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_a_document_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE)
    assert set(named) - targets == set()


def code_of(text: str) -> str:
    """Fenced blocks and code spans, one a line; a block's output lines are no commands."""
    fenced = FENCE.findall(text)
    lines = [line for block in fenced for line in block.splitlines()[1:-1]]
    commands = [line[2:] for line in lines if line.startswith("# stockade")]
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return "\n".join([*commands, *(span for span in spans if span.startswith("stockade "))])


def test_the_changelog_has_this_version() -> None:
    assert re.search(
        rf"^## \[{re.escape(VERSION)}\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [
        *project["dependencies"],
        *(ROOT / "requirements" / "dev.in").read_text("utf-8").splitlines(),
        *(ROOT / "requirements" / "build.in").read_text("utf-8").splitlines(),
    ]
    names = {re.split(r"[=<>~! ]", line)[0] for line in lines if line and line[0] not in "-#"}
    page = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text("utf-8")
    explained = {
        name.strip()
        for row in re.findall(r"^\| ([\w, -]+) \|", page, re.MULTILINE)
        for name in row.split(",")
    }
    assert names - explained == set()


def test_every_document_that_the_code_mentions_exists() -> None:
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "sandbox").glob("*.[ch]"),
        *(ROOT / "tests").rglob("*.py"),
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
    ]
    numbers = {page.name[:4] for page in (ROOT / "docs" / "decisions").glob("*.md")}
    for file in files:
        text = file.read_text("utf-8")
        if file == Path(__file__):
            continue
        for mention in MENTION.findall(text):
            short = DECISION.search(mention)
            found = short[1] in numbers if short else (ROOT / mention).exists()
            assert found, f"{file.relative_to(ROOT)} mentions {mention}"


def test_decisions_are_numbered_without_a_gap() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{n:04d}" for n in range(1, len(pages) + 1)]
    for page in pages:
        assert page.read_text("utf-8").startswith(f"# {page.name[:4]}: ")


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    assert list(missing_tests("`unit/host/test_paths.py::test_that_is_not_there`")) != []
    assert list(missing_tests("`unit/host/test_nothing.py`")) != []
    assert list(missing_tests("`test_that_is_not_there`")) != []
    page = tmp_path / "page.md"
    assert list(broken_links(page, "[a](nothing.md)")) == ["nothing.md"]
    page.write_text("# One thing\n")
    assert list(broken_links(page, "[a](page.md#one-thing)")) == []
    assert list(broken_links(page, "[a](page.md#another)")) == ["page.md#another"]
