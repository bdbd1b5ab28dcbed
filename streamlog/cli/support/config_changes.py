"""The options that change settings: set, unset, append to a list, subtract from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from streamlog.cli.parsing import pairs
from streamlog.cli.state import Function

if TYPE_CHECKING:
    from streamlog.client import Admin

_OPTIONS = {
    "configs": "--config",
    "unset": "--unset",
    "append": "--append",
    "subtract": "--subtract",
}


def changes_options(function: Function) -> Function:
    """Adds the options; their values make a `ConfigChanges`."""
    decorators = (
        click.option(
            "--config",
            "configs",
            multiple=True,
            metavar="NAME=VALUE",
            callback=pairs,
            help="A setting under Kafka's name, such as retention.ms=3600000; may be repeated.",
        ),
        click.option(
            "--unset", multiple=True, metavar="NAME", help="Back to the default; may be repeated."
        ),
        click.option(
            "--append",
            multiple=True,
            metavar="NAME=VALUE",
            callback=pairs,
            help="Adds values, joined by commas, to a setting that is a list.",
        ),
        click.option(
            "--subtract",
            multiple=True,
            metavar="NAME=VALUE",
            callback=pairs,
            help="Takes values, joined by commas, out of a setting that is a list.",
        ),
    )
    wrapped: Any = function
    for decorator in reversed(decorators):
        wrapped = decorator(wrapped)
    decorated: Function = wrapped
    return decorated


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """`configs`: None as a value goes back to the default."""

    configs: Mapping[str, str | None]
    append: Mapping[str, str]
    subtract: Mapping[str, str]

    @classmethod
    def of(
        cls,
        *,
        configs: Mapping[str, str],
        unset: tuple[str, ...],
        append: Mapping[str, str],
        subtract: Mapping[str, str],
    ) -> ConfigChanges:
        """Errors: UsageError for a setting that is changed in two ways."""
        given = {"configs": configs, "unset": set(unset), "append": append, "subtract": subtract}
        seen: dict[str, str] = {}
        for way, names in given.items():
            for name in names:
                other = seen.setdefault(name, way)
                if other != way:
                    raise click.UsageError(
                        f"{name}: give {_OPTIONS[other]} or {_OPTIONS[way]}, not both"
                    )
        return cls({**configs, **dict.fromkeys(unset)}, append, subtract)

    def __bool__(self) -> bool:
        return bool(self.configs or self.append or self.subtract)

    def make(self, client: Admin, /, *, validate_only: bool = False, **resource: Any) -> None:
        """Makes the changes of the resource that Admin.alter_configs names."""
        client.alter_configs(
            configs=self.configs,
            append=self.append,
            subtract=self.subtract,
            validate_only=validate_only,
            **resource,
        )
