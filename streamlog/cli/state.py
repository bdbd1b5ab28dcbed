"""The options that every command has: server, JSON, time limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamlog.cli.addresses import server_option

if TYPE_CHECKING:
    from streamlog.client.tls import Tls

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

    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None

    @property
    def connection(self) -> Tls | None:
        """How the node is reached; None: without TLS. Errors: InvalidConfig."""
        from streamlog.client.tls import Tls

        given = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)
        if not self.tls and not any(given):
            return None
        return Tls(*given)

    @property
    def timeout_ms(self) -> int:
        return int(self.timeout_s * 1000)


def state_of(ctx: click.Context) -> State:
    return ctx.ensure_object(State)


def _keep_server(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value.strip().lower().startswith("https://"):
        state_of(ctx).tls = True
    return str(_keep(ctx, param, server_option(ctx, param, value)))


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    given = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
    if given or ctx.parent is None:
        setattr(state_of(ctx), str(param.name), value)
    return value


def _keep_tls(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        state_of(ctx).tls = True
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


def _tls_option(name: str, metavar: str, help: str, *, is_hidden: bool) -> Callable[[Any], Any]:
    return click.option(
        f"--{name}",
        metavar=metavar,
        envvar=f"STREAMLOG_{name.replace('-', '_').upper()}",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        is_eager=True,
        hidden=is_hidden,
        help=help,
    )


def _tls_options(*, is_root: bool) -> list[Callable[[Any], Any]]:
    """All of them in the help of `streamlog` itself, one in that of each command."""
    rest = "" if is_root else "; --tls-ca, --tls-cert, … as in `streamlog --help`"
    files = (
        ("tls-ca", "PEM file of the authorities that sign nodes' certificates; means --tls, too."),
        ("tls-cert", "PEM file of this client's certificate, if the node asks for one."),
        ("tls-key", "PEM file of its private key. [default: the certificate's file]"),
    )
    name = "What the node's certificate names, where that is not the host of --server."
    return [
        click.option(
            "--tls",
            is_flag=True,
            envvar="STREAMLOG_TLS",
            show_envvar=is_root,
            expose_value=False,
            callback=_keep_tls,
            is_eager=True,
            help=f"The node speaks TLS{rest}.",
        ),
        *(_tls_option(name, "FILE", help, is_hidden=not is_root) for name, help in files),
        _tls_option("tls-server-name", "NAME", name, is_hidden=not is_root),
    ]


def remote_options(function: Function) -> Function:
    """`--server`, `--tls…`, `--timeout` and `--json`: for every command that talks to a node."""
    return _remote_options(function, is_root=False)


def root_options(function: Function) -> Function:
    """The same for `streamlog` itself, whose help explains all of them."""
    return _remote_options(function, is_root=True)


def _remote_options(function: Function, *, is_root: bool) -> Function:
    wrapped: Any = _timeout_option(function)
    for option in reversed(_tls_options(is_root=is_root)):
        wrapped = option(wrapped)
    decorated: Function = json_option(_server_option(wrapped))
    return decorated


pass_state = click.make_pass_decorator(State, ensure=True)
