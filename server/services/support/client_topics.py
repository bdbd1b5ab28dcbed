"""What Kafka refuses of internal topics by the code of a wrong name."""

from __future__ import annotations

from streamlog.errors import InvalidName
from streamlog.log.api.internal_topics import is_internal


def check_clients_write(topic: str) -> None:
    """Errors: InvalidName, as in Kafka."""
    if is_internal(topic):
        raise InvalidName(f"{topic} is an internal topic: the node alone writes it")
