"""What may be deleted: dead objects, orphans, and in the end the keys of retired tenures.

The orphans of a sealed tenure are found in a fold that has seen its seal. Seal and records come
from the same watch, in order: when a fence is seen sealed here, all its records are folded.

Objects that a live tenure of this node gave up are deleted at once, so that its floor can rise, and
once more later, because a PUT whose answer was lost may arrive after the first delete. This *late
delete* is written to the metadata store, so that it is not lost when the tenure ends: the sweep of
the sealed tenure does it then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from streamlog.errors import MetadataUnavailable
from streamlog.kvstore.interface import (
    Compare,
    Delete,
    Operation,
    Put,
    RevisionIs,
    prefix_end,
)
from streamlog.metadata.compaction.compactors import Compactors
from streamlog.metadata.interface import DeadObject, Orphans, Tenure
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import ObjectIdAllocator
from streamlog.metadata.journal.object_ids import ObjectIds, window_ids
from streamlog.metadata.keys import fence, head, id_block, late_deletes, node, pin
from streamlog.metadata.keys.id_block import IdKind
from streamlog.metadata.keys.space import number_in
from streamlog.metadata.keyspace import KeySpace, Tools
from streamlog.metadata.lookup.lookup import Lookup

LATE_MS = 3600 * 1000
"""No PUT of a live tenure arrives so long after its object was given up."""
LATE_IDS_MAX = 512
"""Most late deletes of a tenure: fewer than the collector's guard allows for one ended tenure."""
_LATE_IDS_A_RUN = 64


class Garbage:
    def __init__(
        self,
        keys: KeySpace,
        follower: Follower,
        lookup: Lookup,
        ids: ObjectIds,
        allocator: ObjectIdAllocator,
        compactors: Compactors,
        tools: Tools,
    ) -> None:
        self._kv = keys.kv
        self._prefix = keys.prefix
        self._follower = follower
        self._lookup = lookup
        self._ids = ids
        self._allocator = allocator
        self._compactors = compactors
        self._config = tools.config
        self._clock = tools.clock
        self._metrics = tools.metrics
        self._listed: dict[Tenure, Orphans] = {}
        """The orphans of sealed tenures, as last listed; an entry goes with its tenure's fence."""
        self._swept: set[Tenure] = set()
        """Sealed tenures that were swept once; one goes with its fence, as in `_listed`."""
        self._late_deletes: dict[int, float] = {}
        """Ids that were given up and deleted once → monotonic second of the second delete. At most
        LATE_IDS_MAX: the oldest go first."""
        for who, waits in (
            ("uploads", lambda: allocator.waits_for_sweep),
            ("compaction", lambda: compactors.waits_for_sweep),
        ):
            self._metrics.waiting_for_sweep.labels(who).set_function(waits)

    def waiting(self) -> list[str]:
        """As MetadataSession.waiting_for_sweep."""
        reasons = []
        if self._allocator.waits_for_sweep:
            reasons.append("uploads wait until objects that were given up are deleted")
        if self._compactors.waits_for_sweep:
            reasons.append("compaction waits until objects that it gave up are deleted")
        return reasons

    def dead_objects(self, limit: int) -> list[DeadObject]:
        """As Metadata.dead_objects."""
        dead = self._follower.state.dead.items()
        return [DeadObject(object_id, *found) for object_id, found in islice(dead, limit)]

    def is_dead(self, object_id: int) -> bool:
        """As Metadata.is_dead."""
        return object_id in self._follower.state.dead

    def is_uploading(self, object_id: int) -> bool:
        """As Metadata.is_uploading."""
        return self._ids.holds(object_id) or self._compactors.holds(object_id)

    def is_swept(self, object_id: int) -> bool:
        """As Metadata.is_swept."""
        return object_id in self._late_deletes or any(
            object_id in orphans.object_ids for orphans in self._listed.values()
        )

    def forget(self, object_ids: Iterable[int]) -> None:
        """As Metadata.forget_objects."""
        dead = self._follower.state.dead
        for object_id in object_ids:
            dead.pop(object_id, None)
        self._metrics.dead_objects.set(len(dead))

    async def orphan_candidates(self) -> list[Orphans]:
        """As Metadata.orphan_candidates."""
        self._forget_retired()
        tenure = self._follower.tenure
        orphans = []
        own = self._ids.orphans
        if own:
            orphans.append(Orphans(tenure, tuple(own), is_living=True))
        now_s = self._clock.monotonic()
        due = [object_id for object_id, due_s in self._late_deletes.items() if due_s <= now_s]
        if due:
            orphans.append(Orphans(tenure, tuple(due[:_LATE_IDS_A_RUN]), is_living=True))
        orphans += self._compactors.orphans()
        return orphans + await self._orphans_of_sealed()

    async def _orphans_of_sealed(self) -> list[Orphans]:
        orphans: list[Orphans] = []
        sealed = self._sealed_to_sweep()
        if not sealed:
            return orphans
        blocks = await self._blocks(id_block.OBJECTS)
        for tenure, is_final in sealed:
            sealed_fence = self._follower.state.fences.get(tenure)
            if sealed_fence is None:
                continue  # another node retired it meanwhile
            floor = self._follower.state.fold.mark(tenure).floor
            ids = []
            window = window_ids(blocks.get(tenure, []), floor, sealed_fence.window)
            for object_id in sorted({*window, *await self._late_deletes_of(tenure)}):
                # A dead object is no orphan: its deletion waits for a delay and for pins. That it
                # is dead may be found during the look-up.
                is_live = await self._lookup.object(object_id) is not None
                if not is_live and object_id not in self._follower.state.dead:
                    ids.append(object_id)
            last = window[-1] if window else None
            self._listed[tenure] = Orphans(tenure, tuple(ids), is_final, last_of_window=last)
            orphans.append(self._listed[tenure])
        return orphans

    async def orphans_deleted(self, orphans: Orphans) -> None:
        """As Metadata.orphans_deleted."""
        if orphans.is_living:
            await self._deleted_once(orphans.object_ids)
        if orphans.tenure == self._follower.tenure:
            self._ids.swept(orphans.object_ids)
            self._allocator.changed()
            return
        self._compactors.swept(orphans.tenure, orphans.object_ids)
        # A live compactor's orphans are not the whole window that a sealed tenure's sweep lists.
        if self._listed.get(orphans.tenure) != orphans:
            return
        self._swept.add(orphans.tenure)
        if orphans.is_final:
            await self._retire(orphans.tenure)

    def _forget_retired(self) -> None:
        """Forgets tenures whose fence is gone: this or another node has retired them."""
        fences = self._follower.state.fences
        self._swept &= fences.keys()
        for tenure in self._listed.keys() - fences.keys():
            del self._listed[tenure]

    async def _deleted_once(self, object_ids: Iterable[int]) -> None:
        due_s = self._clock.monotonic() + min(LATE_MS, self._config.orphan_resweep_ms) / 1000
        late_deletes = dict(self._late_deletes)
        for object_id in object_ids:
            if late_deletes.pop(object_id, None) is None:
                late_deletes[object_id] = due_s
        while len(late_deletes) > LATE_IDS_MAX:
            del late_deletes[next(iter(late_deletes))]
        await self._write_late_deletes(late_deletes)
        self._late_deletes = late_deletes

    async def _write_late_deletes(self, object_ids: Collection[int]) -> None:
        tenure = self._follower.tenure
        node_key = node.key(self._prefix, tenure.node_id)
        late_key = late_deletes.key(self._prefix, tenure)
        kv, old = await self._kv.get(node_key), await self._kv.get(late_key)
        if kv is None or node.decode(kv.value).node_epoch != tenure.node_epoch:
            return  # sealed: its floor cannot rise any more, and the sweep deletes ids above it
        # An earlier list whose answer was lost may arrive between the two reads.
        revision = 0 if old is None else old.mod_revision
        written = await self._kv.txn(
            [RevisionIs(node_key, kv.mod_revision), RevisionIs(late_key, revision)],
            [Put(late_key, late_deletes.encode(object_ids))],
        )
        if not written.succeeded:
            raise MetadataUnavailable("the list of late deletes changed meanwhile; try again")

    async def _late_deletes_of(self, tenure: Tenure) -> tuple[int, ...]:
        kv = await self._kv.get(late_deletes.key(self._prefix, tenure))
        return () if kv is None else late_deletes.decode(kv.value)

    async def oldest_pin(self) -> int | None:
        """As Metadata.oldest_pin."""
        start = pin.prefix_of_pins(self._prefix)
        pins = await self._kv.range(start, prefix_end(start))
        return min((pin.decode(kv.value).revision for kv in pins.kvs), default=None)

    def _sealed_to_sweep(self) -> list[tuple[Tenure, bool]]:
        """Sealed tenures to sweep, each with whether this is its final, late sweep."""
        now_ms, to_sweep = self._clock.now_ms(), []
        for tenure, seen in self._follower.state.fences.items():
            if seen.is_live or tenure == self._follower.tenure:
                continue
            is_late = now_ms >= seen.sealed_ms + self._config.orphan_resweep_ms
            is_final = is_late and self._may_retire(tenure)
            if is_final or tenure not in self._swept:
                to_sweep.append((tenure, is_final))
        return to_sweep

    def _may_retire(self, tenure: Tenure) -> bool:
        """Whether the tenure holds no stream, and the checkpoint covers all its records."""
        state = self._follower.state
        if tenure in state.fold.held or state.checkpoint is None:
            return False
        mark = state.fold.marks.get(tenure)
        return mark is None or mark == state.checkpoint.tenures.get(tenure)

    async def _retire(self, tenure: Tenure) -> None:
        """Deletes the tenure's fence, head, late deletes and blocks.

        Where one of the keys has changed, nothing is deleted: the next sweep tries again.
        """
        fence_key, head_key = fence.key(self._prefix, tenure), head.key(self._prefix, tenure)
        fence_kv, head_kv = await self._kv.get(fence_key), await self._kv.get(head_key)
        if fence_kv is None or head_kv is None or not self._may_retire(tenure):
            return
        last = fence.decode(fence_kv.value)
        mark = self._follower.state.fold.mark(tenure)
        if last.is_live or (head.decode(head_kv.value), last.gen) != (mark.seq, mark.gen):
            return
        deletes: list[Operation] = [Delete(fence_key), Delete(head_key)]
        deletes.append(Delete(late_deletes.key(self._prefix, tenure)))
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
        blocks: dict[Tenure, list[int]] = {}
        for kv in (await self._kv.range(start, prefix_end(start))).kvs:
            blocks.setdefault(id_block.decode_owner(kv.value), []).append(number_in(kv.key))
        return blocks
