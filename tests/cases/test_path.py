"""Group PATH of the cases: file tools stay in the workspace, and nothing of the host is inside."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError
from stockade.terms.grant import Profile
from tests.cases.asking import error_code, narrower_lease, out
from tests.cases.conftest import LeaseFactory
from tests.daemons import Daemon, until

CANARY = "canary-of-the-host"


@pytest.fixture
def host_dir() -> Iterator[Path]:
    """A directory of the host that has no counterpart inside, as one below /tmp would."""
    with tempfile.TemporaryDirectory(prefix="stockade-cases-", dir="/var/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def content(result: Result) -> str:
    """The lines of a view without their numbers."""
    assert result.check().data is not None
    assert result.data.kind == "file_view"  # type: ignore[union-attr]
    return "".join(
        line.split("\t", 1)[1]
        for line in result.data.content.splitlines(keepends=True)  # type: ignore[union-attr]
    )


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(StockadeError) as caught:
        act()
    return caught.value.error.code.value


def codes(lease: Lease, path: str, here: Path) -> set[str]:
    """What every way to a file answers."""
    (here / "up").write_text("up")
    found = {
        error_code(lease.file_view(path)),
        error_code(lease.file_edit(path, "root", "toor")),
        error_code(lease.grep_search(".", path)),
        refused(lambda: lease.download(path, here / "down")),
        refused(lambda: lease.upload(here / "up", path)),
    }
    assert not (here / "down").exists()
    return found


# B48: what a path names.

TREE = r"""
mkdir -p /workspace-evil '~' directory; echo evil > /workspace-evil/x; echo root > x
echo tilde > '~/x'; echo deep > directory/x; ln -s directory link; ln -s /tmp to-tmp
echo temporary > /tmp/x; ln -s /workspace/directory absolute; ln -s .. up; ln -s loop loop
"""


@pytest.fixture(scope="module")
def tree(daemon: Daemon) -> Iterator[Lease]:
    with daemon.stockade.lease() as made:
        made.bash(TREE, 60_000).check()
        yield made


@pytest.mark.parametrize(
    "path",
    [
        "/workspace-evil/x", "/workspace/../workspace-evil/x", "../workspace-evil/x",
        "/workspace//../etc/passwd", "/workspace/directory/../../etc/passwd", "/etc/passwd",
        "/tmp/../etc/passwd", "//etc/passwd", "/WORKSPACE/x", "/workspac", "/tmpx", "/",
        "/proc/self/root/etc/passwd", "/proc/1/environ", "/dev/fd/0", "up/etc/passwd",
    ],
)  # fmt: skip
def test_b48_a_sibling_and_a_way_out_are_refused_alike(
    tree: Lease, tmp_path: Path, path: str
) -> None:
    assert codes(tree, path, tmp_path) == {"outside_workspace"}


@pytest.mark.parametrize(
    "path",
    ["a\0b", "x\n", "\x1b[31m", "\\", "\\x4", "\\x00", "/workspace/" + "a/" * 2500, "a" * 300],
)
def test_b48_a_name_that_can_not_be_is_invalid(tree: Lease, tmp_path: Path, path: str) -> None:
    assert codes(tree, path, tmp_path) == {"invalid_argument"}


def test_b48_an_empty_path_is_invalid(tree: Lease) -> None:
    assert error_code(tree.file_view("")) == "invalid_argument"
    assert error_code(tree.file_edit("", "a", "b")) == "invalid_argument"
    assert error_code(tree.grep_search("a", "")) == "invalid_argument"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("x", "root"), ("./x", "root"), ("/workspace/./x", "root"), ("//workspace//x", "root"),
        ("/workspace/x/", "root"), ("directory/../x", "root"), ("../workspace/x", "root"),
        ("/tmp/../workspace/x", "root"), (r"\x78", "root"), ("up/workspace/x", "root"),
        ("~/x", "tilde"), ("link/x", "deep"), ("absolute/x", "deep"), ("link/../x", "root"),
        ("to-tmp/x", "temporary"), ("/tmp/x", "temporary"), ("to-tmp/../workspace/x", "root"),
    ],
)  # fmt: skip
def test_b48_every_spelling_of_a_path_inside_leads_there(
    tree: Lease, tmp_path: Path, path: str, says: str
) -> None:
    assert content(tree.file_view(path)) == f"{says}\n"
    tree.download(path, tmp_path / "down")
    assert (tmp_path / "down").read_text() == f"{says}\n"
    found = tree.grep_search(says, path).check().data
    assert found is not None
    assert found.kind == "grep_search"
    assert found.matches_total == 1
    tree.file_edit(path, says, "changed").check()
    tree.upload(tmp_path / "down", path)
    assert content(tree.file_view(path)) == f"{says}\n"


@pytest.mark.parametrize("path", ["missing", "missing/../x", "x/y", "loop", "loop/x", "link/none"])
def test_b48_what_is_not_there_is_not_found(tree: Lease, path: str) -> None:
    for result in (
        tree.file_view(path),
        tree.file_edit(path, "a", "b"),
        tree.grep_search("a", path),
    ):
        assert error_code(result) == "not_found"


def test_b48_a_long_path_is_refused_as_fast_as_a_short_one(
    tree: Lease, fresh_lease: LeaseFactory
) -> None:
    """A path of two thousand directories that exist, and ends in a name that doesn't."""
    lease = fresh_lease()
    dig = "import os\nfor _ in range(2000): os.mkdir('d'); os.chdir('d')"
    lease.bash(f"python3 -c {shlex.quote(dig)}", 60_000).check()
    started = time.monotonic()
    assert error_code(lease.file_view("d/" * 2000 + "x")) == "not_found"
    assert time.monotonic() - started < 5


# B49: links.

LINKS = r"""
ln -s /etc/passwd l; ln -s / root; ln -s /proc/1/root proc-root; ln -s /proc/self/cwd cwd
mkdir m; ln -s ../../etc m/middle; ln -s m/middle chain; ln -s /workspace/root/etc twice
ln -s /proc/self/root/etc magic; ln -s ../../../../../../../../../../../../etc climb
"""
THROUGH = [
    "l", "root/etc/passwd", "proc-root/etc/passwd", "m/middle/passwd", "chain/passwd",
    "twice/passwd", "magic/passwd", "cwd/x", "climb/passwd", "root/proc/self/root/etc/passwd",
]  # fmt: skip


def test_b49_no_link_leads_out(fresh_lease: LeaseFactory, tmp_path: Path) -> None:
    lease = fresh_lease()
    lease.bash(LINKS, 60_000).check()
    for path in THROUGH:
        assert codes(lease, path, tmp_path) == {"outside_workspace"}, path
    assert os.stat("/etc/passwd").st_size > 0
    assert "agent:" in out(lease.bash("cat l"))  # inside, the link leads to the image's own file


def test_b49_a_search_follows_no_link_it_meets(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    lease.bash(LINKS + "echo root > plain", 60_000).check()
    found = lease.grep_search("root", ".").check().data
    assert found is not None
    assert found.kind == "grep_search"
    assert [match.path for match in found.matches] == ["/workspace/plain"]


def test_b49_a_source_with_links_takes_nothing_of_the_host_along(
    fresh_lease: LeaseFactory, host_dir: Path
) -> None:
    source, other = host_dir / "source", host_dir / "other"
    (source / "directory").mkdir(parents=True)
    other.mkdir()
    (other / "secret").write_text(CANARY)
    (source / "file").symlink_to(other / "secret")
    (source / "directory" / "up").symlink_to("../../other")
    lease = fresh_lease(str(source))
    assert CANARY not in out(lease.bash("cat file directory/up/secret 2>/dev/null; true"))
    for path in ("file", "directory/up/secret"):
        assert error_code(lease.file_view(path)) == "outside_workspace"
    # Nor back: what became of the links is written beside no file of the host.
    lease.bash("rm file directory/up; ln -s ../../other directory/up; ln -s /etc/passwd file")
    lease.bash("ln -s ../other new; mkdir -p real; echo evil > real/secret").check()
    lease.export_to(source).check()
    assert (other / "secret").read_text() == CANARY
    assert not (source / "new").is_symlink()
    assert (source / "real" / "secret").read_text() == "evil\n"


# B51: a component that changes between two looks.


def test_b51_no_host_file_is_read_or_written_while_links_are_swapped(
    fresh_lease: LeaseFactory, host_dir: Path
) -> None:
    outside = host_dir / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (outside / "f").write_text(CANARY)
    target, source = host_dir / "target", host_dir / "source"
    for directory in (target, source):
        (directory / "d").mkdir(parents=True)
        (directory / "d" / "f").write_text("inside\n")
    (host_dir / "up").write_text("uploaded\n")
    lease = fresh_lease(str(source))
    swap = (
        f"ln -sfn {shlex.quote(str(outside))} /tmp/l; i=0\n"
        "while [ ! -e stop ]; do\n"
        f"  rm -rf d; ln -sfn {shlex.quote(str(outside))} d; rm d\n"
        "  ln -s /etc d; rm d; ln -s ../../../../../../../etc d; rm d; ln -s /tmp/l d; rm d\n"
        "  mkdir d; echo inside > d/f; i=$((i+1))\n"
        "done; echo $i"
    )
    seen: set[str] = set()
    stop = threading.Event()

    def note(act: Callable[[], object]) -> None:
        try:
            act()
        except StockadeError as error:
            seen.add(error.error.code.value)

    def transfer(number: int) -> None:
        down = host_dir / f"down-{number}"
        for _ in range(250):
            note(lambda: lease.download("d/f", down))
            if down.exists():
                seen.add(down.read_text())
                down.unlink()
            note(lambda: lease.upload(host_dir / "up", "d/f"))

    def look() -> None:
        for _ in range(500):
            result = lease.file_view("d/f")
            seen.add(content(result) if result.error is None else error_code(result))
            lease.file_edit("d/f", "inside", "edited")
            lease.file_edit("d/f", CANARY, "edited")
            lease.file_edit("d/passwd", "root", "edited")

    def give_back() -> None:
        while not stop.is_set():
            note(lambda: seen.add("canary" if CANARY.encode() in lease.export_patch() else ""))
            lease.export_to(target)  # refused while the tree is moved under it

    with ThreadPoolExecutor(6) as pool:
        swapping = pool.submit(lease.bash, swap, 120_000)
        backwards = pool.submit(give_back)
        works = [pool.submit(transfer, 1), pool.submit(transfer, 2), pool.submit(look)]
        wait(works)
        stop.set()
        wait([backwards])
        lease.bash("touch stop").check()
        for work in (*works, backwards):
            work.result()
        assert int(out(swapping.result())) > 20
    assert (outside / "f").read_text() == CANARY
    assert sorted(os.listdir(outside)) == ["f"]
    assert "inside\n" in seen
    assert seen <= {
        "inside\n", "edited\n", "uploaded\n", "", "outside_workspace", "not_found",
        "not_a_regular_file", "busy", "version_conflict", "workspace_unavailable",
        "connection_lost",  # the file became shorter while it was sent
    }, seen  # fmt: skip
    assert (
        CANARY
        not in subprocess.run(
            ["grep", "-rs", CANARY, str(target)], capture_output=True, text=True, check=False
        ).stdout
    )
    assert not (target / "d").is_symlink()


# B54: secrets.

LOOK = r"""
env
for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/maps; do
  tr '\0' '\n' < $f
done
ls -laR /run /workspace /root /home /tmp
cat /proc/self/mountinfo /proc/1/cgroup /proc/net/unix /proc/cmdline
cat /run/secrets/* /etc/environment
find / -xdev -type f -newermt '1 hour ago' -not -path '/proc/*' -exec cat {} +
"""


@pytest.mark.parametrize("profile", [Profile.AGENT, Profile.STRICT])
def test_b54_no_secret_of_the_daemon_is_inside(
    daemon: Daemon, fresh_lease: LeaseFactory, profile: Profile
) -> None:
    lease = narrower_lease(daemon, fresh_lease, profile=profile)
    assert lease.token is not None
    found = lease.bash(LOOK + "\ntrue", 60_000).check()
    assert found.stdout is not None
    text = found.stdout.text
    if found.stdout.artifact_id is not None:
        text = lease.artifact(found.stdout.artifact_id).decode(errors="replace")
    keys = (daemon.state / "keys.json").read_text()
    assert "HOME=" in text
    assert "/run/stockade/guest" in text
    for secret in (
        daemon.environment["SECRET_X"],
        lease.token,
        *(word for word in keys.split('"') if len(word) > 20),
    ):
        assert secret not in text
    assert "SECRET_X" not in text.replace(LOOK, "")
    assert lease.bash("ls /run/secrets").status == "failed"


def test_b54_no_secret_is_on_a_command_line_of_the_host(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    """Watched while leases are made and called: no process of the host ever shows one in its
    arguments, and none below the daemon has the daemon's environment."""
    stop = threading.Event()
    arguments: set[bytes] = set()
    environments: dict[int, bytes] = {}

    def watch() -> None:
        while not stop.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    arguments.add((process / "cmdline").read_bytes())
                    if int(process.name) not in (daemon.pid, os.getpid()):
                        environments[int(process.name)] = (process / "environ").read_bytes()
                except OSError:
                    continue  # it has ended

    watcher = threading.Thread(target=watch)
    watcher.start()
    tokens = []
    for _ in range(3):
        lease = fresh_lease(env={"GIVEN": "by the lease"})
        assert lease.token is not None
        tokens.append(lease.token.encode())
        assert out(lease.bash("echo $GIVEN")) == "by the lease\n"
        lease.grep_search("x", ".").check()
    stop.set()
    watcher.join()
    assert any(b"/run/stockade/guest" in line for line in arguments)
    secret = daemon.environment["SECRET_X"].encode()
    for line in arguments:
        assert secret not in line
        assert not any(token in line for token in tokens)
    inherited = {pid for pid, environment in environments.items() if secret in environment}
    # setpriv, of which the daemon is the program, is the same process; nobody else has it.
    assert inherited <= {daemon.pid}


def test_b54_logs_hold_no_secret(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    assert lease.token is not None
    lease.bash("echo argument-that-is-private; exit 3")
    lease.file_view("name-that-is-private")

    def told() -> bool:
        return any(lease.id in line and "file_view" in line for line in daemon.log.lines)

    until(told, "the last line is written")
    log = "\n".join(daemon.log.lines)
    for private in (lease.token, daemon.environment["SECRET_X"], "that-is-private"):
        assert private not in log
