"""Where a command finds the data that its options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamlog.errors import Invalid

if TYPE_CHECKING:
    from streamlog.settings import Settings
    from streamlog.settings.node import NodeConfig


def checked_places(loaded: Settings, mode: str = "serve") -> NodeConfig:
    """The settings of the node with its places spelled out, before anything is opened.

    Errors: UsageError when they name no place, or two: the command line can be mended, nothing
    has failed.
    """
    from streamlog.server.node import with_places

    try:
        return with_places(loaded.node, mode)
    except Invalid as error:
        raise click.UsageError(error.message) from error
