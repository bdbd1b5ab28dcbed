"""The location of the data that a command's options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamlog.errors import Invalid

if TYPE_CHECKING:
    from streamlog.settings import Settings
    from streamlog.settings.node import NodeConfig


def checked_places(loaded: Settings, mode: str = "serve") -> NodeConfig:
    """The node's settings with the URLs of store and metadata filled in. Opens nothing.

    Errors: UsageError where the options name no location, or two.
    """
    from streamlog.server.node import with_places

    try:
        return with_places(loaded.node, mode)
    except Invalid as error:
        raise click.UsageError(error.message) from error
