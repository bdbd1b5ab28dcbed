"""The command line reaches a node by TLS, from options or from the environment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamlog.cli.main import cli, run
from streamlog.settings import load
from tests.support.certificates import Authority
from tests.support.running_node import running_node


def with_node(authority: Authority, use: Callable[[str], None]) -> None:
    async def main() -> None:
        flags = {
            **authority.issue("node").settings(),
            "tls.client_ca": str(authority.ca),
        }
        names = {name.replace(".", "__"): value for name, value in flags.items()}
        async with running_node(**names) as node:
            await asyncio.to_thread(use, node.banner.grpc)

    asyncio.run(main())


def test_options_and_environment_say_how_the_node_is_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("client")

    def use(server: str) -> None:
        files = ("--tls-ca", str(authority.ca), "--tls-cert", str(client.certificate))
        options = (*files, "--tls-key", str(client.key))
        assert run(["topic", "create", "t", "--server", server, *options]) == 0
        # An option before the command holds for it, too.
        assert run(["--server", f"https://{server}", *options, "topic", "list"]) == 0
        assert "t" in capsys.readouterr().out
        monkeypatch.setenv("STREAMLOG_TLS_CA", str(authority.ca))
        monkeypatch.setenv("STREAMLOG_TLS_CERT", str(client.certificate))
        monkeypatch.setenv("STREAMLOG_TLS_KEY", str(client.key))
        assert run(["status", "--server", server]) == 0
        assert "grpc+tls" in capsys.readouterr().out
        load(None)  # These variables are no settings of a node, and no error either.

    with_node(authority, use)


def test_errors_say_which_option_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)

    def use(server: str) -> None:
        for options, words in (
            ((), "TlsHandshakeFailed: " + server),
            ((), "--tls-ca"),
            (("--tls",), "is not trusted here"),
            (("--tls-ca", str(authority.ca)), "--tls-cert and --tls-key"),
            (("--tls-ca", str(tmp_path / "no")), f"file {tmp_path / 'no'}: cannot be read"),
        ):
            assert run(["status", "--server", server, *options]) == 1
            assert words in capsys.readouterr().err

    with_node(authority, use)


def test_flags_of_serve_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {}

    def run_node(settings: Any, **_: object) -> int:
        taken["tls"] = settings.tls
        return 0

    monkeypatch.setattr("streamlog.server.node.run", run_node)
    flags = ("--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a")
    arguments = ["serve", "--data", str(tmp_path), *flags, "--tls-client-auth", "requested"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    tls = taken["tls"]
    assert (tls.certificate, tls.key, tls.client_ca) == ("c", "k", "a")
    assert tls.effective_client_auth == "requested"
