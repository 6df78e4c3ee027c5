"""`stockade serve`: the runtime behind the HTTP server, until a signal ends it."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Final

from stockade.edge import reporting
from stockade.edge.server import http, logs
from stockade.edge.server.config import Config
from stockade.edge.server.http import HttpServer
from stockade.edge.server.startup import resolve
from stockade.flow.auditing import AuditSettings
from stockade.host import interpreter
from stockade.host.policy_files import load_policy
from stockade.native import check_host
from stockade.runtime import Options, open_runtime
from stockade.terms.version import VERSION

LOG: Final = logging.getLogger("stockade.daemon")


def serve(config: Config) -> None:
    """Be the daemon until a signal ends it. Raises Failure, ConfigError, ListenError."""
    # First: a configuration that can't be used changes nothing of this process.
    policy = load_policy()
    known = resolve(config, os.getuid(), grants=policy.grants, ceilings=policy.ceilings)
    interpreter.switch_quickly()
    logs.configure(config.log.format)
    check_host(Path(config.state_dir), durable=True)
    with reporting.sinks(config, VERSION) as sinks:
        runtime = open_runtime(
            Path(config.state_dir),
            Options(
                defaults=config.defaults,
                ceilings=known.ceilings,
                retention=config.retention,
                audit=AuditSettings(**config.audit.model_dump()),
                limits=config.limits,
                skew_s=config.tokens.skew_s,
                sinks=sinks,
            ),
            persistent=True,
        )
        interpreter.settle()
        logs.pass_through(runtime.secrets.hide_all)
        keep = True
        try:
            came = http.serve(
                HttpServer(runtime.api, known.peers),
                config.socket,
                config.socket_mode,
                float(config.limits.shutdown_grace_s),
                ready=lambda: LOG.info("listening on %s", config.socket),
                stopping=runtime.stop,
                overdue=lambda: runtime.running.drain(0),
            )
            keep = came != signal.SIGINT
        finally:
            runtime.close(grace_s=0, keep=keep)
