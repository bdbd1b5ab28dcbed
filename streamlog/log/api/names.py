"""Topic names by Kafka's rule."""

from __future__ import annotations

import re

from streamlog.errors import InvalidName

NAME_LENGTH_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def check_topic_name(name: str) -> None:
    """Errors: InvalidName."""
    if isinstance(name, str) and _NAME.fullmatch(name) and name not in (".", ".."):
        return
    shown = repr(name)
    raise InvalidName(
        f"{shown if len(shown) <= 80 else shown[:80] + '…'} cannot name a topic: use 1 to "
        f"{NAME_LENGTH_MAX} ASCII letters, digits, '.', '_' or '-', and neither '.' nor '..'"
    )
