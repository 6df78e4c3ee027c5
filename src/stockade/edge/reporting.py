"""Where a daemon reports its calls to, as its configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stockade.edge.server.config import Config, ConfigError
from stockade.edge.watching import Sink


def check(config: Config) -> None:
    """Raises ConfigError when what the configuration asks for needs a package that is not there."""
    if config.trace.endpoint is None:
        return
    try:
        import stockade.edge.tracing  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"trace.endpoint: {error.name} is missing; install the extra 'trace' of stockade"
        ) from error


@contextmanager
def sinks(config: Config, version: str) -> Iterator[Sequence[Sink]]:
    """For a configuration that `check` let pass."""
    if config.trace.endpoint is None:
        yield ()
        return
    # 110 ms and 20 MiB, and not part of a plain installation.
    from stockade.edge.tracing import open_tracer

    tracer = open_tracer(config.trace.endpoint, version)
    try:
        yield (tracer.add,)
    finally:
        tracer.close()
