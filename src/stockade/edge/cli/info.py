"""`serve`, and the commands that only look: `tools`, `doctor`, `config`."""

from __future__ import annotations

import os

import click

from stockade.edge.cli.options import Composition, json_option
from stockade.edge.cli.output import emit, table
from stockade.edge.doctor import doctor_report
from stockade.edge.server.config import DEFAULT_CONFIG, changed, load
from stockade.edge.toolbox import find_tool, told_to_model, tool_list


@click.command()
@click.option("--state-dir", metavar="DIR", help="Instead of the configuration's.")
@click.option("--socket", metavar="PATH", help="Instead of the configuration's.")
@click.option("--config", "file", metavar="FILE", help=f"Default: {DEFAULT_CONFIG}.")
@click.pass_obj
def serve(
    composition: Composition, state_dir: str | None, socket: str | None, file: str | None
) -> int:
    """Be the daemon, in the foreground, until SIGTERM or SIGINT."""
    given = {
        name: os.path.abspath(value)
        for name, value in (("state_dir", state_dir), ("socket", socket))
        if value is not None
    }
    composition.serve(changed(load(file), given))
    return 0


@click.group()
def tools() -> None:
    """The tools that calls can name."""


@tools.command(name="list")
@json_option
def list_(as_json: bool) -> int:
    """Every tool."""
    found = tool_list()
    if as_json:
        emit(found.model_dump_json())
    else:
        table(("TOOL", "EFFECT", "WHAT"), [(t.name, t.effect, t.what) for t in found.tools])
    return 0


@tools.command()
@click.argument("name")
@click.option("--as-model", is_flag=True, help="Exactly what a model is told.")
def show(name: str, as_model: bool) -> int:
    """One tool's whole definition, as JSON."""
    emit(told_to_model(name) if as_model else find_tool(name).model_dump_json(indent=2))
    return 0


@click.command()
@json_option
@click.option("--state-dir", metavar="DIR", help="Whose disk to look at.")
def doctor(as_json: bool, state_dir: str | None) -> int:
    """What this host can enforce, what is missing, and what to install."""
    report = doctor_report(state_dir or load().state_dir)
    if as_json:
        emit(report.model_dump_json(indent=2))
    else:
        table(
            ("CHECK", "", "FOUND", "REMEDY"),
            [
                (
                    check.name,
                    "ok" if check.ok else "FAIL" if check.required else "warn",
                    check.detail,
                    check.remedy or "",
                )
                for check in report.checks
            ],
        )
    return 0 if report.ok else 1


@click.group()
def config() -> None:
    """The daemon's configuration file."""


@config.command()
@click.argument("file", required=False)
def check(file: str | None) -> int:
    """Check FILE (default: the installed one) and say what is wrong with it."""
    # Loaded here: it costs 35 ms, and no other command of a client reads the policy.
    from stockade.edge.server.startup import resolve
    from stockade.host.policy_files import load_policy

    read, policy = load(file), load_policy()
    resolve(read, os.getuid(), grants=policy.grants, ceilings=policy.ceilings)
    emit(f"{file or DEFAULT_CONFIG}: ok")
    return 0
