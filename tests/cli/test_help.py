"""Help is quick, whole, and what docs/cli.md says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from streamlog.cli import document
from streamlog.cli.main import Commands, cli
from tests.cli.conftest import COMMAND

ROOT = Path(__file__).resolve().parents[2]

LOCAL = {"dev", "serve", "demo", "wal", "meta", "doctor", "fsck", "recover", "restore"}
LOCAL |= {"spark demo", "topic adopt", "remote-index"}
"""Commands that talk to no node that is given to them."""


def _all(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    yield ctx.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from _all(child, click.Context(child, info_name=name, parent=ctx))


ALL = dict(_all(cli, click.Context(cli, info_name="streamlog", **cli.context_settings)))
LEAVES = {path: command for path, command in ALL.items() if not isinstance(command, click.Group)}


def test_the_top_level_commands() -> None:
    assert [path.removeprefix("streamlog ") for path in LEAVES] == [
        *("dev", "serve", "demo", "status"),
        *(f"topic {verb}" for verb in ("adopt", "alter", "create", "delete", "describe", "list")),
        *("produce", "consume", "txn abort", "txn describe", "txn list"),
        *(
            f"stream {v}"
            for v in ("append", "clear-token", "create", "delete", "describe", "fetch", "list")
        ),
        *("stream set-token", "stream trim"),
        *(f"kv {verb}" for verb in ("delete", "get", "list", "put", "watch")),
        *(
            "object list",
            "object show",
            "log append",
            "log clear-token",
            "log dump",
            "log set-token",
            "log token",
            "remote-index build",
            "remote-index dump",
            "wal show",
            "wal upload",
            "meta repair",
        ),
        *("config alter", "config describe", "config show", "doctor"),
        *("fsck", "recover", "backup", "restore"),
        *("bench consume", "bench produce", "bench verify"),
        *("spark demo", "spark scrub", "spark stats", "spark export", "spark compact"),
        "spark import",
    ]


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_has_json_and_server(path: str) -> None:
    options = {text for param in LEAVES[path].params for text in param.opts}
    assert "--json" in options
    names = path.removeprefix("streamlog ")
    assert ("--server" in options) == (not {names, names.split()[0]} & LOCAL)


@pytest.mark.parametrize("path", ALL)
def test_every_command_and_option_explains_itself(path: str) -> None:
    command = ALL[path]
    assert command.help
    for param in command.params:
        if isinstance(param, click.Option) and param.help is None:
            assert param.metavar or isinstance(param.type, click.Choice) or param.show_default


def test_the_short_help_is_the_commands_own() -> None:
    for name, (target, text) in Commands.lazy.items():
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        assert command.name == name
        assert command.help.split("\n")[0] == text


def test_help_imports_neither_grpc_nor_the_engine() -> None:
    script = """
import sys
from streamlog.cli.main import run
assert run(["--help"]) == 0
heavy = {"grpc", "google.protobuf", "aiokafka", "awscrt", "rocksdict", "aiohttp", "asyncio"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stderr.strip() == b"[]"
    assert b"Commands:" in done.stdout


def test_help_works_without_a_node_at_every_level() -> None:
    for arguments in ((), ("topic",), ("topic", "create")):
        done = subprocess.run([*COMMAND, *arguments, "--help"], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"Usage: ")


def test_docs_cli_is_what_the_commands_say() -> None:
    assert (ROOT / document.TARGET).read_text("utf-8") == document.document()
