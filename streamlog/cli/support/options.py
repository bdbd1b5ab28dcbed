"""Options that several commands share: where the data is, and how a node works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from streamlog.cli.addresses import listen_option
from streamlog.cli.state import Function, json_option, pass_state

data_option = click.option("--data", metavar="DIR", help="Folder for objects, metadata and WAL.")


def settings_pairs(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    from streamlog.cli.parsing import pairs

    return pairs(ctx, param, values)


def joined_option(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> str | None:
    """A setting that is a list, from a flag that may be repeated."""
    return ",".join(values) or None


config_option = click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False),
    envvar="STREAMLOG_CONFIG",
    show_envvar=True,
    help="Settings in TOML; docs/config.md lists them.",
)


more_option = click.option(
    "--set",
    "more",
    multiple=True,
    metavar="NAME=VALUE",
    callback=settings_pairs,
    help="Any other setting, such as engine.append.append_bytes_max=8388608; may be repeated.",
)


def wrapped(function: Function, *options: Callable[[Any], Any]) -> Function:
    """The command with options, in the order in which help shows them."""
    wrapped: Any = function
    for option in reversed(options):
        wrapped = option(wrapped)
    decorated: Function = wrapped
    return decorated


def store_options(function: Function) -> Function:
    """Options: where objects and metadata are."""
    return wrapped(
        function,
        click.option(
            "--store",
            metavar="URL",
            help="Where objects are: memory://, local:///abs/path, s3://bucket/prefix?…",
        ),
        click.option(
            "--meta",
            metavar="URL",
            help="Where metadata is: memory://, rocksdb:///abs/path, … "
            "[default: rocksdb:///PATH/meta for local:///PATH]",
        ),
    )


def place_options(function: Function) -> Function:
    """Options: where the data is."""
    return wrapped(
        function,
        data_option,
        store_options,
        click.option(
            "--wal-dir",
            metavar="DIR",
            help="Folder of the write-ahead log, with --wal disk. [default: DIR/wal with --data, "
            "PATH/wal with --store local:///PATH]",
        ),
        click.option(
            "--log-dir",
            metavar="DIR",
            help="Folder of topics with log.type=unified. [default: DIR/logs with --data]",
        ),
    )


def tls_options(function: Function) -> Function:
    """Options: certificates of a node's listeners."""
    return wrapped(
        function,
        click.option(
            "--tls-cert",
            "tls_certificate",
            metavar="FILE",
            help="PEM file of the node's certificate: all listeners speak TLS, and nothing else.",
        ),
        click.option(
            "--tls-key",
            metavar="FILE",
            help="PEM file of its private key. [default: the certificate's file]",
        ),
        click.option(
            "--tls-client-ca",
            metavar="FILE",
            help="PEM file of the authorities that sign clients' certificates.",
        ),
        click.option(
            "--tls-client-auth",
            type=click.Choice(("none", "requested", "required")),
            help="Whether clients present a certificate. [default: required with --tls-client-ca]",
        ),
    )


def setting_paths(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags by the setting's path: `tls_key` is `tls.key`, others are of `[node]`."""
    return {
        f"tls.{name.removeprefix('tls_')}" if name.startswith("tls_") else name: value
        for name, value in flags.items()
    }


def settings_options(function: Function) -> Function:
    """The options that configure a node."""
    return wrapped(
        function,
        config_option,
        click.option(
            "--listen",
            metavar="HOST:PORT",
            callback=listen_option,
            help="gRPC address; port 0 takes a free one. [default: 127.0.0.1:9644]",
        ),
        click.option(
            "--http-listen",
            metavar="HOST:PORT",
            callback=listen_option,
            help="Address of /metrics, /livez and /readyz. [default: 127.0.0.1:9645]",
        ),
        click.option(
            "--kafka-listen",
            metavar="[NAME=]HOST:PORT",
            multiple=True,
            callback=joined_option,
            help="Address for Kafka's own clients; repeat it, with names, for several. Port 0 "
            "takes a free one, none listens on none. [default: 127.0.0.1:9092 in dev, none in "
            "serve]",
        ),
        click.option(
            "--kafka-advertise",
            "kafka_advertised",
            metavar="[NAME=]HOST:PORT",
            multiple=True,
            callback=joined_option,
            help="Address that Kafka's clients are told to connect to. [default: the address that "
            "the node listens on]",
        ),
        click.option(
            "--wal",
            type=click.Choice(("disk", "object")),
            help="disk: acknowledged after a sync to the local disk, in milliseconds. "
            "object: after the upload and commit; what was acknowledged is in the store. "
            "[default: disk on local stores, object on remote ones]",
        ),
        click.option(
            "--insecure",
            is_flag=True,
            default=None,
            help="Allow addresses beyond loopback where clients need no certificate.",
        ),
        click.option(
            "--accept-data-loss",
            is_flag=True,
            default=None,
            help="For one start: open topics of the log folder that end before what was durable, "
            "or lie in another folder than last time, as they are.",
        ),
        tls_options,
        click.option(
            "--wait/--no-wait",
            "wait_at_start",
            default=None,
            help="Whether to wait for a store or metadata that is away. [default: wait]",
        ),
        click.option("--log-format", type=click.Choice(("text", "json")), help="[default: text]"),
        more_option,
        json_option,
        pass_state,
    )
