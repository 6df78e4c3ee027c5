"""What every sandbox has, one test each, seen from inside on the real kernel (docs/design.md 6).

Each claim that something is refused has a positive control beside it: the same act where it is
allowed, so that a test can't pass because its probe is broken.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator

import pytest

from stockade.terms.grant import Profile
from tests.security.inside import Inside, enter, grant_for, python
from tests.worlds import OciWorld

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@pytest.fixture(scope="module", params=list(Profile))
def inside(request: pytest.FixtureRequest, oci_world: OciWorld) -> Iterator[Inside]:
    made = enter(oci_world, grant_for(oci_world, request.param))
    yield made
    made.sandbox.close()
    oci_world.engine.release(made.tree.lease_id)


@pytest.fixture(scope="module")
def agent(oci_world: OciWorld) -> Iterator[Inside]:
    made = enter(oci_world, grant_for(oci_world, Profile.AGENT))
    yield made
    made.sandbox.close()
    oci_world.engine.release(made.tree.lease_id)


@pytest.fixture(scope="module")
def strict(oci_world: OciWorld) -> Iterator[Inside]:
    made = enter(oci_world, grant_for(oci_world, Profile.STRICT))
    yield made
    made.sandbox.close()
    oci_world.engine.release(made.tree.lease_id)


@pytest.mark.parametrize("kind", ["pid", "ipc", "uts", "cgroup", "mnt", "net", "user"])
def test_every_namespace_is_its_own(inside: Inside, kind: str) -> None:
    own = inside.says(f"readlink /proc/self/ns/{kind}")
    assert own.startswith(f"{kind}:[")
    assert own != os.readlink(f"/proc/self/ns/{kind}")


def test_user_ids_are_a_range_of_the_lease(inside: Inside) -> None:
    lines = [line.split() for line in inside.says("cat /proc/self/uid_map").splitlines()]
    base = inside.tree.uid_base
    assert sum(int(length) for _, _, length in lines) == 65_536
    assert all(base <= int(host) < base + 65_536 for _, host, _ in lines)


def test_identity_is_the_profiles(agent: Inside, strict: Inside) -> None:
    assert agent.says("id -u; id -g").split() == ["0", "0"]
    assert strict.says("id -u; id -g").split() == ["1000", "1000"]


def test_files_belong_to_the_lease_whoever_made_them(agent: Inside, strict: Inside) -> None:
    for made in (agent, strict):
        assert made.run("touch /workspace/mine").value == 0
        assert made.says("stat -c %u /workspace/mine") == made.says("id -u")
        state = os.stat("workspace/mine", dir_fd=made.tree.root_fd)
        assert (state.st_uid, state.st_gid) == (made.tree.uid_base, made.tree.uid_base)


def test_no_new_privileges_and_one_filter(inside: Inside) -> None:
    status = inside.says("cat /proc/self/status")
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


def test_capabilities_are_the_profiles(agent: Inside, strict: Inside) -> None:
    # CHOWN DAC_OVERRIDE FOWNER FSETID SETGID SETUID: bits 0 1 3 4 6 7.
    assert "CapBnd:\t00000000000000db" in agent.says("cat /proc/self/status")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in strict.says("cat /proc/self/status")


def test_every_mount_that_holds_files_is_nosuid_and_nodev(inside: Inside) -> None:
    for line in inside.says("cat /proc/self/mounts").splitlines():
        _, place, kind, options, *_ = line.split()
        if place.startswith(("/proc", "/sys")):
            assert kind in ("proc", "sysfs") or "ro" in options.split(","), line
            continue  # the runtime's masks; nothing can be put there
        assert "nosuid" in options.split(","), line
        device = place == "/dev" or place.removeprefix("/dev/") in DEVICES or kind == "devpts"
        assert "nodev" in options.split(",") or device, line
    # A device file can't be made in /dev either.
    assert inside.run("mknod /dev/shm/m c 1 1 || mknod /dev/m c 1 1").value != 0


def test_only_three_descriptors_are_inherited(inside: Inside) -> None:
    assert inside.says(
        "for f in /proc/self/fd/*; do [ -e $f ] && echo ${f##*/}; done | sort -n"
    ) in (
        "0\n1\n2",
        "0\n1\n2\n255",
    )


def test_stdin_is_empty_and_there_is_no_terminal(inside: Inside) -> None:
    assert inside.says("readlink /proc/self/fd/0") == "/dev/null"
    assert inside.run("exec 3</dev/tty").value != 0
    assert inside.says("ps -o tty= -p $$ 2>/dev/null || cut -d' ' -f7 /proc/self/stat") in (
        "?",
        "0",
    )


def test_environment_is_an_allow_list(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {line.split("=")[0] for line in inside.says("env").splitlines()}
    assert names <= {
        "PATH", "HOME", "USER", "SHELL", "TMPDIR", "LANG", "TZ", "TERM", "PWD", "SHLVL", "_",
    }  # fmt: skip
    assert inside.says("echo $LANG $TZ $TERM") == "C.UTF-8 UTC dumb"


@pytest.mark.parametrize(
    "place", ["$HOME", "/tmp", "/dev/shm", "/workspace", "$TMPDIR", "/var/tmp"]
)
def test_places_that_programs_expect_are_writable(inside: Inside, place: str) -> None:
    assert inside.run(f"echo x > {place}/probe && rm {place}/probe").value == 0


def test_system_is_read_only_in_strict_and_thrown_away_in_agent(
    agent: Inside, strict: Inside
) -> None:
    assert strict.run("echo x > /usr/probe").value != 0
    assert strict.run("echo x > /etc/probe").value != 0
    assert agent.run("echo x > /usr/probe && echo x > /etc/probe && rm /usr/bin/awk").value == 0
    assert not os.path.exists("/usr/probe")
    assert os.path.lexists("/usr/bin/awk")


def test_network_is_loopback_and_nothing_else(inside: Inside) -> None:
    assert inside.says("ls /sys/class/net") == "lo"
    assert inside.says("cat /proc/net/route | wc -l") == "1"
    probe = "exec 3<>/dev/tcp/{} 2>&1"
    assert "unreachable" in inside.says(probe.format("192.0.2.1/80"))
    assert "unreachable" in inside.says(probe.format("169.254.169.254/80"))
    # Positive control: loopback answers, with a refusal that only a live interface gives.
    assert "refused" in inside.says(probe.format("127.0.0.1/9"))


def test_unprivileged_ports_begin_at_zero(inside: Inside) -> None:
    bind = "import socket; s=socket.socket(); s.bind(('127.0.0.1',80)); print('bound')"
    assert inside.says(f'python3 -c "{bind}"') == "bound"


def test_sysfs_is_the_sandboxes_own_and_read_only(inside: Inside) -> None:
    assert inside.run("echo x > /sys/power/state").value != 0
    line = inside.says("grep ' /sys ' /proc/mounts")
    assert " sysfs " in line
    assert "ro," in line.split()[3] + ","


def test_no_cgroup_file_system_inside(inside: Inside) -> None:
    assert "cgroup" not in inside.says("cut -d' ' -f3 /proc/mounts")
    names = {line.split(":")[2] for line in inside.says("cat /proc/self/cgroup").splitlines()}
    assert all("stockade" not in name and "ls_" not in name for name in names)


@pytest.mark.parametrize(
    "path",
    [
        *("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/fs", "/proc/partitions"),
        *("/proc/diskstats", "/proc/interrupts", "/sys/firmware", "/sys/fs/ext4"),
    ],
)
def test_masked_paths_show_nothing(inside: Inside, path: str) -> None:
    line = f"if [ -d {path} ]; then ls -A {path}; elif [ -e {path} ]; then cat {path}; fi"
    assert inside.says(line) == ""


def test_proc_sys_is_read_only(inside: Inside) -> None:
    assert inside.run("echo 1 > /proc/sys/kernel/core_pattern").value != 0
    assert inside.run("echo c > /proc/sysrq-trigger").value != 0


def test_processes_of_the_host_are_not_there(inside: Inside) -> None:
    seen = [int(pid) for pid in inside.says("cd /proc; ls -d [0-9]*").split()]
    assert len(seen) < 12
    assert inside.says("tr '\\0' ' ' </proc/1/cmdline").startswith("/run/stockade/guest")


def test_guest_is_out_of_reach(inside: Inside) -> None:
    for name in ("mem", "environ", "exe", "root", "maps", "fd/3"):
        assert inside.run(f"exec 3</proc/1/{name}").value != 0, name
    assert inside.run("kill -9 1; kill -STOP 1; kill -TERM 1").value == 0
    assert inside.says("echo alive") == "alive"
    # Positive control: the same file of a process that may be looked at.
    assert inside.run("exec 3</proc/self/environ").value == 0


def test_host_files_are_not_there(inside: Inside) -> None:
    for path in ("/etc/shadow", "/root/.ssh", "/var/lib/dpkg", "/var/run/docker.sock"):
        assert inside.run(f"test -e {path}").value != 0, path
    assert inside.run("test -e /etc/passwd").value == 0


def test_nothing_inside_names_a_place_of_the_host_or_a_lease(inside: Inside) -> None:
    files = "/proc/self/mountinfo /proc/self/mounts /proc/1/mountinfo /proc/self/cgroup"
    seen = inside.says(f"cat {files}; env; set; cat /proc/*/cmdline | tr '\\0' ' '; df -a; mount")
    for name in (str(inside.world.state), inside.tree.lease_id, inside.world.instance.id):
        assert name not in seen, name
    for line in inside.says("cat /proc/self/mountinfo").splitlines():
        # The fourth field is the source's path within its file system.
        root, point, kind = line.split()[3], line.split()[4], line.split(" - ")[1].split()[0]
        own = ("/", point.removeprefix("/workspace"), *(f"/{name}" for name in DEVICES))
        assert root in own or kind == "proc", line
        assert kind in ("overlay", "tmpfs", "proc", "sysfs", "devpts"), line


WATCH = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
watched = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/proc/self/fd/0"]
for path in ("/usr/bin/env", "/etc/ssl/certs", "/run/stockade/rg", *watched, sys.argv[1]):
    assert libc.inotify_add_watch(fd, path.encode(), 0xfff) > 0, path
print("watching", flush=True)
open("/workspace/watching", "w").close()
while not os.path.exists("/workspace/done"):
    os.sched_yield()
print(len(os.read(fd, 65536)))
"""


def test_what_the_host_and_other_leases_do_with_shared_files_can_not_be_watched(
    inside: Inside,
) -> None:
    """inotify on an inode tells who opens it, wherever it is opened."""
    inside.run("rm -f /workspace/watching /workspace/done /workspace/own; touch /workspace/own")
    watch = f"cat > /workspace/watch.py <<'END'{WATCH}END\ntimeout 60 python3 /workspace/watch.py"
    start = f"({watch} /workspace/own) >/workspace/seen 2>&1 &"
    assert inside.run(f"{start} until test -e /workspace/watching; do :; done").value == 0
    for _ in range(20):
        subprocess.run(["/usr/bin/env", "true"], check=True)
        os.listdir("/etc/ssl/certs")
        for device in DEVICES[:-1]:
            os.close(os.open(f"/dev/{device}", os.O_RDONLY | os.O_CLOEXEC))
    # Control: one event, of the one file that is opened inside. Nothing else was there to be read.
    assert inside.run("touch -a /workspace/own; touch /workspace/done; wait").value == 0
    until = "for i in $(seq 2000); do test $(wc -l </workspace/seen) = 2 && break; sleep 0.01; done"
    lines = inside.says(f"{until}; cat /workspace/seen").splitlines()
    assert lines[0] == "watching"
    assert int(lines[1]) % 16 == 0
    assert 16 <= int(lines[1]) <= 16 * 4


def test_locks_inside_are_none_on_the_hosts_files(inside: Inside) -> None:
    hold = "exec 3</usr/bin/env; flock -x 3; touch /workspace/locked; sleep 60"
    inside.run(f"rm -f /workspace/locked; (setsid bash -c '{hold}') >/dev/null 2>&1 &")
    inside.run("until test -e /workspace/locked; do :; done")
    with open("/usr/bin/env", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Control: inside it is held.
    assert inside.run("flock -n -x /usr/bin/env true").value == 1
    inside.run("pkill -f locked")


def test_device_nodes_inside_are_none_of_the_hosts_nor_of_another_sandbox(
    agent: Inside, strict: Inside
) -> None:
    """A lock is on an inode, whatever device it names: those of the host were a bell for all."""
    places = " ".join(["/proc/self/fd/0", *(f"/dev/{name}" for name in DEVICES)])
    numbers = f"stat -L -c '%d:%i %t:%T' {places}"
    of = [made.says(numbers).splitlines() for made in (agent, strict)]
    states = [os.stat(f"/dev/{name}") for name in ("null", *DEVICES)]
    host = [
        f"{s.st_dev}:{s.st_ino} {os.major(s.st_rdev):x}:{os.minor(s.st_rdev):x}" for s in states
    ]
    for ours, theirs, the_hosts in zip(*of, host, strict=True):
        assert len({ours, theirs, the_hosts}) == 3
        # Control: the same device.
        assert len({text.split()[1] for text in (ours, theirs, the_hosts)}) == 1
    hold = "exec 3</dev/null; flock -x 3; flock -x 0; touch /workspace/locked; sleep 60"
    agent.run(f"rm -f /workspace/locked; (setsid bash -c '{hold}') >/dev/null 2>&1 &")
    agent.run("until test -e /workspace/locked; do :; done")
    assert strict.run("flock -n -x /dev/null true && flock -n -x 0").value == 0
    with open("/dev/null", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Control: inside it is held.
    assert agent.run("flock -n -x /dev/null true").value == 1
    agent.run("pkill -f locked")


def test_one_sandbox_leaves_terminals_for_the_others(inside: Inside) -> None:
    take = "import os; l = [];\ntry:\n  while len(l) < 4000: l.append(os.openpty())\nexcept OSError: print(len(l))"
    assert 16 <= int(python(inside, take)) <= 64


SEGMENT = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
made = libc.shmget(0x77, 64 << 20, 0o1600)
at = libc.shmat(made, None, 0)
ctypes.memset(at, 1, 64 << 20)
print(made >= 0, sum(1 for _ in open("/proc/sysvipc/shm")) - 1)
"""


def test_shared_memory_ends_with_its_last_process(inside: Inside) -> None:
    """Nobody would ever give it back: the lease would have less memory until its reset."""
    assert python(inside, SEGMENT) == "True 1"
    assert inside.says("tail -n +2 /proc/sysvipc/shm") == ""


@pytest.mark.parametrize("device", ["null", "zero", "full", "random", "urandom", "tty"])
def test_devices_of_the_host_are_not_the_sandboxes_to_change(inside: Inside, device: str) -> None:
    # These are the host's own inodes. crun gives its standard streams to the sandbox's user: with
    # /dev/null among them, root inside could change the mode that every program of the host sees.
    assert inside.run(f"chmod 0666 /dev/{device}").value not in (0, 127, None)
    assert inside.run(f"chown $(id -u) /dev/{device}").value not in (0, 127, None)
    assert inside.run("touch /tmp/own && chmod 0666 /tmp/own").value == 0


@pytest.mark.parametrize(
    "act",
    [
        "mount -t tmpfs none /mnt",
        "umount /workspace",
        "mount -o remount,rw /usr",
        "unshare -U true",
        "unshare -n true",
        "/usr/sbin/chroot /tmp true",
        "mknod /tmp/device c 1 3",
        "dmesg",
        "hostname other",
        "date -s 2020-01-01",
    ],
)
def test_privileged_acts_are_refused(inside: Inside, act: str) -> None:
    assert inside.run(act).value not in (0, 127, None)


def test_only_the_granted_subtrees_exist(oci_world: OciWorld) -> None:
    grant = grant_for(
        oci_world,
        Profile.AGENT,
        read=("/workspace/a", "/workspace/b", "/tmp"),
        write=("/workspace/a", "/tmp"),
    )
    tree = oci_world.lease()
    whole = enter(oci_world, grant_for(oci_world, Profile.AGENT), tree)
    narrow = None
    try:
        assert whole.run("mkdir -p a b c; echo secret > c/f; echo seen > b/f").value == 0
        narrow = enter(oci_world, grant, tree)
        assert narrow.says("ls -A /workspace") == "a\nb"
        assert narrow.says("cat /workspace/b/f") == "seen"
        assert narrow.run("echo x > /workspace/b/f").value != 0
        assert narrow.run("echo x > /workspace/new").value != 0
        assert narrow.run("echo x > /workspace/a/f").value == 0
        assert whole.says("cat /workspace/a/f") == "x"
    finally:
        for made in (whole, narrow):
            if made is not None:
                made.sandbox.close()
        oci_world.engine.release(tree.lease_id)


def test_symlink_can_not_choose_what_is_mounted(oci_world: OciWorld) -> None:
    tree = oci_world.lease()
    whole = enter(oci_world, grant_for(oci_world, Profile.AGENT), tree)
    try:
        assert whole.run("ln -s /etc /workspace/a").value == 0
        narrow = grant_for(oci_world, Profile.AGENT, read=("/workspace/a",), write=())
        with pytest.raises(Exception, match="symlink"):
            enter(oci_world, narrow, tree)
    finally:
        whole.sandbox.close()
        oci_world.engine.release(tree.lease_id)


def test_outside_of_execute_prefixes_native_code_does_not_start(oci_world: OciWorld) -> None:
    grant = grant_for(oci_world, Profile.AGENT, execute=("/usr", "/workspace/bin"))
    made = enter(oci_world, grant)
    try:
        for place in ("/workspace", "/tmp", "/dev/shm", "$HOME", "/var/tmp", "/root"):
            copied = f"cp /usr/bin/true {place}/t && {place}/t"
            assert made.run(copied).value == 126, place
        # Positive control: the same copy below a prefix that is executable.
        assert made.run("cp /usr/bin/true /workspace/bin/t && /workspace/bin/t").value == 0
        # What noexec does not stop, and the documents say so.
        assert made.run("echo 'exit 0' > /tmp/s; sh /tmp/s").value == 0
    finally:
        made.sandbox.close()
        oci_world.engine.release(made.tree.lease_id)


def test_denied_path_holds_while_absent_and_against_renames(agent: Inside) -> None:
    assert agent.run("echo x > /workspace/.git/hooks/pre-commit").value != 0
    assert agent.run("mv /workspace/.git /workspace/g").value != 0
    assert agent.run("rmdir /workspace/.git/hooks || rm -rf /workspace/.git").value != 0
    assert agent.run("mkdir -p /workspace/d/hooks && echo x > /workspace/d/hooks/h").value == 0
    work = "cd /workspace && git init -q && git config user.email a@b && git config user.name n"
    assert agent.run(f"{work} && echo 1 > f && git add f && git commit -qm x").value == 0
    assert "x" in agent.says("cd /workspace && git log --oneline")


def test_denied_path_below_a_file_holds_that_file(oci_world: OciWorld) -> None:
    """`.git` of a worktree or submodule is a file."""
    tree = oci_world.lease()
    fd = os.open("workspace/.git", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=tree.root_fd)
    os.write(fd, b"gitdir: ../elsewhere\n")
    os.fchown(fd, tree.uid_base, tree.uid_base)
    os.close(fd)
    made = enter(oci_world, grant_for(oci_world, Profile.AGENT), tree)
    try:
        assert made.says("cat .git") == "gitdir: ../elsewhere"
        assert made.run("echo x >> .git").value != 0
        assert made.run("rm -f .git && mkdir -p .git/hooks").value != 0
        assert made.run("mv .git g").value != 0
        assert made.run("echo x > ordinary").value == 0
    finally:
        made.sandbox.close()
        oci_world.engine.release(tree.lease_id)


def test_granted_names_that_are_not_text_are_mounted(oci_world: OciWorld) -> None:
    odd = r"/workspace/a\xff"
    grant = grant_for(oci_world, Profile.AGENT, read=(odd,), write=(odd,))
    made = enter(oci_world, grant)
    try:
        assert made.run("cd /workspace && echo x > $'a\\xff/f' && cat $'a\\xff/f'").value == 0
        assert os.listdir(b"/proc/self/fd/%d/workspace" % made.tree.root_fd) == [b"a\xff"]
    finally:
        made.sandbox.close()
        oci_world.engine.release(made.tree.lease_id)
