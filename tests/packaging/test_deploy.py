"""The unit and the image start commands that exist, with options that exist."""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import click
import pytest

from streamlog.cli.main import cli
from streamlog.server.stopping import SLACK_S
from streamlog.settings import load
from tests.support.replacing import replace_method

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def _unit() -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=True)
    replace_method(unit, "optionxform", str)
    unit.read(DEPLOY / "streamlog.service", "utf-8")
    return unit


def _image_commands() -> tuple[list[str], list[str]]:
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    entry = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    command = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    return json.loads(entry[-1]), json.loads(command[-1])


def _parses(arguments: list[str]) -> click.Context:
    """The context of the command that the arguments name; UsageError if they are wrong."""
    # click keeps the help option that a command had in its first context, for all that follow.
    root = click.Context(cli, info_name="streamlog", **cli.context_settings)
    command = cli.get_command(root, arguments[0])
    assert command is not None
    return command.make_context(arguments[0], arguments[1:], parent=root)


def test_the_units_command_is_one() -> None:
    program, *arguments = shlex.split(_unit()["Service"]["ExecStart"])
    assert program.endswith("/bin/streamlog")
    ctx = _parses(arguments)
    assert ctx.info_name == "serve"
    assert ctx.params["data"] == "/var/lib/" + _unit()["Service"]["StateDirectory"]


def test_the_images_command_is_one() -> None:
    entry, command = _image_commands()
    assert entry == ["streamlog"]
    ctx = _parses(command)
    assert ctx.info_name == "serve"
    # A container's listener is off loopback by nature.
    assert ctx.params["insecure"] is True


def test_a_stop_may_take_its_bound() -> None:
    settings = load(None, {}, {})
    settings_ms = settings.node.shutdown_grace_ms + settings.engine.append.drain_timeout_ms
    bound_s = settings_ms / 1000 + SLACK_S
    assert int(_unit()["Service"]["TimeoutStopSec"]) > bound_s
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    (timeout_s,) = re.findall(r"^# Run: +podman run .*--stop-timeout (\d+) ", text, re.MULTILINE)
    assert int(timeout_s) > bound_s
    assert f"{bound_s:g} s" in text


def test_a_wrong_option_would_be_seen() -> None:
    _, command = _image_commands()
    with pytest.raises(click.UsageError):
        _parses([*command, "--no-such-option"])


def test_the_image_copies_what_the_build_needs() -> None:
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    copied = set(re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE))
    assert " ".join(sorted(" ".join(copied).split())) == (
        "LICENSE README.md kvstore pyproject.toml pyspark_streamlog server setup.py streamlog"
    )
    assert all((DEPLOY.parent / name).exists() for name in " ".join(copied).split())
