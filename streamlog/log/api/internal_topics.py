"""Topics that nodes alone create, write and delete: the logs of coordinators.

Their settings may have what is refused to other topics: `cleanup.policy=compact`.
"""

from __future__ import annotations

from streamlog.errors import PolicyViolation

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
_INTERNAL = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


def is_internal(topic: str) -> bool:
    return topic in _INTERNAL


def check_not_internal(topic: str) -> None:
    """Errors: PolicyViolation."""
    if topic in _INTERNAL:
        raise PolicyViolation(
            f"{topic} is an internal topic: nodes alone create, write, extend and delete it"
        )
