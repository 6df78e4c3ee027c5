"""Where a daemon reports its calls to, as its configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stockade.edge.server.config import Config, ConfigError
from stockade.edge.watching import Sink


@contextmanager
def sinks(config: Config, version: str) -> Iterator[Sequence[Sink]]:
    """Raises ConfigError when what the configuration asks for needs a package that is not there."""
    if config.trace.endpoint is None:
        yield ()
        return
    try:
        # 110 ms and 20 MiB, and not part of a plain installation.
        from stockade.edge.tracing import open_tracer
    except ImportError as error:
        raise ConfigError(
            f"trace.endpoint: {error.name} is missing; install the extra 'trace' of stockade"
        ) from error
    tracer = open_tracer(config.trace.endpoint, version)
    try:
        yield (tracer.add,)
    finally:
        tracer.close()
