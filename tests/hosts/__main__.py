"""`python -m tests.hosts`: the suite where Stockade would be installed, not where it is written.

For each Debian release: `.ci/run` in a fresh tree, on this host's kernel; then the release's own kernel
as a machine, with the demo, the self-test and the tests that ask the kernel. It needs debootstrap and
qemu-system-x86, the network for packages, and 15 minutes and an hour for each release.
"""

from __future__ import annotations

import argparse
import sys

from tests.hosts.machine import boot
from tests.hosts.trees import enter, fresh

_SUITES = "tests/conformance tests/unit/host tests/unit/engines tests/unit/sandbox tests/security"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts")
    parser.add_argument("releases", nargs="*", default=["bookworm", "trixie"])
    parser.add_argument("--only", choices=("tree", "machine"), help="one of the two parts")
    parser.add_argument("--tests", default=_SUITES, help="what the machine runs beside the demo")
    parser.add_argument("--accel", default="tcg,thread=multi", help="as QEMU's -accel: kvm, say")
    parser.add_argument("--timeout-s", type=float, default=3 * 3600, help="of a machine")
    given = parser.parse_args()
    failed = []
    for release in given.releases:
        tree = fresh(release)
        on_tree, on_machine = "bash .ci/run", "make setup-dev"
        if given.only != "machine" and enter(tree, on_tree):
            failed.append(f"{release}: {on_tree}")
        if given.only == "tree":
            continue
        if enter(tree, on_machine):
            failed.append(f"{release}: {on_machine}")
            continue
        job = (
            "uname -a; .venv/bin/stockade doctor && make demo && .venv/bin/stockade selftest"
            f"; s=$?; .venv/bin/pytest -p no:cacheprovider {given.tests} && [ $s = 0 ]"
        )
        if boot(tree, job, accel=given.accel, timeout_s=given.timeout_s):
            failed.append(f"{release}: on its own kernel")
    for line in failed:
        sys.stdout.write(f"failed: {line}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
