"""What attacks aim at on the host's side: files, a process, servers. All of it is the selftest's.

Every secret holds the mark, a random word. The processes are the attack program's own (`attack bait`),
end when their standard input does, and so never outlive this one.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from stockade.terms.fault import Code, failure

_CHUNK: Final = 4096
VARIABLE: Final = "STOCKADE_SELFTEST"
VALUE: Final = "of-the-host"
# capabilities(7) in the order of their numbers.
_CAPABILITIES: Final = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME
SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""


def make_files(directory: Path, mark: str) -> dict[str, str]:
    """Readable and writable for everybody, so that nothing but a wall protects them; `target` is
    there to be changed."""
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    for name in ("secret", "target"):
        (directory / name).write_text(f"{mark}\n")
        (directory / name).chmod(0o666)
    layer = directory / "layer"
    layer.mkdir()
    (layer / "target").write_text("below\n")
    for path, mode in ((layer, 0o777), (layer / "target", 0o666)):
        path.chmod(mode)
    devices = directory / "devices"
    devices.mkdir()
    os.mknod(devices / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (devices / "null").chmod(0o666)
    return {"bait": str(directory), "mark": mark, "host_name": socket.gethostname()}


@contextmanager
def leaks() -> Iterator[None]:
    """What a careless runtime would pass on: a variable, and inheritable descriptors of the host's
    root directory and of a socket."""
    directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for fd in (directory, theirs.fileno()):
            os.set_inheritable(fd, True)
        os.environ[VARIABLE] = VALUE
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            os.close(directory)


@contextmanager
def processes(program: Path, facts: Mapping[str, str], uid: int) -> Iterator[dict[str, str]]:
    """The process to see, signal and trace, and the servers of the host and of an outside world."""
    mark = facts["mark"]
    with ExitStack() as stack:
        environment = {VARIABLE: mark}
        bait = Path(facts["bait"])
        # The very user that the attackers are outside: only namespaces stand between them.
        with open(bait / "secret", "rb") as secret:
            pid, words = _start(
                stack,
                [str(program), "bait", "process", mark],
                user=uid,
                directory=bait,
                environment=environment,
                keep=secret.fileno(),
            )
            known = {"bait_pid": pid, "bait_address": words[1], "bait_fd": str(secret.fileno())}
        key = ipc_key()
        _, words = _start(stack, [str(program), "bait", "host", mark, key])
        known |= ports("host", words) | {"host_key": key}
        pid, _ = _start(stack, [str(program), "bait", "outside", mark])
        yield known | {"outside_pid": pid}


def ipc_key() -> str:
    """A name of System V objects that nothing else has, not even another selftest."""
    return str(1 + secrets.randbelow(2**30))


def own_capabilities() -> str:
    """What this process may pass on. Root of a virtual machine need not have every one."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapPrm:"))
    mask = int(line.split()[1], 16)
    names = [f"CAP_{name}" for bit, name in enumerate(_CAPABILITIES.split()) if mask >> bit & 1]
    return " ".join(names)


def handle(program: Path, path: Path) -> str:
    """The file's handle as the attack program takes it; empty where the file system has none."""
    said = subprocess.run(
        [str(program), "bait", "handle", str(path)], capture_output=True, text=True, timeout=30
    )
    return said.stdout.strip()


def ports(name: str, words: list[str]) -> dict[str, str]:
    """Facts of the line that a server says when it is ready."""
    return {f"{name}_tcp": words[1], f"{name}_udp": words[2], f"{name}_tcp6": words[3]}


def _start(
    stack: ExitStack,
    argv: list[str],
    *,
    user: int | None = None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    keep: int | None = None,
) -> tuple[str, list[str]]:
    """Its pid, and the words of its first line. Raises Failure(engine_unavailable)."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory,
        env=dict(environment or {}),
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        pass_fds=() if keep is None else (keep,),
    )
    stack.callback(_end, process)
    assert process.stdout is not None
    words = process.stdout.readline().decode().split()
    if words[:1] != ["ready"]:
        said = b"" if process.stderr is None else process.stderr.read(_CHUNK)
        raise failure(
            Code.ENGINE_UNAVAILABLE,
            f"a bait of the selftest did not start: {said.decode('utf-8', 'replace').strip()}",
        )
    return str(process.pid), words


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
