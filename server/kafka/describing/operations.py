"""Authorised operations as Kafka's bit set: bit n stands for the operation with code n."""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.server.context import Operation

NOT_ASKED = -(1 << 31)
"""The bit set of an answer to a client that did not ask for it."""

_CODES = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    # 9 is CLUSTER_ACTION, between Kafka's brokers: no principal has it here.
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}


def bits(operations: Iterable[Operation]) -> int:
    return sum(1 << _CODES[operation] for operation in set(operations))
