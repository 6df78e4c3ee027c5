"""From checked arguments to rights and operations."""

from __future__ import annotations

from typing import Any

import pytest

from stockade.host.guest_wire import PATHS_MAX
from stockade.terms.base import MAX_INTEGER, MAX_SECONDS
from stockade.terms.call import EditOperation, ExecOperation, Right, ViewOperation
from stockade.terms.fault import Code, Failure
from stockade.terms.plan import Kind
from stockade.tools import catalog
from stockade.tools.definition import AnyTool, CallLimits
from stockade.tools.program import MAX_TOTAL_BYTES
from tests.unit.tools.support import BASH, EDIT, GREP, LIMITS, RUN, VIEW


def parsed(tool: AnyTool, **arguments: Any) -> Any:
    return catalog.parse_arguments(tool, arguments)[0]


def program(tool: AnyTool, limits: CallLimits = LIMITS, **arguments: Any) -> ExecOperation:
    operation = tool.operation(parsed(tool, **arguments), limits)
    assert isinstance(operation, ExecOperation)
    return operation


def test_the_target_tables() -> None:
    edit = {"old_str": "x", "new_str": "y"}
    cases: list[tuple[AnyTool, dict[str, Any], list[Right]]] = [
        (BASH, {"command": ":"}, [Right("execute", "/usr")]),
        (RUN, {"argv": ["ls"]}, [Right("execute", "/usr")]),
        (RUN, {"argv": ["/usr/bin/ls"]}, [Right("execute", "/usr")]),
        (RUN, {"argv": ["./a.out"]}, [Right("execute", "/workspace/a.out")]),
        (RUN, {"argv": ["x/y"], "cwd": "/tmp"}, [Right("execute", "/tmp/x/y")]),
        (RUN, {"argv": ["/tmp//./x"]}, [Right("execute", "/tmp/x")]),
        (VIEW, {"path": "a//./b/"}, [Right("read", "/workspace/a/b")]),
        (EDIT, {"path": "/tmp/a", **edit}, [Right("read", "/tmp/a"), Right("write", "/tmp/a")]),
        (GREP, {"path": "/workspace", "pattern": "x"}, [Right("read", "/workspace")]),
        (VIEW, {"path": "a\\xff"}, [Right("read", "/workspace/a\\xff")]),
    ]
    for tool, arguments, expected in cases:
        assert list(tool.rights(parsed(tool, **arguments))) == expected, (tool.name, arguments)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/", "/workspace-evil/x", "//etc", "/tmpfoo", "/proc", "/proc/self/cwd"]
)
def test_file_tools_refuse_what_lies_outside_by_name(path: str) -> None:
    for tool, more in (
        (VIEW, {}),
        (EDIT, {"old_str": "x", "new_str": "y"}),
        (GREP, {"pattern": "x"}),
    ):
        with pytest.raises(Failure) as caught:
            tool.rights(parsed(tool, path=path, **more))
        assert caught.value.fault.code is Code.OUTSIDE_WORKSPACE


def test_b48_a_search_takes_dots_by_name() -> None:
    for path in ("/workspace/../etc", "../proc", "a/../../workspace-evil/x", "../../.."):
        with pytest.raises(Failure) as caught:
            GREP.operation(parsed(GREP, path=path, pattern="x"), LIMITS)
        assert caught.value.fault.code is Code.OUTSIDE_WORKSPACE
    assert program(GREP, path="a/../../tmp/x", pattern="x").cwd == b"/tmp"


@pytest.mark.parametrize(
    ("command", "given"),
    [("-c\nx", " -c\nx"), ("+x", " +x"), ("--", " --"), ("echo \\", "echo \\\n"), ("a -b", "a -b")],
)
def test_b23_what_bash_c_reads_differently_is_set_right(command: str, given: str) -> None:
    assert program(BASH, command=command).argv[2] == given.encode()


def test_the_shell_is_bash_else_sh_not_a_login_shell_in_the_workspace() -> None:
    operation = program(BASH, command="echo 'é'\n#", timeout_ms=2000)
    assert operation.argv == (b"bash", b"-c", "echo 'é'\n#".encode())
    assert operation.paths.index(b"/bin/bash") < operation.paths.index(b"/bin/sh")
    assert (operation.kind, operation.cwd) == (Kind.COMMAND, b"/workspace")
    assert operation.timeout_ms == 2000
    capture = operation.capture
    assert capture.head_bytes + capture.tail_bytes == 32 * 1024
    assert capture.artifact_bytes == LIMITS.artifact_bytes


def test_run_looks_along_the_path_of_the_sandbox() -> None:
    assert program(RUN, argv=["ls", "-l"]).paths == (b"/usr/bin/ls", b"/bin/ls")
    assert program(RUN, argv=["./ls"]).paths == (b"/workspace/ls",)
    assert program(RUN, argv=["../ls"], cwd="a").paths == (b"/workspace/a/../ls",)
    with pytest.raises(Failure) as caught:
        program(RUN, CallLimits(1000, 0), argv=["ls"])
    assert caught.value.fault.code is Code.COMMAND_NOT_FOUND


def test_a_program_is_looked_for_in_absolute_directories_only() -> None:
    path = (b"", b".", b"bin", b"../x", b"/usr/bin")
    assert program(RUN, CallLimits(1000, 0, path), argv=["ls"]).paths == (b"/usr/bin/ls",)


def test_arguments_of_all_sizes_have_one_sum() -> None:
    """Each takes its bytes, a NUL and a pointer, as execve(2) counts."""
    most = ["a" * 100_000] * (MAX_TOTAL_BYTES // 100_009)
    last = MAX_TOTAL_BYTES - len(most) * 100_009 - 9
    assert program(RUN, argv=[*most, "b" * last]).argv[-1] == b"b" * last
    with pytest.raises(Failure) as caught:
        program(RUN, argv=[*most, "b" * (last + 1)])
    assert caught.value.fault.code is Code.ARGUMENT_TOO_LARGE
    with pytest.raises(Failure) as caught:
        program(RUN, argv=[""])
    assert caught.value.fault.code is Code.INVALID_ARGUMENT


def test_of_a_long_path_as_many_directories_are_tried_as_the_guest_takes() -> None:
    search = tuple(b"/bin/%d" % number for number in range(200))
    limits = CallLimits(wall_limit_ms=1000, artifact_bytes=0, search_path=search)
    tried = program(RUN, limits, argv=["a"]).paths
    assert tried == tuple(directory + b"/a" for directory in search[:PATHS_MAX])


def test_run_without_a_limit_has_the_capabilitys() -> None:
    limits = CallLimits(wall_limit_ms=900_000, artifact_bytes=0, search_path=(b"/bin",))
    assert program(RUN, limits, argv=["a"]).timeout_ms == 900_000
    assert program(RUN, limits, argv=["a"], timeout_ms=600_000).timeout_ms == 600_000
    assert program(RUN, limits, argv=["a"], timeout_ms=900_001).timeout_ms == 900_000


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (RUN, {"argv": ["a"]}),
        (BASH, {"command": "a"}),
        (GREP, {"pattern": "a", "path": "/workspace"}),
    ],
)
def test_without_any_time_nothing_is_started(tool: AnyTool, arguments: dict[str, Any]) -> None:
    with pytest.raises(Failure) as caught:
        program(tool, CallLimits(0, 0, (b"/bin",)), **arguments)
    assert caught.value.fault.code is Code.RIGHT_NOT_GRANTED


def test_no_limit_is_longer_than_a_hundred_years() -> None:
    limits = CallLimits(wall_limit_ms=MAX_INTEGER, artifact_bytes=0, search_path=(b"/bin",))
    assert program(RUN, limits, argv=["a"]).timeout_ms == MAX_SECONDS * 1000
    assert program(RUN, limits, argv=["a"], timeout_ms=MAX_INTEGER).timeout_ms == MAX_SECONDS * 1000


def test_b41_edit_strings_reach_the_file_byte_for_byte() -> None:
    text = "$& $$ $1 \\1 \\g<0> \\n \\' %s {x}"
    arguments = parsed(EDIT, path="a", old_str=".*[x]", new_str=text)
    operation = EDIT.operation(arguments, LIMITS)
    assert isinstance(operation, EditOperation)
    assert (operation.old, operation.new) == (b".*[x]", text.encode())


def test_view_bounds() -> None:
    operation = VIEW.operation(parsed(VIEW, path="a", offset=3), LIMITS)
    assert operation == ViewOperation("/workspace/a", 3, 200, 64 * 1024, 2000)


@pytest.mark.parametrize(
    "pattern", ["--help", "-n", "-e", "--pre=/workspace/x.sh", "-f/etc/passwd"]
)
def test_b55_neither_pattern_nor_glob_nor_path_becomes_an_option(pattern: str) -> None:
    operation = program(GREP, pattern=pattern, path="-rf", glob="--no-ignore")
    assert operation.kind is Kind.SEARCH
    assert operation.argv[-4:] == (
        b"--glob=--no-ignore",
        b"--regexp=" + pattern.encode(),
        b"--",
        b"/workspace/-rf",
    )


@pytest.mark.parametrize(
    ("glob", "given"),
    [
        ("/workspace/a/*", "/a/*"),
        ("!./a", "!/a"),
        ("{/workspace/a,b/c}", "/{a,b/c}"),
        ("{{/workspace/a,./b},c}/*", "/{{a,b},c}/*"),
        # Not where a path begins.
        ("{a,b}/workspace/c", "{a,b}/workspace/c"),
        ("a{/workspace/b,c}", "a{/workspace/b,c}"),
        ("{a[,/]b,\\,/c}", "{a[,/]b,\\,/c}"),
        ("[{]/a,/b}", "[{]/a,/b}"),
        ("{[]},/a],b}", "{[]},/a],b}"),
        ("{[!],/]x,/b}", "/{[!],/]x,b}"),
        ("{\\a,/b}", "/{\\a,b}"),
    ],
)
def test_a_glob_with_whole_paths_is_relative_to_where_the_search_runs(
    glob: str, given: str
) -> None:
    operation = program(GREP, pattern="x", path="src", glob=glob)
    assert b"--glob=" + given.encode() in operation.argv


@pytest.mark.parametrize(
    "glob",
    ["/workspace", "!/workspace", "{/workspace,x}/*.py", "/workspace{/a,/b}", "{a,/workspace}"],
)
def test_a_glob_that_no_file_can_fit_is_refused(glob: str) -> None:
    with pytest.raises(Failure, match="names /workspace itself") as caught:
        program(GREP, pattern="x", path="src", glob=glob)
    assert caught.value.fault.details["field"] == "glob"
    program(GREP, pattern="x", path="/tmp", glob=glob)


@pytest.mark.parametrize(
    ("pattern", "multiline"),
    [
        ("a", False), ("a\nb", True), ("a\\nb", True), ("a\\\\nb", False), ("[^\\n]x", False),
        ("[\n]", False), ("\\[\\n", True), ("(.*\\n){0,40}x", True),
    ],
)  # fmt: skip
def test_lines_are_joined_only_for_a_pattern_that_asks_for_it(
    pattern: str, multiline: bool
) -> None:
    assert (b"--multiline" in program(GREP, pattern=pattern, path="a").argv) is multiline


def test_published_effect_levels() -> None:
    levels = {
        t.name: (t.level(connect=False), t.level(connect=True)) for t in catalog.TOOLS.values()
    }
    assert levels == {
        "bash_execute": ("A2", "A3"),
        "run": ("A2", "A3"),
        "file_view": ("A0", "A0"),
        "file_edit": ("A1", "A1"),
        "grep_search": ("A0", "A0"),
    }


def test_models_are_offered_the_four_tools() -> None:
    names = [tool.name for tool in catalog.TOOLS.values() if tool.offered]
    assert names == ["bash_execute", "file_view", "file_edit", "grep_search"]
