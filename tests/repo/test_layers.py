"""The layer rules of docs/design.md, read off the syntax tree of every module.

Imports inside functions and below `if TYPE_CHECKING` count like any other; a module that can't be
parsed fails; an import by a computed name would be invisible here and is a violation itself. Each
rule has planted violations below that the checker must find.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SRC: Final = Path(__file__).parents[2] / "src" / "stockade"

LEVELS: Final = {
    "terms": 0,
    "decide": 1,
    "tools": 2,
    "host": 3,
    "ledger": 3,
    "engines": 4,
    "egress": 4,
    "flow": 5,
    "edge": 6,
    "testing": 6.5,
    "native": 6.7,
    "runtime": 7,
    "daemon": 7.2,
    "embedded": 7.2,
    "selftest": 7.5,
    "local": 8,
    "command": 9,
}
# The package's own __init__ hands names out lazily. Nothing inside may take one from it, but for
# the version, which has no other home.
FACADE: Final = "__init__"
FROM_FACADE: Final = {"stockade.__version__"}

PURE: Final = {"terms", "decide", "tools"}
IMPURE_MODULES: Final = {
    "asyncio",
    "ctypes",
    "concurrent",
    "fcntl",
    "glob",
    "http",
    "importlib",
    "io",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "pickle",
    "queue",
    "random",
    "sched",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "socketserver",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
IMPURE_CALLS: Final = {"open", "print", "input", "exec", "eval", "breakpoint"}
CLOCK_CALLS: Final = {"now", "utcnow", "today"}

FLOW_NEVER: Final = ("stockade.engines", "stockade.host", "stockade.ledger")
SHARED_BY_CLIENTS: Final = ("stockade.terms", "stockade.decide", "stockade.tools")
# What both ends of a connection share: bodies, frames and who speaks, faults as values.
WIRE: Final = (
    "stockade.edge.wire",
    "stockade.edge.bodies",
    "stockade.edge.audit_wire",
    "stockade.edge.authority_wire",
    "stockade.edge.budget_wire",
    "stockade.edge.claim_wire",
    "stockade.edge.secret_wire",
    "stockade.edge.exchange",
    "stockade.edge.http1",
    "stockade.edge.sending",
    "stockade.edge.refusal",
)
CLIENT_REACH: Final = ("stockade.edge.client", *WIRE, *SHARED_BY_CLIENTS)

# A home that ends in a slash is a directory below src/stockade, else one file; * is any directory.
HOMES: Final = {
    "click": ("edge/cli/",),
    "cryptography": ("decide/tokens.py", "decide/signatures.py", "ledger/secret_rows.py"),
    "docker": ("engines/docker.py",),
    "httptools": ("edge/http1.py",),
    "opentelemetry": ("edge/tracing.py",),
    "prometheus_client": ("edge/exposition.py",),
    "psutil": ("host/processes.py", "*/doctor.py"),
    "pydantic": ("*/",),
    "pydantic_core": ("*/",),  # the same package: error details and custom errors live there
    "re2": ("decide/patterns.py",),
    "pyroute2": ("host/netns.py",),
    "rfc8785": ("decide/canonical.py",),
    "rich": ("edge/cli/",),
    "tenacity": ("host/", "ledger/", "engines/", "edge/client/"),
}


def violations(path: str, source: str) -> list[str]:
    """What the module at `path` (relative to src/stockade) does against the rules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return [f"{path}: can't be parsed: {error}"]
    found: list[str] = []
    for line, target in imports(tree, path):
        found += [f"{path}:{line}: {reason}" for reason in judge(path, target)]
    found += [f"{path}:{line}: {reason}" for line, reason in calls(tree, path)]
    return found


def package_of(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def imports(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """Every imported name with its line, in full: `from a.b import c` is a.b.c."""
    here = ["stockade", *path.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = here[: len(here) - node.level + 1] if node.level else []
            parts += node.module.split(".") if node.module else []
            for alias in node.names:
                yield node.lineno, ".".join([*parts, alias.name])


def judge(path: str, target: str) -> Iterator[str]:
    top = target.split(".")[0]
    if top == "stockade":
        yield from judge_own(path, target)
        return
    if package_of(path) in PURE and top in IMPURE_MODULES:
        yield f"a pure layer imports {top}"
    if top not in sys.stdlib_module_names and not at_home(path, HOMES.get(top, ())):
        yield f"{top} is imported outside its home"


def judge_own(path: str, target: str) -> Iterator[str]:
    package = package_of(path)
    if package in (FACADE, "__main__"):
        return
    if package not in LEVELS:
        yield f"{package} has no level"
        return
    if target in FROM_FACADE:
        return
    parts = target.split(".")
    if len(parts) < 2 or parts[1] not in LEVELS:
        yield f"{target} comes from the facade or from a package without a level"
        return
    other = parts[1]
    if other != package and LEVELS[other] >= LEVELS[package]:
        yield f"{package} (level {LEVELS[package]}) imports {other} (level {LEVELS[other]})"
    if other == "testing" and package != "testing":
        yield "the test kit is imported"
    if package == "flow" and within(target, FLOW_NEVER):
        yield f"flow knows ports, not {target}"
    if path.startswith("edge/client/") and not within(target, CLIENT_REACH):
        yield f"the client SDK reaches {target}"
    is_wire = "stockade." + path.removesuffix(".py").replace("/", ".") in WIRE
    if is_wire and not within(target, (*WIRE, *SHARED_BY_CLIENTS)):
        yield f"the wire types, which the client SDK shares, reach {target}"


def within(target: str, modules: tuple[str, ...]) -> bool:
    return any(target == module or target.startswith(module + ".") for module in modules)


def at_home(path: str, homes: tuple[str, ...]) -> bool:
    for home in homes:
        directory, _, name = home.rpartition("/")
        parent, _, file = path.rpartition("/")
        below = directory == "*" or f"{parent}/".startswith(f"{directory}/")
        if below and (not name or (name == file and (directory in ("*", parent)))):
            return True
    return False


def calls(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = (
            function.id
            if isinstance(function, ast.Name)
            else function.attr
            if isinstance(function, ast.Attribute)
            else ""
        )
        if name in ("__import__", "import_module") and path != f"{FACADE}.py":
            yield node.lineno, "a module is imported by a computed name"
        if package_of(path) not in PURE:
            continue
        if isinstance(function, ast.Name) and name in IMPURE_CALLS:
            yield node.lineno, f"a pure layer calls {name}()"
        if isinstance(function, ast.Attribute) and name in CLOCK_CALLS:
            yield node.lineno, f"a pure layer reads a clock with {name}()"


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def test_every_module_keeps_the_layer_rules() -> None:
    found = []
    for file in modules():
        source = file.read_text("utf-8", errors="surrogateescape")
        found += violations(file.relative_to(SRC).as_posix(), source)
    assert not found, "\n".join(found)


def test_the_walk_sees_the_tree() -> None:
    paths = {file.relative_to(SRC).as_posix() for file in modules()}
    assert {"terms/fault.py", "decide/tokens.py", "decide/authorize.py"} <= paths
    assert {package_of(path) for path in paths} <= {*LEVELS, FACADE, "__main__"}


@pytest.mark.parametrize(
    ("path", "source", "finding"),
    [
        ("decide/a.py", "import stockade.tools.text", "imports tools"),
        ("decide/a.py", "from stockade.tools import text", "imports tools"),
        ("decide/a.py", "from stockade import tools", "imports tools"),
        ("decide/a.py", "from ..tools import text", "imports tools"),
        ("decide/a.py", "from .. import tools", "imports tools"),
        ("engines/oci/a.py", "from ...flow import x", "imports flow"),
        ("decide/a.py", "def f():\n  from stockade.flow import x", "a.py:2: decide"),
        ("decide/a.py", "if TYPE_CHECKING:\n import stockade.edge", "imports edge"),
        ("terms/a.py", "from stockade.decide.objects import parse_path", "imports decide"),
        ("host/a.py", "import stockade.ledger.store", "imports ledger"),
        ("ledger/a.py", "import stockade.host.mounts", "imports host"),
        ("egress/a.py", "import stockade.engines", "imports engines"),
        ("edge/a.py", "import stockade.runtime", "imports runtime"),
        ("edge/a.py", "from stockade import Stockade", "facade"),
        ("edge/a.py", "import stockade", "facade"),
        ("edge/a.py", "import stockade.extra", "without a level"),
        ("extra/a.py", "import stockade.terms", "has no level"),
        ("runtime.py", "from stockade.testing import clock", "test kit"),
        ("edge/a.py", "from stockade.testing import clock", "test kit"),
        ("testing/a.py", "import stockade.runtime", "imports runtime"),
        ("flow/a.py", "from stockade.host import mounts", "flow knows ports"),
        ("flow/a.py", "from stockade.ledger.store import Store", "flow knows ports"),
        ("flow/a.py", "def f():\n  import stockade.engines.oci", "flow knows ports"),
        ("edge/client/a.py", "from stockade.flow import leases", "client SDK reaches"),
        ("edge/client/a.py", "from stockade.edge import api", "client SDK reaches"),
        ("edge/client/a.py", "from stockade.host.files import Files", "client SDK reaches"),
        ("edge/client/a.py", "from stockade.edge.wirework import x", "client SDK reaches"),
        ("edge/wire.py", "from stockade.flow import leases", "wire types"),
        ("decide/a.py", "import time", "imports time"),
        ("terms/a.py", "from os import path", "imports os"),
        ("tools/a.py", "import os.path as p", "imports os"),
        ("tools/a.py", "def f():\n  import random", "imports random"),
        ("decide/a.py", "from pathlib import Path", "imports pathlib"),
        ("decide/a.py", "open('x')", "calls open()"),
        ("tools/a.py", "print('x')", "calls print()"),
        ("tools/a.py", "import datetime\ndatetime.datetime.now()", "clock"),
        ("decide/objects.py", "import cryptography", "cryptography is imported outside"),
        ("decide/tokens.py", "import rfc8785", "rfc8785 is imported outside"),
        ("host/a.py", "from pyroute2 import IPRoute", "pyroute2 is imported outside"),
        ("host/netns2.py", "import pyroute2", "pyroute2 is imported outside"),
        ("host/a.py", "import psutil", "psutil is imported outside"),
        ("flow/a.py", "import tenacity", "tenacity is imported outside"),
        ("edge/server/a.py", "import httpx", "httpx is imported outside"),
        ("edge/client/a.py", "import httptools", "httptools is imported outside"),
        ("edge/a.py", "import click", "click is imported outside"),
        ("edge/server/a.py", "def f():\n  import rich.table", "rich is imported outside"),
        ("engines/oci/docker.py", "import docker", "docker is imported outside"),
        ("host/a.py", "import requests", "requests is imported outside"),
        ("flow/a.py", "importlib.import_module('stockade.host')", "computed name"),
        ("flow/a.py", "__import__('os')", "computed name"),
        ("flow/a.py", "def f(:", "can't be parsed"),
        ("flow/a.py", "x = '\x00'", "can't be parsed"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str, finding: str) -> None:
    found = violations(path, source)
    assert any(finding in one for one in found), found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("decide/a.py", "import hashlib, re\nfrom stockade.terms import pathname"),
        ("decide/tokens.py", "from cryptography.hazmat.primitives.hashes import SHA256"),
        ("decide/canonical.py", "import rfc8785"),
        ("terms/a.py", "from pydantic import Field\nre.compile('x')"),
        ("tools/a.py", "from stockade.decide.objects import normalize_call_path"),
        ("host/a.py", "import os, time\nopen('x')\nfrom stockade.host import mounts"),
        ("host/doctor.py", "import psutil"),
        ("flow/a.py", "from stockade.terms.ports import Ledger\nimport stockade.decide.tokens"),
        ("edge/cli/a.py", "import click\nfrom stockade.edge.client.sdk import Stockade"),
        (
            "edge/client/a.py",
            "import http.client\nfrom stockade.edge import wire\nfrom . import link",
        ),
        ("edge/client/a.py", "from stockade.decide.tokens import attenuate"),
        ("edge/cli/main.py", "from stockade import __version__"),
        ("testing/a.py", "import stockade.edge.api, stockade.flow.leases"),
        ("runtime.py", "import stockade.engines.oci, stockade.ledger.store, stockade.edge.api"),
        ("__init__.py", "from stockade.edge.client.sdk import Stockade\nimport_module(x)"),
    ],
)
def test_what_the_rules_allow_is_not_found(path: str, source: str) -> None:
    assert violations(path, source) == []
