"""Who an idempotent producer is to the server: its id and epoch."""

from __future__ import annotations

from typing import NamedTuple


class ProducerIdentity(NamedTuple):
    """As InitProducerId gives it out: an id of 63 bits, and an epoch from 0 to 32,767."""

    producer_id: int
    epoch: int


NO_IDENTITY = ProducerIdentity(-1, -1)
"""Of a producer that has not asked yet, or does not need one."""
