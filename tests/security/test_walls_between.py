"""What a sandbox can do to another one: of its own lease, and of somebody else's.

Two sandboxes of one lease share files, and a socket in /tmp carries descriptors; processes, memory,
sockets by name and kernel objects are each one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from stockade.terms.grant import Profile
from tests.daemons import until
from tests.security.inside import Inside, entered, grant_for, leased, python
from tests.worlds import OciWorld


@dataclass(frozen=True)
class Both:
    victim: Inside
    attacker: Inside


@pytest.fixture(scope="module", params=["one lease", "two leases"])
def both(request: pytest.FixtureRequest, oci_world: OciWorld) -> Iterator[Both]:
    wide = grant_for(oci_world, Profile.AGENT)
    other = grant_for(oci_world, Profile.AGENT, execute=("/usr", "/workspace"))
    with leased(oci_world) as first, leased(oci_world) as second:
        tree = first if request.param == "one lease" else second
        with entered(oci_world, wide, first) as victim, entered(oci_world, other, tree) as attacker:
            yield Both(victim, attacker)


@pytest.fixture
def victim_pid(both: Both) -> int:
    """A process of the victim that waits, as the victim numbers it."""
    assert both.victim.run("setsid sleep 300 >/dev/null 2>&1 & echo $! >/root/pid").value == 0
    inside = both.victim.says("cat /root/pid")
    until(lambda: both.victim.says(f"cat /proc/{inside}/comm") == "sleep", "it sleeps")
    return int(inside)


def test_processes_of_another_sandbox_are_not_there(both: Both) -> None:
    both.victim.run("setsid bash -c 'exec -a find-me sleep 301' >/dev/null 2>&1 &")
    look = "grep -alz find-m[e] /proc/[0-9]*/cmdline"
    until(lambda: both.victim.says(look) != "", "it is there")
    assert both.attacker.says(look) == ""


PTRACE = """
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE = 0x4206
def seize(pid):
    return 'ok' if libc.ptrace(SEIZE, pid, None, None) == 0 else errno.errorcode[ctypes.get_errno()]
child = os.fork()
if child == 0:
    signal.pause()
print('own', seize(child))
os.kill(child, 9)
print('guest', seize(1))
answers = {seize(pid) for pid in range(2, 40000) if not os.path.exists(f'/proc/{pid}')}
print('others', *answers)
"""


def test_only_own_processes_can_be_traced(both: Both) -> None:
    assert python(both.attacker, PTRACE).split("\n") == ["own ok", "guest EPERM", "others ESRCH"]


SEND = """
import array, ctypes, os, socket, sys, threading
listener = socket.socket(socket.AF_UNIX)
path = sys.argv[1]
if os.path.exists(path): os.unlink(path)
listener.bind(path); os.chmod(path, 0o777); listener.listen(1)
pidfd = os.pidfd_open(os.getpid())
memory = os.memfd_create('x')
peer, _ = listener.accept()
socket.send_fds(peer, [b'x'], [pidfd, memory])
peer.recv(1)
"""
TAKE = """
import ctypes, errno, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return 'ok' if result >= 0 else errno.errorcode[ctypes.get_errno()]
taken = socket.socket(socket.AF_UNIX)
taken.connect(sys.argv[1])
_, fds, _, _ = socket.recv_fds(taken, 1, 4)
own = os.pidfd_open(os.getpid())
vector = (ctypes.c_ulong * 2)(0x1000, 4096)
for name, fd in (('own', own), ('other', fds[0])):
    print(name, call(424, fd, 0, None, 0), call(440, fd, vector, 1, 20, 0), call(308, fd, 0),
          call(438, fd, 0, 0), end=';')
print(open(f'/proc/self/fdinfo/{fds[0]}').read().split('Pid:')[1].split()[0])
taken.send(b'x')
"""


def test_a_descriptor_of_a_process_gives_no_power_over_it_elsewhere(oci_world: OciWorld) -> None:
    """pidfd_send_signal, process_madvise, setns, pidfd_getfd on a process that was handed over."""
    wide = grant_for(oci_world, Profile.AGENT)
    other = grant_for(oci_world, Profile.AGENT, execute=("/usr", "/workspace"))
    with (
        leased(oci_world) as tree,
        entered(oci_world, wide, tree) as victim,
        entered(oci_world, other, tree) as attacker,
    ):
        victim.run("cat > /tmp/send.py <<'END'" + SEND + "END")
        victim.run("setsid python3 /tmp/send.py /tmp/s >/dev/null 2>&1 &")
        waited = "for i in $(seq 500); do test -S /tmp/s && break; sleep 0.01; done"
        attacker.run(waited)
        said = python(attacker, TAKE, "/tmp/s")
        # process_madvise(2) on oneself: EPERM before Linux 6.13, which asked for CAP_SYS_NICE.
        own = ("own ok ENOMEM EPERM EPERM", "own ok EPERM EPERM EPERM")
        assert said in [f"{each};other EINVAL EACCES EPERM EPERM;0" for each in own]


NAMED = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
make = sys.argv[1] == 'make'
found = []
server = socket.socket(socket.AF_UNIX)
if make:
    server.bind('\\0stockade-test'); server.listen(1)
    tcp = socket.create_server(('127.0.0.1', 7777))
    assert libc.shmget(0x5742, 4096, 0o1666) >= 0 or ctypes.get_errno() == 17
    assert libc.msgget(0x5742, 0o1666) >= 0
    open('/dev/shm/named', 'w').close()
    print('made', flush=True)
    import signal; signal.pause()
try: server.connect('\\0stockade-test'); found.append('abstract')
except OSError: pass
try: socket.create_connection(('127.0.0.1', 7777), 2); found.append('tcp')
except OSError: pass
if libc.shmget(0x5742, 0, 0) >= 0: found.append('shm')
if libc.msgget(0x5742, 0) >= 0: found.append('msg')
if os.path.exists('/dev/shm/named'): found.append('dev-shm')
print(*found)
"""


def test_names_of_kernel_objects_are_each_sandboxes_own(both: Both) -> None:
    start = "rm -f /root/made; setsid python3 /root/named.py make >/root/made 2>&1 &"
    both.victim.run(f"cat > /root/named.py <<'END'{NAMED}END\n{start}")
    waited = "for i in $(seq 500); do grep -q made /root/made && break; sleep 0.01; done"
    assert both.victim.run(waited).value == 0
    # Control: where they were made, another process finds all of them.
    assert python(both.victim, NAMED, "look") == "abstract tcp shm msg dev-shm"
    assert python(both.attacker, NAMED, "look") == ""
    both.victim.run("pkill -f named.py")


def test_files_of_another_lease_are_not_there(oci_world: OciWorld) -> None:
    grant = grant_for(oci_world, Profile.AGENT)
    with leased(oci_world) as first, leased(oci_world) as second:
        with entered(oci_world, grant, first) as a, entered(oci_world, grant, second) as b:
            a.run("for d in /workspace /tmp /root /dev/shm /var/tmp /run; do echo s > $d/s-1; done")
            find = "find / -xdev -name s-1 2>/dev/null; find /workspace /tmp /root /dev/shm /run -name s-1"
            assert len(a.says(find).split()) >= 6
            assert b.says(find) == ""
            b.run("touch /workspace/own")
            assert a.says("ls /workspace") == "s-1"


def test_signals_stay_in_their_sandbox(both: Both, victim_pid: int) -> None:
    assert both.victim.run(f"kill -0 {victim_pid}").value == 0
    both.attacker.run("kill -9 -1; true")
    assert both.victim.run(f"kill -0 {victim_pid}").value == 0
    both.victim.run(f"kill -9 {victim_pid}")
