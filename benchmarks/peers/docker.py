"""Containers of a Docker engine through Docker's own SDK.

Two kinds: `equal`, with the features of the `agent` grant as far as Docker can give them (it has no
range of user ids per container), and `defaults`, as `docker run` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import docker
from docker.errors import DockerException
from docker.models.containers import Container

from benchmarks.peers import rootfs
from benchmarks.peers.features import Features

_IMAGE: Final = "stockade-bench"
_TAG: Final = "1"
_USR: Final = {"/usr": {"bind": "/usr", "mode": "ro"}}


class Docker:
    """`base_url` None is DOCKER_HOST or the default socket. `with` makes an image by import and
    removes it, with every container made here, at the end."""

    def __init__(self, base_url: str | None, features: Features) -> None:
        self._client = docker.DockerClient(base_url) if base_url else docker.from_env()
        self._features = features
        self._containers: list[Container] = []
        self.version: Final = str(self._client.version()["Version"])

    def __enter__(self) -> Self:
        self._client.api.import_image_from_data(rootfs.archive(), repository=_IMAGE, tag=_TAG)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for container in list(self._containers):
            self.remove(container)
        self._client.images.remove(f"{_IMAGE}:{_TAG}", force=True)
        self._client.close()

    def equal(self) -> Container:
        """Created and started."""
        plan = self._features.plan
        return self._keep(
            self._client.containers.run(
                f"{_IMAGE}:{_TAG}",
                ["/usr/bin/sleep", "infinity"],
                detach=True,
                volumes=_USR,
                working_dir="/workspace",
                network_mode="none",
                read_only=True,
                tmpfs={"/tmp": "size=64m", "/workspace": "size=64m"},
                cap_drop=["ALL"],
                cap_add=list(plan.capabilities),
                security_opt=["no-new-privileges", f"seccomp={json.dumps(self._features.seccomp)}"],
                mem_limit=plan.limits.memory_bytes,
                pids_limit=plan.limits.pids,
                nano_cpus=plan.limits.cpu_millis * 1_000_000,
            )
        )

    def defaults(self) -> Container:
        """Nothing asked for, but no network: the private engine has none to give."""
        return self._keep(
            self._client.containers.run(
                f"{_IMAGE}:{_TAG}",
                ["/usr/bin/sleep", "infinity"],
                detach=True,
                volumes=_USR,
                network_mode="none",
            )
        )

    def remove_last(self) -> None:
        """The container that was made last."""
        self.remove(self._containers[-1])

    def remove(self, container: Container) -> None:
        container.remove(force=True)
        self._containers.remove(container)

    def _keep(self, container: Container) -> Container:
        self._containers.append(container)
        return container


def execute(container: Container, *argv: str) -> None:
    done = container.exec_run(list(argv))
    if done.exit_code:
        raise RuntimeError(f"docker exec {argv[0]} ended with {done.exit_code}: {done.output!r}")


def answers(environment: Mapping[str, str]) -> bool:
    """Whether a Docker engine answers at DOCKER_HOST or the default socket."""
    try:
        client = docker.from_env(environment=dict(environment), timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except DockerException:
        return False
