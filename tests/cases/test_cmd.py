"""Group CMD of the cases: getting a command, its arguments and its environment across."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import ToolError
from stockade.terms.grant import Profile
from tests.cases.asking import cli, code, error_code, narrower_lease, out, texts
from tests.cases.conftest import LeaseFactory
from tests.daemons import PROGRAM, WAIT_S, Daemon

MAX_ARGUMENT = 131_071
MIB = 1024 * 1024
COUNT = 'printf %s "$1" | wc -c'


# B22: sizes.


def test_b22_the_largest_argument_gets_across(daemon: Daemon, lease: Lease) -> None:
    argument = "x" * MAX_ARGUMENT
    assert out(lease.run(["bash", "-c", COUNT, "bash", argument])).strip() == str(MAX_ARGUMENT)
    done = cli(daemon, "run", "--", "bash", "-c", COUNT, "bash", argument)
    assert (done.returncode, done.stdout.strip()) == (0, str(MAX_ARGUMENT).encode())


@pytest.mark.parametrize("size", [131_072, 200_000, 3 * MIB])
def test_b22_a_larger_argument_is_refused_before_anything_starts(lease: Lease, size: int) -> None:
    result = lease.run(["touch", "ran", "x" * size])
    assert result.status.value == "invalid"
    assert error_code(result) == "argument_too_large"
    assert result.error is not None
    assert str(size) in result.error.message
    assert str(MAX_ARGUMENT) in result.error.message
    assert "file" in result.error.hint
    assert out(lease.bash("ls")) == ""


def test_b22_an_argument_counts_in_bytes(lease: Lease) -> None:
    assert error_code(lease.run(["true", "é" * 65_536])) == "argument_too_large"
    assert code(lease.run(["true", "é" * 65_535])) == 0


def test_b22_many_arguments_are_bounded_together(lease: Lease) -> None:
    fits = lease.run(["bash", "-c", "echo $#", "bash", *["x" * 100_000] * 19])
    assert out(fits) == "19\n"
    assert out(lease.run(["bash", "-c", "echo $#", "bash", *"x" * 20_000])) == "20000\n"
    result = lease.run(["touch", "ran", *["x" * 100_000] * 25])
    assert result.status.value == "invalid"
    assert error_code(result) == "argument_too_large"
    assert out(lease.bash("ls")) == ""


def test_b22_what_no_request_can_hold_is_refused(lease: Lease) -> None:
    result = lease.run(["true", *["x" * 100_000] * 50])
    assert result.status.value == "invalid"
    assert error_code(result) == "body_too_large"


def test_b22_the_command_line_says_it_in_one_line(daemon: Daemon, tmp_path: Path) -> None:
    """The kernel lets a caller with a large stack pass more than a sandbox can take."""
    many = tmp_path / "many.py"
    many.write_text(
        "import os, sys\nos.execv(sys.argv[1], [*sys.argv[1:], *['x' * 100_000] * 25])\n"
    )
    limit = 64 * MIB
    done = subprocess.run(
        [
            *("prlimit", f"--stack={limit}:{limit}", "python3", str(many)),
            *(PROGRAM, "run", "--socket", daemon.socket, "--", "touch", "ran"),
        ],
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 125
    assert done.stdout == b""
    first, *_ = done.stderr.decode().splitlines()
    assert "arguments have" in first
    assert "Traceback" not in done.stderr.decode()


def test_b22_a_long_command_is_refused_with_a_way_out(lease: Lease) -> None:
    fits = ": " + "x" * 8_190
    assert code(lease.bash(fits)) == 0
    result = lease.bash("touch ran # " + "x" * 8_192)
    assert result.status.value == "invalid"
    assert error_code(result) == "argument_too_large"
    assert result.error is not None
    assert "8192" in result.error.message
    assert "file" in result.error.message
    assert out(lease.bash("ls")) == ""


def test_b22_files_and_edits_of_documented_size(lease: Lease, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (3 * MIB // 256))
    lease.upload(large, "/workspace/large")
    back = tmp_path / "back"
    lease.download("/workspace/large", back)
    assert back.read_bytes() == large.read_bytes()
    old, new = "a" * 200 * 1024, "b" * 200 * 1024
    text = tmp_path / "text"
    text.write_text(f"first\n{old}\nlast\n")
    lease.upload(text, "/workspace/text")
    lease.file_edit("/workspace/text", old, new).check()
    lease.download("/workspace/text", back)
    assert back.read_text() == f"first\n{new}\nlast\n"
    over = lease.file_edit("/workspace/text", "first", "c" * (MIB + 1))
    assert over.status.value == "invalid"
    assert error_code(over) == "argument_too_large"
    lease.bash("rm large text").check()


def test_b22_one_environment_value(fresh_lease: LeaseFactory) -> None:
    largest = 131_071 - len("BIG=")
    lease = fresh_lease(env={"BIG": "x" * largest})
    assert out(lease.bash("echo ${#BIG}")) == f"{largest}\n"
    for env in ({"BIG": "x" * (largest + 1)}, {f"V{n}": "x" * 100_000 for n in range(3)}):
        with pytest.raises(ToolError) as refused:
            fresh_lease(env=env)
        assert refused.value.error.code.value == "argument_too_large"


# B23: nothing is glued to a command.

SAME_AS_A_SCRIPT = {
    "heredoc": "cat <<EOF\nin it\nEOF",
    "heredoc without end": "cat <<EOF\nin it",
    "comment": "echo one # note",
    "only a comment": "# note",
    "backslash": "echo one \\",
    "two backslashes": "echo one \\\\",
    "unclosed quote": "echo 'one",
    "unclosed double quote": 'echo "one',
    "unclosed substitution": "echo $(echo one",
    "unclosed if": "if true; then echo one",
    "background": "echo one &",
    "carriage returns": "echo one\r\necho two\r\n",
    "newlines first": "\n\n\necho one",
    "blanks only": "  \n\t\n",
    "option": "-x",
    "long option": "--help",
    "two dashes": "-- echo one",
    "plus option": "+x",
    "dash": "-",
    "syntax error": "echo one; )",
    "syntax error in line 3": "echo one\necho two\nfi",
    "exit in a trap": "trap 'echo bye; exit 7' EXIT; echo one",
    "no newline at the end": "printf one",
    "history": "echo one!two '!'",
    "not ascii": "echo 'é 🦆'",
    "line number": "\n\necho $LINENO",
    "marker": "echo '[... 7 bytes omitted ...]'; echo exit=0; exit 3",
    "result": 'echo \'{"schema": "stockade.result/1", "status": "succeeded"}\'; exit 4',
}


@pytest.mark.parametrize("name", SAME_AS_A_SCRIPT)
def test_b23_a_command_does_what_it_does_as_a_script(
    lease: Lease, tmp_path: Path, name: str
) -> None:
    command = SAME_AS_A_SCRIPT[name]
    script = tmp_path / "script"
    script.write_bytes(command.encode())
    lease.upload(script, "/tmp/script")
    expected = lease.run(["bash", "/tmp/script"], timeout_ms=20_000)
    result = lease.bash(command, timeout_ms=20_000)
    assert result.exit is not None
    assert expected.exit is not None
    if name in ("unclosed substitution", "heredoc without end", "unclosed if"):
        # bash itself words these after where the text comes from.
        assert (result.exit.code == 0) == (expected.exit.code == 0)
    else:
        assert result.exit == expected.exit
    assert texts(result)[0] == texts(expected)[0]
    assert _without_name(texts(result)[1]) == _without_name(texts(expected)[1])


def _without_name(stderr: str) -> list[str]:
    """bash's messages without what it calls the script."""
    lines = [
        line.replace("/tmp/script: ", "").replace("bash: ", "") for line in stderr.splitlines()
    ]
    lines = [line.replace("-c: ", "") for line in lines]
    return [line for line in lines if not line.startswith("line 1: `")]


def test_b23_a_syntax_error_is_bashs_own(lease: Lease) -> None:
    result = lease.bash("echo one; )")
    assert code(result) == 2
    assert "syntax error near unexpected token" in texts(result)[1]


# B25: the environment.


def test_b25_the_images_environment_is_kept(lease: Lease) -> None:
    seen = dict(line.split("=", 1) for line in out(lease.run(["env"])).splitlines())
    assert seen == {
        "PATH": seen["PATH"],
        "HOME": "/root",
        "USER": "root",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "TZ": "UTC",
    }
    assert {"/usr/bin", "/usr/sbin"} <= set(seen["PATH"].split(":"))
    asked = "shopt -q login_shell; echo $?; echo $-; [ -t 0 ]; echo $?; echo $PATH"
    login, flags, terminal, path = out(lease.bash(asked)).splitlines()
    assert (login, terminal, path) == ("1", "1", seen["PATH"])
    assert "i" not in flags


def test_b25_a_leases_own_path_wins_over_the_shells_start_files(
    fresh_lease: LeaseFactory,
) -> None:
    lease = fresh_lease(env={"PATH": "/workspace/bin:/usr/bin:/bin", "FOO": "1"})
    make = (
        "mkdir bin; printf '#!/bin/sh\\necho found $FOO\\n' > bin/t; chmod +x bin/t; "
        "echo PATH=/nowhere > /etc/profile; echo PATH=/nowhere > ~/.bashrc; "
        "cp ~/.bashrc ~/.profile; cp ~/.bashrc ~/.bash_profile"
    )
    lease.bash(make).check()
    assert out(lease.bash("which t; t; echo $FOO $HOME $USER")) == (
        "/workspace/bin/t\nfound 1\n1 /root root\n"
    )
    assert out(lease.run(["t"])) == "found 1\n"


def test_b25_home_is_writable_for_every_profile(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    for profile, uid in ((Profile.AGENT, "0"), (Profile.STRICT, "1000")):
        lease = narrower_lease(daemon, fresh_lease, profile=profile)
        text = out(lease.bash("id -u; id -un; echo $USER; cd; pwd; touch f && echo written"))
        number, name, user, home, written = text.splitlines()
        assert number == uid
        assert name == user, "USER is the name of the user id"
        assert written == "written"
        assert out(lease.bash("echo $HOME")) == home + "\n"


def test_b25_a_user_id_without_a_name_works(lease: Lease) -> None:
    """Programs that change their user keep the environment that they were given."""
    change = "import os; os.setgid(4242); os.setuid(4242); os.execvp('sh', ['sh', '-c', "
    asked = "id -u; echo $HOME; which env; test -w /tmp && echo scratch"
    shown = out(lease.run(["python3", "-c", f"{change}{asked!r}])"]))
    assert shown == "4242\n/root\n/usr/bin/env\nscratch\n"


# B26: the locale.


def test_b26_text_is_utf8(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    assert out(lease.bash("python3 -c \"print('\\u00e9')\"")) == "é\n"
    assert out(lease.bash("touch 'été'; ls")) == "été\n"
    assert out(lease.bash("printf 'é\\nz\\na\\n' | sort")) == "a\nz\né\n"
    assert out(lease.bash("x=été; echo ${#x}")) == "3\n"
    encodings = "import sys, locale; print(sys.stdout.encoding, sys.getfilesystemencoding())"
    assert out(lease.run(["python3", "-c", encodings])) == "utf-8 utf-8\n"


def test_b26_the_locale_can_be_chosen(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease(env={"LANG": "C", "LC_ALL": "POSIX"})
    assert out(lease.bash("echo $LANG $LC_ALL; x=été; echo ${#x}")) == "C POSIX\n5\n"
