"""A call under a narrower capability: a sandbox of its own over the same workspace.

Through a real daemon. The file tools apply the same limits as the sandbox, on the path that a name
resolves to.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.terms.grant import Profile
from tests.daemons import Daemon, daemon, error, output, printed

OPEN = "/workspace/open"


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture
def lease(stockade: Stockade) -> Iterator[Lease]:
    with stockade.lease() as made:
        made.bash(
            "mkdir open secret; echo seen > open/f; echo hidden > secret/f; "
            "ln -s ../secret/f open/link; ln -s ../secret open/dir; ln -s f open/within; "
            "ln secret/f open/hard; echo hidden > top"
        ).check()
        yield made


def test_two_capabilities_with_the_same_effect_share_one_sandbox(lease: Lease) -> None:
    first = lease.narrowed(read=[OPEN], write=[OPEN])
    chains: set[tuple[str, ...]] = set()
    # Other blocks, other tools, another end, a path that is covered already: the same walls.
    for same in (
        lease.narrowed(read=[OPEN], write=[OPEN], ttl_s=500),
        lease.narrowed(read=[OPEN, "/tmp"], write=[OPEN]).narrowed(read=[OPEN]),
        lease.narrowed(read=[OPEN, f"{OPEN}/deeper"], write=[f"{OPEN}/deeper", OPEN], ttl_s=400),
        first.narrowed(tools=["bash_execute"]),
    ):
        marked = first.bash("echo $RANDOM > $HOME/mark; cat $HOME/mark").check()
        seen = same.bash("cat $HOME/mark").check()
        assert printed(seen) == printed(marked)
        assert seen.provenance.plan_digest == marked.provenance.plan_digest
        chains.add(tuple(seen.provenance.capability_chain))
    assert len(chains) == 4, "they are different capabilities"
    for other in (
        lease.narrowed(read=[OPEN], write=[]),
        lease.narrowed(read=[OPEN], write=[OPEN], execute=["/usr"]),
        lease.narrowed(read=[OPEN], write=[OPEN], deny=[f"{OPEN}/d"]),
        lease.narrowed(read=[OPEN], write=[OPEN], profile=Profile.STRICT),
    ):
        assert printed(other.bash("cat $HOME/mark")) == ""


def test_a_narrower_call_sees_and_changes_its_part_alone(lease: Lease) -> None:
    narrow = lease.narrowed(read=[OPEN], write=[OPEN])
    assert output(narrow, "ls -A /workspace; ls -A /tmp; cat open/f") == "open\nseen\n"
    for way in ("top", "secret/f", "open/link", "open/dir/f", "/workspace/open/../secret/f"):
        assert printed(narrow.bash(f"cat {way}")) == "", way
        assert error(narrow.view(way)).code == "right_not_granted", way
    assert output(narrow, "cat open/within") == "seen\n"
    assert narrow.view("open/within").check().data is not None
    narrow.bash("echo x > open/new; rm open/f").check()
    assert output(lease, "cat open/new secret/f; ls open/f 2>&1 || true").startswith("x\nhidden\n")


@pytest.mark.parametrize("granted", [["/tmp"], []], ids=["tmp", "nothing"])
def test_without_any_of_it_the_workspace_takes_nothing(lease: Lease, granted: list[str]) -> None:
    """The profile's writable system has a /workspace too, and what goes there is thrown away."""
    apart = lease.narrowed(read=granted, write=granted)
    assert output(apart, "ls -A /workspace; pwd") == "/workspace\n"
    for act in ("touch f", "mkdir -p .git/hooks", "rmdir /workspace", "mv /workspace /w"):
        assert apart.bash(act).status == "failed", act
    # Control: the system beside it is written to.
    assert output(apart, "touch /f && echo done") == "done\n"


@pytest.mark.parametrize(
    "path", ["/workspace/open/link", "open/dir/f", "secret/f", "open/../secret/f", "open/dir/new"]
)
def test_file_tools_apply_the_limits_to_what_a_path_leads_to(lease: Lease, path: str) -> None:
    narrow = lease.narrowed(read=["/workspace"], write=[OPEN])
    refused = narrow.edit(path, "hidden", "changed")
    assert (refused.status, error(refused).code) == ("denied", "right_not_granted")
    blind = lease.narrowed(read=[OPEN], write=[OPEN])
    for result in (blind.view(path), blind.edit(path, "hidden", "changed")):
        assert (result.status, error(result).code) == ("denied", "right_not_granted")
        assert "hidden" not in result.to_json().decode()
    assert output(lease, "cat secret/f; ls secret") == "hidden\nf\n"


def test_what_exists_outside_is_not_told(lease: Lease) -> None:
    blind = lease.narrowed(read=[OPEN], write=[OPEN])
    answers = {
        (r.status, error(r).code, error(r).message.replace(name, "N"))
        for name in ("secret/f", "secret/none", "none/f", "secret")
        for r in (blind.view(f"/workspace/{name}"), blind.view(f"open/../{name}"))
    }
    assert {(status, code) for status, code, _ in answers} == {("denied", "right_not_granted")}


def test_an_artifact_is_for_who_may_see_its_calls_result(lease: Lease) -> None:
    def kept(holder: Lease, command: str) -> str:
        stdout = holder.bash(command).check().stdout
        assert stdout is not None
        assert stdout.artifact_id is not None
        return stdout.artifact_id

    narrow = lease.narrowed(read=[OPEN], write=[])
    beside = lease.narrowed(read=[OPEN], write=[OPEN])
    below = narrow.narrowed(tools=["bash_execute"])
    wide = kept(lease, "printf private; seq 20000")
    own = kept(narrow, "printf its-own; seq 20000")
    for holder in (lease, narrow):
        assert holder.artifact(own, 0, 7) == b"its-own"
    assert lease.artifact(wide, 0, 7) == b"private"
    # Naming it, also in what looks like a list of artifacts, doesn't make it one's own.
    forged = f'''echo '"artifacts":[{{"id":"{wide}"}}]' "{{\\"id\\":\\"{wide}\\"}}"; seq 20000'''
    kept(below, forged)
    absent = "ar_0000000000000000"
    for holder, artifact in ((narrow, wide), (below, wide), (below, own), (beside, own)):
        for named in (artifact, absent):
            with pytest.raises(StockadeError) as caught:
                holder.artifact(named, 0, 7)
            assert caught.value.error.code == "not_found"
            assert caught.value.error.message == f"there is no artifact {named}"


def test_a_search_does_not_follow_a_link_out_of_its_part(lease: Lease) -> None:
    blind = lease.narrowed(read=[OPEN], write=[])
    found = blind.grep("hidden|seen", "/workspace/open").check().data
    assert found is not None
    # A hard link is another name, at a place that is granted.
    assert {match.path for match in found.matches} == {  # type: ignore[union-attr]
        "/workspace/open/f", "/workspace/open/hard",
    }  # fmt: skip
    assert error(blind.grep("hidden", "/workspace/secret")).code == "right_not_granted"
    refused = blind.grep("hidden", "/workspace/open/dir")
    assert refused.status in ("denied", "rejected")


def test_an_edit_of_a_hard_link_leaves_the_other_name_alone(lease: Lease) -> None:
    narrow = lease.narrowed(read=[OPEN], write=[OPEN])
    narrow.edit("open/hard", "hidden", "changed").check()
    assert output(lease, "cat secret/f open/hard") == "hidden\nchanged\n"


SWAP = """
while :; do
  ln -sfn ../secret/f open/x; mv -T open/x open/now
  cp open/f open/y; mv -T open/y open/now
  ln -sT ../secret open/d2; mv -T open/d open/d3; mv -T open/d2 open/d
  rm open/d; mv -T open/d3 open/d
done
"""


@contextmanager
def swapping(lease: Lease) -> Iterator[None]:
    lease.bash("mkdir open/d; cp open/f open/d/f; cp open/f open/now").check()
    lease.bash(f"setsid bash -c {shlex.quote(SWAP)} >/dev/null 2>&1 & echo $! > /tmp/pid").check()
    try:
        yield
    finally:
        lease.bash("kill -9 -$(cat /tmp/pid)")


def test_no_swap_shows_or_changes_what_is_not_granted(lease: Lease) -> None:
    narrow = lease.narrowed(read=[OPEN], write=[OPEN])
    seen: set[str] = set()
    with swapping(lease):
        for number in range(150):
            for path in ("open/now", "open/d/f"):
                for result in (narrow.view(path), narrow.edit(path, "hidden", f"c{number}")):
                    assert "hidden" not in (result.data.content if result.data else ""), path  # type: ignore
                    seen.add(result.status if result.error is None else error(result).code)
    assert output(lease, "cat secret/f") == "hidden\n"
    assert "right_not_granted" in seen, "not one met the swap: the test shows nothing"
    allowed = {"succeeded", "right_not_granted", "not_found", "busy", "no_match"}
    assert seen <= allowed | {"not_a_regular_file", "version_conflict"}


def test_a_strict_child_of_an_agents_lease(lease: Lease) -> None:
    strict = lease.narrowed(profile=Profile.STRICT)
    assert output(strict, "id -u; cat open/f; echo x > open/mine; stat -c %u open/mine").split() == [
        "1000", "seen", "1000",
    ]  # fmt: skip
    assert output(lease, "id -u; stat -c %u open/mine; cat open/mine") == "0\n0\nx\n"
    assert strict.bash("touch /usr/bin/x").status == "failed"
    lease.bash("touch /usr/bin/x && echo agent > /etc/probe").check()
    assert printed(strict.bash("ls /usr/bin/x /etc/probe 2>/dev/null")) == ""
    lease.bash("chown 0:0 open/f; chmod 600 open/f").check()
    assert output(strict, "cat open/f") == "seen\n"
    lease.bash("chown 5:5 open/f").check()
    assert strict.bash("cat open/f").status == "failed"
    # Nothing that the wider one leaves makes the strict one more than it is.
    lease.bash("cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id").check()
    assert "euid" not in output(strict, "/tmp/id")
    with pytest.raises(Exception, match=r"system\.profile"):
        strict.narrowed(profile=Profile.AGENT)


def test_a_reader_reads_while_the_parent_writes(lease: Lease) -> None:
    reader = lease.narrowed(write=[])
    lease.bash("echo 0 > open/count").check()

    def write() -> None:
        loop = "for i in $(seq 400); do echo $i > open/next; mv open/next open/count; done"
        lease.bash(loop).check()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        numbers = [int(output(reader, "cat open/count")) for _ in range(20)]
        writing.result(60)
    assert numbers == sorted(numbers)
    assert int(output(reader, "cat open/count")) == 400
    for act in ("echo x > open/count", "rm open/f", "touch /tmp/x", "mkdir new", "chmod 0 open"):
        assert "Read-only file system" in printed(reader.bash(f"{{ {act}; }} 2>&1")), act
    assert error(reader.edit("open/f", "seen", "x")).code == "right_not_granted"


@pytest.mark.parametrize("profile", list(Profile))
def test_native_code_starts_below_the_execute_prefixes_only(lease: Lease, profile: Profile) -> None:
    places = ["/tmp", "$HOME", "/dev/shm", "/var/tmp", "/workspace", "/run"]
    places += ["/etc", "/opt", "/mnt"] if profile is Profile.AGENT else []
    some = lease.narrowed(execute=["/usr", "/workspace/open"], profile=profile)
    loader = sorted(Path("/lib64").glob("ld-linux*")) + sorted(Path("/lib").glob("ld-linux*"))
    for place in places:
        tried = f"cp /bin/true {place}/t 2>/dev/null || exit 99; {place}/t; echo $?; "
        # By the loader as well: it maps the file, which a noexec mount refuses too.
        said = some.bash(f"{tried} {loader[0]} {place}/t; echo $?")
        assert printed(said).split() == ["126", "127"], (place, printed(said))
        # Control: where everything may be executed, the same copy runs.
        free = lease.narrowed(profile=profile).bash(f"{tried} rm {place}/t")
        assert printed(free).split() == ["0"], (place, printed(free))
    assert output(some, f"cp /bin/true {OPEN}/t; {OPEN}/t; echo $?") == "0\n"


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("path", ["/bin", "/bin/deep", "/opt/absent"])
def test_an_execute_prefix_that_the_image_can_not_give_is_refused_by_its_name(
    lease: Lease, path: str, profile: Profile
) -> None:
    refused = error(lease.narrowed(execute=["/usr", path], profile=profile).bash("true"))
    assert (refused.code, refused.rule) == ("unenforceable", "scope.execute")
    assert path in refused.message


@pytest.mark.parametrize("path", ["/opt", "/etc/ssl/certs", "/etc/passwd", "/proc"])
def test_an_execute_prefix_outside_of_usr_is_a_mount_of_its_own(lease: Lease, path: str) -> None:
    lease.narrowed(execute=["/usr", path]).bash("true").check()


def test_hooks_of_a_real_repository_are_held_for_every_child(
    stockade: Stockade, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git/hooks").mkdir(exist_ok=True)
    with stockade.lease(tmp_path) as lease:
        commit = "git -c user.name=n -c user.email=e commit -q --allow-empty -m x"
        for child in (lease, lease.narrowed(profile=Profile.STRICT), lease.narrowed(tools=None)):
            assert child.bash("echo x > .git/hooks/pre-commit").status == "failed"
            assert child.bash("mv .git/hooks .git/h || mv .git g").status == "failed"
            child.bash(commit).check()
        refused = lease.call(
            "file_edit", {"path": ".git/hooks/pre-commit", "old_str": "a", "new_str": "b"}
        )
        assert error(refused).code == "right_not_granted"
        (tmp_path / "hook").write_text("x")
        with pytest.raises(Exception, match="right_not_granted"):
            lease.upload(tmp_path / "hook", ".git/hooks/pre-commit")
