"""The options that every command has: server, JSON, time limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from streamlog.cli.addresses import server_option

SERVER_DEFAULT = "127.0.0.1:9644"
TIMEOUT_S_DEFAULT = 30.0
TIMEOUT_S_MAX = 2_000_000.0
"""23 days; `inf` means that, too. In milliseconds it is within an int32, as the clients want it."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class State:
    """One per process; an option given after the command wins over the one before it."""

    server: str = SERVER_DEFAULT
    json: bool = False
    timeout_s: float = TIMEOUT_S_DEFAULT
    is_timeout_given: bool = False
    """The user gave the time limit: the command waits as long for a node that starts."""

    @property
    def timeout_ms(self) -> int:
        return int(self.timeout_s * 1000)


def state_of(ctx: click.Context) -> State:
    return ctx.ensure_object(State)


def _keep_server(ctx: click.Context, param: click.Parameter, value: str) -> str:
    return str(_keep(ctx, param, server_option(ctx, param, value)))


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    given = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
    if given or ctx.parent is None:
        setattr(state_of(ctx), str(param.name), value)
    return value


def _keep_timeout(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE:
        state_of(ctx).is_timeout_given = True
    if math.isnan(value):
        raise click.BadParameter(f"{value} is no number of seconds", ctx=ctx, param=param)
    return float(_keep(ctx, param, min(value, TIMEOUT_S_MAX)))


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep,
    is_eager=True,
    help="Write JSON: one object, or one a line where there are many.",
)

_server_option = click.option(
    "--server",
    metavar="HOST:PORT",
    default=SERVER_DEFAULT,
    envvar="STREAMLOG_SERVER",
    show_default=True,
    show_envvar=True,
    expose_value=False,
    callback=_keep_server,
    is_eager=True,
    help="The node to talk to; without a port 9644.",
)

_timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=TIMEOUT_S_DEFAULT,
    show_default=True,
    expose_value=False,
    callback=_keep_timeout,
    is_eager=True,
    help="How long one request may take, retries included; when given, a node's start, too.",
)


def remote_options(function: Function) -> Function:
    """`--server`, `--timeout` and `--json`: for every command that talks to a node."""
    wrapped: Function = json_option(_timeout_option(_server_option(function)))
    return wrapped


pass_state = click.make_pass_decorator(State, ensure=True)
