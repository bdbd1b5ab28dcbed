"""Groups of commands that suggest the nearest command, and import commands lazily.

A command is imported when it is called, so that `streamlog --help` does not import gRPC.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click


class CommandGroup(click.Group):
    """A group that names the nearest command for one that does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        is_known = name.startswith("-") or self.get_command(ctx, name) is not None
        if not is_known and not ctx.resilient_parsing:
            meant = self.nearest(ctx, name)
            hint = f" Did you mean '{ctx.command_path} {meant}'?" if meant else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def nearest(self, ctx: click.Context, name: str) -> str:
        """The command nearest to `name`; empty where none is near."""
        matches = difflib.get_close_matches(name.lower(), self.list_commands(ctx), n=1)
        return matches[0] if matches else ""


class LazyGroup(CommandGroup):
    """A group whose commands are `name → (module:attribute, one line of help)`, in that order."""

    lazy: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def nearest(self, ctx: click.Context, name: str) -> str:
        """Also finds a command of a subgroup, as in `streamlog create` for `topic create`."""
        for group_name in self.lazy:
            group = self.get_command(ctx, group_name)
            if isinstance(group, click.Group) and name in group.list_commands(ctx):
                return f"{group_name} {name}"
        return super().nearest(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])
