"""Lends a node's compaction merges to executors in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.compaction.compactor import Compactor, Totals
from streamlog.compaction.workers.remote import RemoteExecutor
from streamlog.errors import Invalid
from streamlog.objectstore.interface import ObjectStore
from streamlog.server.context import CLUSTER, Authorize, Operation, RequestContext

OWNER_BYTES_MAX = 200


class MergeService:
    """`compactor` None: the node has none."""

    def __init__(
        self,
        compactor: Compactor | None,
        cluster_id: str,
        store: ObjectStore,
        *,
        authorize: Authorize,
    ) -> None:
        self._compactor = compactor
        self._store = store
        self._authorize = authorize
        self.cluster_id = cluster_id

    @property
    def store_url(self) -> str:
        return self._store.url

    @contextmanager
    def lend(self, context: RequestContext, owner: str) -> Iterator[RemoteExecutor]:
        """While this lasts, the caller's executor gets the merges.

        Errors: Unauthorized, Invalid (no owner, no compactor), Conflict (another owner has them).
        """
        self._authorize(context, Operation.ALTER, CLUSTER)
        if not 0 < len(owner.encode()) <= OWNER_BYTES_MAX:
            raise Invalid(f"say who carries merges out, in 1 to {OWNER_BYTES_MAX} bytes")
        with self._running().lent(owner) as remote:
            yield remote

    async def merge_all(self, remote: RemoteExecutor) -> Totals:
        """Returns when nothing is left to merge, with the totals of the merges committed meanwhile.

        Errors: the reason why the executor ended; Unavailable.
        """
        return await self._running().compact_all_by(remote)

    def _running(self) -> Compactor:
        if self._compactor is None:
            raise Invalid(
                "this node does not compact (engine.compaction.compaction_process is off, or its "
                "store is memory://)"
            )
        return self._compactor
