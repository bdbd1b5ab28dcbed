"""Opens and tracks the compaction tenures of this node: one, except while it is replaced."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from streamlog.errors import Closed, Invalid, StreamlogError, TenureFenced
from streamlog.kvstore.interface import Compare, ValueIs
from streamlog.metadata.compaction.tenure import OwnCompactionTenure
from streamlog.metadata.compaction_interface import CompactionPoint
from streamlog.metadata.interface import Orphans, Tenure
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.record_sender import RecordSender
from streamlog.metadata.keys import counter, fence
from streamlog.metadata.keyspace import KeySpace, Tools
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.ownership.registration import compactor_of, register

log = logging.getLogger(__name__)

WINDOW_MAX = 100_000


class Compactors:
    """Owns the open compaction tenures of this node."""

    def __init__(
        self,
        keys: KeySpace,
        own_fence: fence.Fence,
        follower: Follower,
        lookup: Lookup,
        tools: Tools,
    ) -> None:
        self._keys = keys
        self._own_fence = own_fence
        self._follower = follower
        self._lookup = lookup
        self._tools = tools
        self._open: dict[Tenure, OwnCompactionTenure] = {}
        self._is_closed = False

    async def point(self) -> CompactionPoint:
        """As CompactionMetadata.compaction_point, but may wait for the follower without end."""
        keys = self._keys
        kv = await keys.retry.bounded().run(lambda: keys.kv.get(counter.key(keys.prefix)))
        if kv is not None:
            # The record that raised it was put at the same revision.
            await self._follower.reach(kv.mod_revision)
        return CompactionPoint(
            self._follower.state.fold.compactions.counter, self._follower.revision
        )

    async def open(self, ids_max: int) -> OwnCompactionTenure:
        """As CompactionMetadata.open_compaction_tenure."""
        if not 0 < ids_max <= WINDOW_MAX:
            raise Invalid(f"a compactor may hold 1 to {WINDOW_MAX} object ids, not {ids_max}")
        registered = await register(
            self._keys,
            compactor_of(self._follower.tenure.node_id),
            has_disk_wal=False,
            window=ids_max,
            tools=self._tools,
            guard=self._guard,
        )
        await self._follower.reach(registered.revision)
        if self._is_closed:
            raise Closed("the metadata was closed; its compactor's tenure is sealed by the next")
        sender = RecordSender(
            self._keys, self._follower, registered.tenure, registered.fence, self._tools
        )
        opened = OwnCompactionTenure(
            self._keys,
            registered,
            follower=self._follower,
            lookup=self._lookup,
            sender=sender,
            tools=self._tools,
            on_end=self._forget,
        )
        self._open[registered.tenure] = opened
        opened.start()
        return opened

    def orphans(self) -> list[Orphans]:
        """Ids that live compaction tenures gave up."""
        orphans = []
        for tenure, opened in self._open.items():
            if opened.orphans and not self._follower.has_sealed(tenure):
                orphans.append(Orphans(tenure, tuple(opened.orphans), is_living=True))
        return orphans

    @property
    def open_ids(self) -> frozenset[int]:
        """As OwnCompactionTenure.open_ids, of all tenures."""
        return frozenset[int]().union(*(opened.open_ids for opened in self._open.values()))

    @property
    def waits_for_sweep(self) -> bool:
        """As OwnCompactionTenure.waits_for_sweep, of any tenure."""
        return any(opened.waits_for_sweep for opened in self._open.values())

    def holds(self, object_id: int) -> bool:
        """As OwnCompactionTenure.holds, of any tenure."""
        return any(opened.holds(object_id) for opened in self._open.values())

    def swept(self, tenure: Tenure, object_ids: Sequence[int]) -> None:
        opened = self._open.get(tenure)
        if opened is not None:
            opened.swept(object_ids)

    async def close(self) -> None:
        """Seals all tenures."""
        self._is_closed = True
        for opened in list(self._open.values()):
            await opened.close()

    async def kill(self) -> None:
        self._is_closed = True
        for opened in list(self._open.values()):
            await opened.kill()

    def fail(self, error: StreamlogError) -> None:
        for opened in self._open.values():
            opened.fail(error)

    def _guard(self) -> Sequence[Compare]:
        """Compares the node's own fence: a sealed node must not seal its successor's compactor."""
        tenure = self._follower.tenure
        if self._follower.is_sealed:
            raise TenureFenced(f"tenure {tenure} was sealed: it opens no compactor")
        own = replace(self._own_fence, gen=self._follower.gen)
        return (ValueIs(fence.key(self._keys.prefix, tenure), fence.encode(own)),)

    def _forget(self, ended: OwnCompactionTenure) -> None:
        self._open.pop(ended.tenure, None)
