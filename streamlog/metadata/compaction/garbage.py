"""What may be deleted: dead objects, orphans, and at last what is known of a settled tenure.

A tenure's orphans are judged by a fold that has seen its seal: both come from the same watch, in
order, so a fence that is sealed here has all its records folded.

What a living tenure of this node gave up is deleted at once, so that its floor can rise, and once
more later: a PUT whose answer was lost may land after the first. The second is written down
(`o/T`), so that whoever sweeps the tenure after its end makes up for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from streamlog.errors import MetadataUnavailable
from streamlog.kvstore.interface import (
    Compare,
    Delete,
    KVStore,
    Operation,
    Put,
    RevisionIs,
    prefix_end,
)
from streamlog.metadata.compaction.compactors import Compactors
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import DeadObject, Orphans, Tenure
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import ObjectIdAllocator
from streamlog.metadata.journal.object_ids import ObjectIds, window_ids
from streamlog.metadata.keys import fence, head, id_block, late, node, pin
from streamlog.metadata.keys.id_block import IdKind
from streamlog.metadata.keys.space import number_in
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.metrics import MetadataMetrics
from streamlog.runtime.clock import Clock

LATE_MS = 3600 * 1000
"""No PUT of a living tenure lands so long after it was given up."""
LATE_IDS_MAX = 512
"""Fewer than the collector's guard takes for one ended tenure's."""
_LATE_IDS_A_RUN = 64


class Garbage:
    def __init__(
        self,
        kv: KVStore,
        prefix: bytes,
        follower: Follower,
        lookup: Lookup,
        ids: ObjectIds,
        allocator: ObjectIdAllocator,
        compactors: Compactors,
        *,
        config: MetadataConfig,
        clock: Clock,
        metrics: MetadataMetrics,
    ) -> None:
        self._kv = kv
        self._prefix = prefix
        self._follower = follower
        self._lookup = lookup
        self._ids = ids
        self._allocator = allocator
        self._compactors = compactors
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._listed: dict[Tenure, Orphans] = {}
        """The windows of sealed tenures, as last told."""
        self._swept: set[Tenure] = set()
        self._late: dict[int, int] = {}
        """Released ids that were deleted once, with the time of the second deletion (ms)."""
        for who, waits in (
            ("uploads", lambda: allocator.waits_for_sweep),
            ("compaction", lambda: compactors.waits_for_sweep),
        ):
            metrics.waiting_for_sweep.labels(who).set_function(waits)

    def waiting(self) -> list[str]:
        """As TenureMetadata.waiting_for_sweep."""
        found = []
        if self._allocator.waits_for_sweep:
            found.append("uploads wait until objects that were given up are deleted")
        if self._compactors.waits_for_sweep:
            found.append("compaction waits until objects that it gave up are deleted")
        return found

    def dead_objects(self, limit: int) -> list[DeadObject]:
        """As Metadata.dead_objects."""
        dead = self._follower.state.dead.items()
        return [DeadObject(object_id, *death) for object_id, death in islice(dead, limit)]

    def is_dead(self, object_id: int) -> bool:
        """As Metadata.is_dead."""
        return object_id in self._follower.state.dead

    def is_uploading(self, object_id: int) -> bool:
        """As Metadata.is_uploading."""
        return self._ids.holds(object_id) or self._compactors.holds(object_id)

    def is_swept(self, object_id: int) -> bool:
        """As Metadata.is_swept."""
        return object_id in self._late or any(
            object_id in orphans.object_ids for orphans in self._listed.values()
        )

    def forget(self, object_ids: Iterable[int]) -> None:
        dead = self._follower.state.dead
        for object_id in object_ids:
            dead.pop(object_id, None)
        self._metrics.dead_objects.set(len(dead))

    async def orphan_candidates(self) -> list[Orphans]:
        """As Metadata.orphan_candidates."""
        self._forget_settled()
        found = []
        own = self._ids.orphans
        if own:
            found.append(Orphans(self._follower.tenure, tuple(own), is_living=True))
        now_ms = self._clock.now_ms()
        late = [object_id for object_id, due_ms in self._late.items() if due_ms <= now_ms]
        if late:
            again = tuple(late[:_LATE_IDS_A_RUN])
            found.append(Orphans(self._follower.tenure, again, is_living=True))
        found += self._compactors.orphans()
        sealed = self._sealed_to_sweep()
        if sealed:
            blocks = await self._blocks(id_block.OBJECTS)
            for tenure, is_final in sealed:
                known = self._follower.state.fences.get(tenure)
                if known is None:
                    continue  # another node settled it meanwhile
                floor = self._follower.state.fold.mark(tenure).floor
                ids = []
                window = window_ids(blocks.get(tenure, []), floor, known.window)
                for object_id in sorted({*window, *await self._late_of(tenure)}):
                    # A dead object waits for its delay and for pins; it is nobody's orphan. Its
                    # death may be found during the look-up.
                    is_live = await self._lookup.object(object_id) is not None
                    if not is_live and object_id not in self._follower.state.dead:
                        ids.append(object_id)
                self._listed[tenure] = Orphans(tenure, tuple(ids), is_final)
                found.append(self._listed[tenure])
        return found

    async def orphans_deleted(self, orphans: Orphans) -> None:
        """As Metadata.orphans_deleted."""
        if orphans.is_living:
            await self._deleted_once(orphans.object_ids)
        if orphans.tenure == self._follower.tenure:
            self._ids.swept(orphans.object_ids)
            self._allocator.changed()
            return
        self._compactors.swept(orphans.tenure, orphans.object_ids)
        # What a compactor released while it lived is not its whole window.
        if self._listed.get(orphans.tenure) != orphans:
            return
        self._swept.add(orphans.tenure)
        if orphans.is_final:
            await self._settle(orphans.tenure)

    def _forget_settled(self) -> None:
        """Tenures whose fence is gone were swept for the last time, here or by another node."""
        fences = self._follower.state.fences
        self._swept &= fences.keys()
        for tenure in self._listed.keys() - fences.keys():
            del self._listed[tenure]

    async def _deleted_once(self, object_ids: Iterable[int]) -> None:
        due_ms = self._clock.now_ms() + min(LATE_MS, self._config.orphan_resweep_ms)
        found = dict(self._late)
        for object_id in object_ids:
            if found.pop(object_id, None) is None:
                found[object_id] = due_ms
        while len(found) > LATE_IDS_MAX:
            del found[next(iter(found))]
        await self._write_late(found)
        self._late = found

    async def _write_late(self, object_ids: Collection[int]) -> None:
        tenure = self._follower.tenure
        node_key = node.key(self._prefix, tenure.node_id)
        late_key = late.key(self._prefix, tenure)
        kv, old = await self._kv.get(node_key), await self._kv.get(late_key)
        if kv is None or node.decode(kv.value).node_epoch != tenure.node_epoch:
            return  # sealed: its floor rises no more, and the sweep deletes what is past it
        # An earlier list whose answer was lost may land between the two.
        revision = 0 if old is None else old.mod_revision
        written = await self._kv.txn(
            [RevisionIs(node_key, kv.mod_revision), RevisionIs(late_key, revision)],
            [Put(late_key, late.encode(object_ids))],
        )
        if not written.succeeded:
            raise MetadataUnavailable("the list of late objects changed meanwhile; try again")

    async def _late_of(self, tenure: Tenure) -> tuple[int, ...]:
        kv = await self._kv.get(late.key(self._prefix, tenure))
        return () if kv is None else late.decode(kv.value)

    async def oldest_pin(self) -> int | None:
        """As Metadata.oldest_pin."""
        start = pin.prefix_of_pins(self._prefix)
        found = await self._kv.range(start, prefix_end(start))
        return min((pin.decode(kv.value).revision for kv in found.kvs), default=None)

    def _sealed_to_sweep(self) -> list[tuple[Tenure, bool]]:
        """Sealed tenures, and whether the late sweep is due; swept ones wait for that."""
        now_ms, found = self._clock.now_ms(), []
        for tenure, known in self._follower.state.fences.items():
            if known.is_live or tenure == self._follower.tenure:
                continue
            is_late = now_ms >= known.sealed_ms + self._config.orphan_resweep_ms
            is_final = is_late and self._is_settled(tenure)
            if is_final or tenure not in self._swept:
                found.append((tenure, is_final))
        return found

    def _is_settled(self, tenure: Tenure) -> bool:
        """It holds nothing, and the checkpoint covers all that it did."""
        state = self._follower.state
        if tenure in state.fold.held or state.checkpoint is None:
            return False
        mark = state.fold.marks.get(tenure)
        return mark is None or mark == state.checkpoint.tenures.get(tenure)

    async def _settle(self, tenure: Tenure) -> None:
        """Deletes its fence, head and blocks; refused when something changed: the next sweep."""
        fence_key, head_key = fence.key(self._prefix, tenure), head.key(self._prefix, tenure)
        fence_kv, head_kv = await self._kv.get(fence_key), await self._kv.get(head_key)
        if fence_kv is None or head_kv is None or not self._is_settled(tenure):
            return
        known = fence.decode(fence_kv.value)
        mark = self._follower.state.fold.mark(tenure)
        if known.is_live or (head.decode(head_kv.value), known.gen) != (mark.seq, mark.gen):
            return
        deletes: list[Operation] = [Delete(fence_key), Delete(head_key)]
        deletes.append(Delete(late.key(self._prefix, tenure)))
        for kind in (id_block.OBJECTS, id_block.STREAMS):
            for block in (await self._blocks(kind)).get(tenure, ()):
                deletes.append(Delete(id_block.block_key(self._prefix, kind, block)))
        compares: list[Compare] = [
            RevisionIs(fence_key, fence_kv.mod_revision),
            RevisionIs(head_key, head_kv.mod_revision),
        ]
        await self._kv.txn(compares, deletes)

    async def _blocks(self, kind: IdKind) -> dict[Tenure, list[int]]:
        """Block numbers by owner, rising."""
        start = id_block.block_prefix(self._prefix, kind)
        found: dict[Tenure, list[int]] = {}
        for kv in (await self._kv.range(start, prefix_end(start))).kvs:
            found.setdefault(id_block.decode_owner(kv.value), []).append(number_in(kv.key))
        return found
