"""Group SECC of the cases: threads and nested sandboxes under the filter, hosts that can make no
sandbox, and git in a workspace of another owner."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.edge.client.lease import Lease
from stockade.terms.grant import Profile
from tests.cases.asking import narrower_lease, out, texts
from tests.cases.conftest import LeaseFactory
from tests.daemons import PROGRAM, WAIT_S, Daemon

PROFILES = [Profile.AGENT, Profile.STRICT]


@pytest.fixture(scope="module", params=PROFILES)
def profiled(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Lease]:
    with narrower_lease(daemon, daemon.stockade.lease, profile=request.param) as made:
        assert made.bash(":").check().provenance.profile == request.param
        yield made


# B87: threads start.

PYTHON = r"""
import threading, multiprocessing, subprocess, asyncio, concurrent.futures as f
seen = []
threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(20)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(seen), multiprocessing.Pool(2).map(abs, [-1, 2]), sum(f.ThreadPoolExecutor(4).map(abs, [-3])))
print(subprocess.run(["echo", "spawned"], capture_output=True, text=True).stdout.strip())
async def child(): return await (await asyncio.create_subprocess_exec("true")).wait()
print(asyncio.run(child()))
"""
THREADED_C = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *run(void *value) { return value; }
int main(void) {
    long answer = syscall(SYS_clone3, 0, 0);
    printf("clone3 %d\n", answer < 0 ? errno == ENOSYS : 0);
    answer = syscall(9999);
    printf("unknown %d\n", answer < 0 ? errno == ENOSYS : 0);
    pthread_t thread;
    void *value = 0;
    if (pthread_create(&thread, 0, run, "joined") || pthread_join(thread, &value)) return 1;
    puts(value);
    return 0;
}
"""
PROGRAMS = {
    "curl": "curl --version",
    "node": 'node -e \'new (require("worker_threads").Worker)("1", {eval: true})\'',
    "go": "go version",
    "cargo": "cargo --version",
    "java": "java -version",
    "perl": "perl -e 'use threads; print threads->create(sub { 7 })->join'",
    "git": "git --version",
    "openssl": "openssl version",
}


def test_b87_threads_and_children_start(profiled: Lease, tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(PYTHON)
    profiled.upload(tmp_path / "threads.py", "threads.py")
    said = out(profiled.bash("python3 threads.py", 60_000)).splitlines()
    assert said == ["20 [1, 2] 3", "spawned", "0"]


def test_b87_filtered_and_unknown_calls_are_not_there(profiled: Lease, tmp_path: Path) -> None:
    """ENOSYS is what a libc falls back from; EPERM it takes for the last word."""
    (tmp_path / "threads.c").write_text(THREADED_C)
    profiled.upload(tmp_path / "threads.c", "threads.c")
    said = out(profiled.bash("gcc -pthread -o threads threads.c && ./threads", 60_000))
    assert said == "clone3 1\nunknown 1\njoined\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_b87_programs_of_the_image_start(profiled: Lease, program: str) -> None:
    if profiled.bash(f"command -v {program}").status == "failed":
        pytest.skip(f"the host image of this machine has no {program}")
    assert profiled.bash(PROGRAMS[program], 60_000).check().exit is not None


# B89: sandboxes inside a sandbox, and hosts on which none can be made.

NESTED = {
    "a user namespace": "unshare --user --map-root-user true",
    "a mount namespace": "unshare --mount true",
    "a pid namespace": "unshare --pid --fork true",
    "a network namespace": "unshare --net true",
    "all of them": "unshare --user --mount --pid --net --ipc --uts --cgroup --fork true",
}
CLONE_C = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    long child = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    printf("%s", child < 0 ? strerrorname_np(errno) : "made");
    return 0;
}
"""


@pytest.mark.parametrize("name", NESTED)
def test_b89_nested_namespaces_are_refused_cleanly(profiled: Lease, name: str) -> None:
    """EPERM, which bwrap, Bazel, Nix and Chromium understand: they say so, or do without."""
    refused = profiled.bash(NESTED[name])
    assert refused.status == "failed"
    assert "Operation not permitted" in texts(refused)[1]


def test_b89_clone_is_refused_as_unshare_is(profiled: Lease, tmp_path: Path) -> None:
    (tmp_path / "clone.c").write_text(CLONE_C)
    profiled.upload(tmp_path / "clone.c", "clone.c")
    assert out(profiled.bash("gcc -o clone clone.c && ./clone", 60_000)) == "EPERM"


def test_b89_bubblewrap_says_what_is_refused(profiled: Lease) -> None:
    if profiled.bash("command -v bwrap").status == "failed":
        pytest.skip("the host image of this machine has no bwrap")
    refused = profiled.bash("bwrap --unshare-all --ro-bind / / true")
    assert refused.status == "failed"
    assert "No permissions to creat" in texts(refused)[1]


@pytest.mark.parametrize("program", ["strace -f -o /dev/null", "gdb -q -batch -ex run --args"])
def test_b89_debuggers_work_on_own_programs(profiled: Lease, program: str) -> None:
    if profiled.bash(f"command -v {program.split()[0]}").status == "failed":
        pytest.skip(f"the host image of this machine has no {program.split()[0]}")
    done = profiled.bash(f"{program} bash -c 'echo traced; true & wait'", 60_000).check()
    assert "traced" in texts(done)[0]


def test_b89_what_nests_is_documented_for_each_profile() -> None:
    text = (Path(__file__).parents[2] / "docs" / "images.md").read_text()
    _, _, section = text.partition("## Sandboxes inside a sandbox")
    assert section
    for word in (
        *(profile.value for profile in Profile),
        "unshare",
        "bwrap",
        "--no-sandbox",
        "gdb",
    ):
        assert word in section.split("\n## ")[0], word


# Real hosts of that kind, made of this one: what is changed is changed for the program alone.
def covered(*places: str) -> list[str]:
    """With an overlay over each place. The kernel has no idmapped mounts of overlays; a container's
    root is often one."""
    commands = [f'mount -t overlay -o "lowerdir={place}:/etc" none "{place}"' for place in places]
    return [
        *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c"),
        " && ".join([*commands, 'exec "$@"']),
        "sh",
    ]


HOSTS = {
    "not root": (
        ["unshare", "--user", "--"],
        "root: running as uid 65534: run as root",
    ),
    "no user namespaces": (
        [
            *("unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c"),
            'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"',
            "sh",
        ],
        "user namespaces: max_user_namespaces is 0: sysctl user.max_user_namespaces=10000",
    ),
    "namespaces that are forbidden in another way": (
        [
            *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c"),
            'mount --rbind / /mnt && exec chroot /mnt "$@"',
            "sh",
        ],
        "user namespaces: unshare: unshare failed: Operation not permitted: run outside of chroots",
    ),
    "a state directory that can't be idmapped": (
        covered("/var/tmp", "$PLACE"),
        "has none (mount_setattr: Invalid argument): put the state directory on ext4, xfs or btrfs",
    ),
    "programs that can't be idmapped": (
        covered("/usr"),
        "idmapped mounts: the file system of /usr has none (mount_setattr: Invalid argument): use",
    ),
}


@pytest.mark.parametrize("command", ["serve", "run", "selftest"])
@pytest.mark.parametrize("host", HOSTS)
def test_b89_a_host_that_can_not_is_found_at_the_start(
    tmp_path: Path, host: str, command: str
) -> None:
    """Before any trajectory, in one line that says what to do, and never by falling back."""
    prefix, said = HOSTS[host]
    state, socket = tmp_path / "state", tmp_path / "socket"
    arguments = {
        "serve": ["serve", "--state-dir", str(state), "--socket", str(socket)],
        "run": ["run", "--", "touch", str(tmp_path / "ran")],
        "selftest": ["selftest"],
    }
    done = subprocess.run(
        [*prefix, PROGRAM, *arguments[command]],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "STOCKADE_SOCKET": str(tmp_path / "none"), "PLACE": str(tmp_path)},
    )
    assert done.returncode == {"serve": 4, "run": 125, "selftest": 4}[command], done
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("stockade: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# B90: git in a workspace whose source belongs to somebody else.

OWNER = 12345


def git(directory: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main",
         "-c", "protocol.file.allow=always", "-C", str(directory), *arguments],
        check=True, capture_output=True, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a submodule, a change and a hook, owned by a user that isn't inside."""
    base = tmp_path_factory.mktemp("git")
    for name in ("module", "repo"):
        (base / name).mkdir()
        git(base / name, "init", "-q")
        (base / name / "f").write_text("first\n")
        git(base / name, "add", "f")
        git(base / name, "commit", "-q", "-m", f"first of {name}")
    git(base / "repo", "submodule", "--quiet", "add", str(base / "module"), "sub")
    git(base / "repo", "commit", "-q", "-m", "second of repo")
    (base / "repo" / "f").write_text("changed\n")
    hook = base / "repo" / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch /tmp/hook-ran\n")
    hook.chmod(0o755)
    for path in [base / "repo", *(base / "repo").rglob("*")]:
        os.chown(path, OWNER, OWNER, follow_symlinks=False)
    return base / "repo"


LOOK = """
git status --short && git log --format=%s && git submodule status && git diff --stat | tail -1
git -C sub log --format=%s && git -C sub status --short && cat /tmp/hook-ran 2>/dev/null; true
"""


@pytest.mark.parametrize("profile", PROFILES)
def test_b90_git_works_on_a_source_of_another_owner(
    daemon: Daemon, fresh_lease: LeaseFactory, repository: Path, profile: Profile
) -> None:
    lease = narrower_lease(
        daemon, lambda **options: fresh_lease(str(repository), **options), profile=profile
    )
    seen = []
    for _ in range(2):
        looked = lease.bash(LOOK, 60_000).check()
        assert looked.stderr is not None
        assert looked.stderr.text == ""
        seen.append(looked.stdout)
        lines = out(looked).splitlines()
        assert lines[:3] == [" M f", "second of repo", "first of repo"]
        assert " sub (" in lines[3]
        assert lines[4:] == [
            " 1 file changed, 1 insertion(+), 1 deletion(-)", "first of module",
        ]  # fmt: skip
        lease.bash(
            "git config user.name n && git config user.email e@example.org && git add f && "
            "git commit -q -m third && git checkout -q -b other && git stash list && git gc -q"
        ).check()
        assert out(lease.bash("git log -1 --format=%s")) == "third\n"
        lease.reset().check()
    assert seen[0] == seen[1]
    assert out(lease.bash("git config --system --get-all safe.directory; true")) == ""


def test_b90_the_source_is_untouched(fresh_lease: LeaseFactory, repository: Path) -> None:
    before = {
        path: (path.lstat().st_mtime_ns, path.lstat().st_uid) for path in repository.rglob("*")
    }
    lease = fresh_lease(str(repository))
    lease.bash("git add -A; git -c user.name=n -c user.email=e commit -q -m x; rm -rf f").check()
    lease.release().check()
    assert {
        path: (path.lstat().st_mtime_ns, path.lstat().st_uid) for path in repository.rglob("*")
    } == before
