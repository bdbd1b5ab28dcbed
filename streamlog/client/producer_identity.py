"""By what the server knows an idempotent producer: its id and epoch."""

from __future__ import annotations

from typing import NamedTuple


class ProducerIdentity(NamedTuple):
    """As InitProducerId assigns it: an id of 63 bits, and an epoch from 0 to 32,767."""

    producer_id: int
    epoch: int


NO_IDENTITY = ProducerIdentity(-1, -1)
"""The identity of a producer that has not asked for one, or does not need one."""
