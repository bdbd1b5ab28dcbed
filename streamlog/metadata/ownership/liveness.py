"""Keeps the tenure's lease alive, by which other nodes see that it lives. Safety never needs it."""

from __future__ import annotations

import logging

from streamlog.errors import NotFound, StreamlogError
from streamlog.kvstore.interface import Put
from streamlog.metadata.backoff import is_transient
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import fence, lease
from streamlog.metadata.keyspace import KeySpace

log = logging.getLogger(__name__)


class Liveness:
    def __init__(self, keys: KeySpace, tenure: Tenure, lease_id: int, ttl_ms: int) -> None:
        self._kv = keys.kv
        self._prefix = keys.prefix
        self._tenure = tenure
        self._lease_id = lease_id
        self._ttl_ms = ttl_ms

    def interval_s(self) -> float:
        return self._ttl_ms / 3000

    async def tick(self) -> None:
        """Keeps the lease alive; replaces a lost one while the fence is LIVE."""
        try:
            try:
                await self._kv.keep_alive(self._lease_id)
            except NotFound:
                await self._replace()
        except StreamlogError as error:
            if not is_transient(error):
                raise
            log.warning("the lease was not kept alive: %s", error, extra={"error": str(error)})

    async def end(self) -> None:
        """Revokes the lease, so that other nodes need not wait for its end.

        Errors: as KVStore.revoke_lease.
        """
        try:
            await self._kv.revoke_lease(self._lease_id)
        except NotFound:
            log.debug("the lease had ended before it was revoked")

    async def _replace(self) -> None:
        key = fence.key(self._prefix, self._tenure)
        kv = await self._kv.get(key)
        if kv is None or not fence.decode(kv.value).is_live:
            return
        lease_id = await self._kv.grant_lease(self._ttl_ms)
        put = Put(lease.key(self._prefix, self._tenure), lease.VALUE, lease_id)
        try:
            result = await self._kv.txn([fence.is_live(key)], [put])
        except NotFound:
            log.warning("a new lease ended before its key was put: the metadata store is slow")
            return
        # A lease without its key is invisible to other nodes: the next tick must not keep it alive.
        if result.succeeded:
            self._lease_id = lease_id
