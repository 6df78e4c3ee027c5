"""Rules for every module of the package: small, explained, nothing swallowed, nothing left open."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SRC: Final = Path(__file__).parents[2] / "src" / "stockade"
MAX_BYTES: Final = 16 * 1024
LEFT_OPEN: Final = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b")
# Of an entry point or a package's front there may be nothing to explain.
GLUE: Final = {"__init__.py", "__main__.py"}
EVERYTHING: Final = {"Exception", "BaseException"}


def findings(name: str, source: str) -> list[str]:
    found: list[str] = []
    if len(source.encode()) > MAX_BYTES:
        found.append(f"{name}: more than {MAX_BYTES} bytes")
    for number, line in enumerate(source.splitlines(), 1):
        if LEFT_OPEN.search(line):
            found.append(f"{name}:{number}: left open: {line.strip()}")
    tree = ast.parse(source)
    if name.rpartition("/")[2] not in GLUE and not ast.get_docstring(tree):
        found.append(f"{name}: no docstring says how it works")
    found += [f"{name}:{line}: {reason}" for line, reason in swallowed(tree)]
    return found


def swallowed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield node.lineno, "a bare except"
            if all(empty(statement) for statement in node.body):
                yield node.lineno, "an exception is swallowed"
        elif isinstance(node, ast.Call) and called(node) == "suppress":
            names = {arg.id for arg in node.args if isinstance(arg, ast.Name)}
            if names & EVERYTHING or not node.args:
                yield node.lineno, "every exception is suppressed"


def empty(statement: ast.stmt) -> bool:
    """pass, `...` or a string."""
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass) or constant


def called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


@pytest.mark.parametrize("file", sorted(SRC.rglob("*.py")), ids=lambda f: str(f.relative_to(SRC)))
def test_a_module_is_small_explained_and_finished(file: Path) -> None:
    name = file.relative_to(SRC).as_posix()
    assert findings(name, file.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ('"""D."""\n' + "#" * MAX_BYTES, "more than"),
        ("x = 1", "no docstring"),
        ('"""D."""\n# TODO: later', "left open"),
        ('"""D."""\nx = 1  # FIXME', "left open"),
        ('"""D."""\ndef f():\n    raise NotImplementedError', "left open"),
        ('"""D."""\ntry:\n    f()\nexcept OSError:\n    pass', "swallowed"),
        ('"""D."""\ntry:\n    f()\nexcept OSError:\n    ...', "swallowed"),
        ('"""D."""\ntry:\n    f()\nexcept OSError:\n    "no matter"', "swallowed"),
        ('"""D."""\ntry:\n    f()\nexcept* OSError:\n    pass', "swallowed"),
        ('"""D."""\ntry:\n    f()\nexcept:\n    raise', "bare except"),
        ('"""D."""\nwith contextlib.suppress(Exception):\n    f()', "suppressed"),
        ('"""D."""\nwith suppress(OSError, BaseException):\n    f()', "suppressed"),
    ],
)
def test_a_planted_fault_is_found(source: str, finding: str) -> None:
    found = findings("flow/a.py", source)
    assert len(found) == 1
    assert finding in found[0]


def test_what_is_fine_is_not_found() -> None:
    source = '"""D."""\ntry:\n    f()\nexcept OSError as e:\n    raise g(e) from e\n'
    assert findings("flow/a.py", source) == []
    assert findings("flow/__init__.py", "") == []
