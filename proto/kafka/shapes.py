"""The shapes of messages as JSON, for tests that make random ones and compare them with others'."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from definitions import Field, Message, Versions, structures


def shape(message: Message, served: Versions) -> dict[str, Any]:
    inner = {one.name: [_field(field) for field in one.fields] for one in structures(message)}
    return {
        "name": message.name,
        "key": message.key,
        "first": served.first,
        "last": served.last,
        "structures": inner,
    }


def _field(field: Field) -> dict[str, Any]:
    described: dict[str, Any] = {"name": field.name, "type": field.type}
    if field.is_array:
        described["is_array"] = True
    for name in ("versions", "nullable", "tagged"):
        versions: Versions = getattr(field, name)
        if versions.first <= versions.last:
            described[name] = [versions.first, versions.last]
    return described


def shapes_text(shapes: Sequence[dict[str, Any]]) -> str:
    """One line for each message: a change shows which one."""
    return "[\n" + ",\n".join(json.dumps(one) for one in shapes) + "\n]\n"
