"""How a component declares its settings: a frozen dataclass whose fields are made by `setting`.

The settings module reads file, environment and flags into these classes, checks the limits stated
here, and prints them as `docs/config.md`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
    renamed_from: str = "",
) -> Any:
    """A field with its documentation (what it does; what it costs in latency, money, memory).

    `minimum` and `maximum` are inclusive. `dynamic`: may change while the process runs.
    `renamed_from`: its earlier name in the same table, which is still taken, with a warning.
    """
    return field(
        default=default,
        metadata={
            "doc": doc,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
            "dynamic": dynamic,
            "renamed_from": renamed_from,
        },
    )
