"""Topics that nodes alone create, write and delete: logs of coordinators, and of remote segments.

Their settings may have what is refused to other topics: `cleanup.policy=compact`.
"""

from __future__ import annotations

from streamlog.errors import PolicyViolation

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
REMOTE_LOG_METADATA = "__remote_log_metadata"
_INTERNAL = frozenset({CONSUMER_OFFSETS, REMOTE_LOG_METADATA, TRANSACTION_STATE})
_NODES_OWN = frozenset(
    {
        "cleanup.policy",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
    }
)
_NODES_OWN_WITHOUT_COMPACTION = _NODES_OWN | {"retention.bytes", "retention.ms"}


def is_internal(topic: str) -> bool:
    return topic in _INTERNAL


def nodes_own_settings(topic: str) -> frozenset[str]:
    """Settings with which an internal topic's records would go by age or size, or be refused."""
    return _NODES_OWN_WITHOUT_COMPACTION if topic == REMOTE_LOG_METADATA else _NODES_OWN


def check_not_internal(topic: str) -> None:
    """Errors: PolicyViolation."""
    if topic in _INTERNAL:
        raise PolicyViolation(
            f"{topic} is an internal topic: nodes alone create, write, extend and delete it"
        )
