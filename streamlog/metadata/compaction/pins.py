"""Puts, renews and removes the pins of readers that read the object store themselves.

A reader must plan from a fold at or above the revision at which its pin was put: objects that died
before it may have been deleted before the collector saw the pin.
"""

from __future__ import annotations

from streamlog.errors import Invalid, NotFound
from streamlog.kvstore.interface import KVStore, Put, prefix_end
from streamlog.metadata.keys import pin

TTL_MS_MIN, TTL_MS_MAX = 1_000, 3_600_000
OWNER_CHARACTERS_MAX = 200


class Pins:
    def __init__(self, kv: KVStore, prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix

    async def put(self, owner: str, ttl_ms: int) -> int:
        """Puts a pin; its id. Errors: Invalid, MetadataUnavailable, OutcomeUnknown (a pin may
        exist, and ends with its lease).
        """
        if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
            raise Invalid(f"a pin of {ttl_ms} ms; between {TTL_MS_MIN} and {TTL_MS_MAX} is allowed")
        lease_id = await self._kv.grant_lease(ttl_ms)
        revision = await self._kv.revision()
        value = pin.encode(pin.Pin(revision, owner[:OWNER_CHARACTERS_MAX]))
        await self._kv.txn((), (Put(self._key(lease_id), value, lease_id),))
        return lease_id

    async def count(self, most: int) -> int:
        """Number of pins, counted up to `most`. Errors: MetadataUnavailable."""
        start = pin.prefix_of_pins(self._prefix)
        pins = await self._kv.range(start, prefix_end(start), limit=most)
        return len(pins.kvs)

    async def renew(self, pin_id: int) -> None:
        """Prolongs the pin. Errors: NotFound (the pin has ended and protects no more),
        MetadataUnavailable.
        """
        await self._check(pin_id)
        await self._kv.keep_alive(pin_id)

    async def remove(self, pin_id: int) -> None:
        """Ends the pin, if it has not ended. Errors: MetadataUnavailable, OutcomeUnknown."""
        try:
            await self._check(pin_id)
            await self._kv.revoke_lease(pin_id)
        except NotFound:
            return

    async def _check(self, pin_id: int) -> None:
        # Lease ids can be guessed, and leases exist that are no pins.
        if await self._kv.get(self._key(pin_id)) is None:
            raise NotFound(
                f"pin {pin_id} has ended: objects that it kept may be gone; plan the read again"
            )

    def _key(self, pin_id: int) -> bytes:
        return pin.key(self._prefix, b"%016x" % pin_id)
