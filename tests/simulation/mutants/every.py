"""All mutants: ways to break the engine on purpose, one promise at a time.

A `Mutant` replaces one or two functions of the real engine while a history runs. Its description
states a fact about the mutated engine. `append.py`, `log.py`, `recovery.py` and `transactions.py`
have the mutants of single parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from streamlog.compaction.collect import guard as collector_guard
from streamlog.engine.append.budget import Budget
from streamlog.engine.append.group import confirm
from streamlog.engine.append.group_commit import GroupCommit
from streamlog.engine.append.sequencer import Sequencer
from streamlog.engine.engine import Engine
from streamlog.engine.kv_client import EngineKVClient
from streamlog.engine.staging.client import EngineStaging
from streamlog.engine.stream_core import StreamCore
from streamlog.engine.streams.token_change import TokenChange
from streamlog.engine.upload.object_put import ObjectPut
from streamlog.engine.upload.uploader import Uploader
from streamlog.errors import (
    Closed,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    StreamlogError,
    Unavailable,
)
from streamlog.format.wal import frame as wal_frame
from streamlog.kvstore.interface import Compare, Operation, Put, ValueIs
from streamlog.log.partition.producer_state_manager import ProducerStateManager
from streamlog.metadata.checkpoint import build as checkpoint_build
from streamlog.metadata.compaction.garbage import Garbage
from streamlog.metadata.compaction.tenure import OwnCompactionTenure
from streamlog.metadata.fold import plan
from streamlog.metadata.fold.compaction import CompactionDraft
from streamlog.metadata.fold.staging import FoldedStaging
from streamlog.metadata.journal import checkpointer
from streamlog.metadata.journal.object_ids import ObjectIds, OwnedIds, window_ids
from streamlog.metadata.journal.record_sender import RecordSender
from streamlog.metadata.keys import fence, id_block
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.ownership import transfer
from streamlog.model.staging import WriterState
from streamlog.objectstore.cluster.lineage import LineageCheck
from streamlog.testing import torn_disk
from streamlog.testing.simulation.world.kv import SimulationKV
from streamlog.wal.log import WriteAheadLog
from tests.simulation.mutants.append import APPEND_MUTANTS
from tests.simulation.mutants.cleaning import CLEANING_MUTANTS
from tests.simulation.mutants.log import LOG_MUTANTS
from tests.simulation.mutants.mutant import Mutant, Patch
from tests.simulation.mutants.recovery import RECOVERY_MUTANTS
from tests.simulation.mutants.tiered import TIERED_MUTANTS
from tests.simulation.mutants.tiered_topic import TIERED_TOPIC_MUTANTS
from tests.simulation.mutants.transactions import TRANSACTION_MUTANTS
from tests.simulation.mutants.unified import UNIFIED_MUTANTS

# Transactions without one of their compares, selected by the keys that they put.

Transaction = tuple[Sequence[Compare], Sequence[Operation]]


def _puts(letter: bytes) -> Callable[[Sequence[Operation]], bool]:
    """Matches transactions that put a key of that letter; keys are `/sl/<cluster>/<letter>/…`."""

    def matches(then: Sequence[Operation]) -> bool:
        return any(isinstance(op, Put) and _letter(op.key) == letter for op in then)

    return matches


def _letter(key: bytes) -> bytes:
    parts = key.split(b"/", 4)
    return parts[3] if len(parts) > 3 and parts[1] == b"sl" else b""


def _without(put: bytes, compared: bytes) -> Callable[[Patch], None]:
    """Transactions that put `put` do not compare keys of the letter `compared`."""
    matches = _puts(put)

    def install(patch: Patch) -> None:
        async def txn(
            self: SimulationKV,
            compares: Sequence[Compare],
            then: Sequence[Operation],
            otherwise: Sequence[Operation] = (),
        ) -> Any:
            if matches(then):
                compares = [compare for compare in compares if _letter(compare.key) != compared]
            return await original(self, compares, then, otherwise)

        original = patch.set(SimulationKV, "txn", txn)

    return install


def _gen_not_compared(patch: Patch) -> None:
    is_commit = _puts(b"c")

    async def txn(
        self: Any,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> Any:
        if is_commit(then):
            kept = []
            for compare in compares:
                stored = await self._shared.get(compare.key)
                is_fence = isinstance(compare, ValueIs) and _letter(compare.key) == b"f"
                if not (is_fence and stored and fence.decode(stored.value).is_live):
                    kept.append(compare)
            compares = kept
        return await original(self, compares, then, otherwise)

    original = patch.set(SimulationKV, "txn", txn)


# Acknowledging and uploading.


def _ack_before_commit(patch: Patch) -> None:
    def arrived(self: Any, upload: Any) -> None:
        original(self, upload)
        confirm(upload.group)

    original = patch.set(Uploader, "_arrived", arrived)


def _ack_before_sync(patch: Patch) -> None:
    async def write(self: Any, group: Any, begun: Any) -> None:
        confirm(group)
        await original(self, group, begun)

    original = patch.set(GroupCommit, "_write", write)


def _confirm_at_sequencing(patch: Patch) -> None:
    def sequence(self: Any, append: Any) -> None:
        original(self, append)
        append.core.confirm = append.core.next

    original = patch.set(Sequencer, "_sequence_now", sequence)


def _commit_before_put(patch: Patch) -> None:
    async def put(self: Any, *arguments: Any, **options: Any) -> None:
        self._hedging.background.spawn(original(self, *arguments, **options), name="put")

    original = patch.set(ObjectPut, "put", put)


def _released_before_commit(patch: Patch) -> None:
    async def append(self: Any, entries: Any, *known: Any) -> int:
        sequence: int = await original(self, entries)
        self.release(sequence)
        return sequence

    original = patch.set(WriteAheadLog, "append", append)


def _conditional_on_confirmed(patch: Patch) -> None:
    def sequence(self: Any, append: Any) -> None:
        if append.context.expected_next_offset == append.core.confirm:
            append.context = append.context._replace(expected_next_offset=None)
        original(self, append)

    original = patch.set(Sequencer, "_sequence_now", sequence)


def _any_token(patch: Patch) -> None:
    def sequence(self: Any, append: Any) -> None:
        append.context = append.context._replace(fencing_token=None)
        original(self, append)

    original = patch.set(Sequencer, "_sequence_now", sequence)


def _token_not_committed(patch: Patch) -> None:
    async def commit(self: Any) -> None:
        self._core.token = self._token

    patch.set(TokenChange, "_commit", commit)


def _trim_shown_early(patch: Patch) -> None:
    async def committed_to(self: Any, offset: int, request_flush: Any) -> None:
        """A trim calls this before its commit."""
        await original(self, offset, request_flush)
        self.start = max(self.start, offset)

    original = patch.set(StreamCore, "committed_to", committed_to)


def _refused_before_sure(patch: Patch) -> None:
    def refuse(self: Any, append: Any, error: Any) -> None:
        self._budget.release(append.charge)
        append.future.set_exception(error)

    patch.set(Sequencer, "_refuse", refuse)


def _failed_write_acknowledged(patch: Patch) -> None:
    async def append(self: Any, entries: Any, *known: Any) -> int:
        try:
            sequence: int = await original(self, entries)
        except (Unavailable, OutcomeUnknown) as error:
            if isinstance(error, Closed):
                raise
            return int(self.last_sequence)
        return sequence

    original = patch.set(WriteAheadLog, "append", append)


def _answer_forgotten(patch: Patch) -> None:
    """One append of each group is never answered."""

    def answer(self: Any, group: Any) -> None:
        group.items[-1].future = None
        original(self, group)

    original = patch.set(GroupCommit, "_answer", answer)


def _expired_keeps_place(patch: Patch) -> None:
    def expire(self: Any, waiter: Any) -> None:
        waiters = self._waiters
        original(self, waiter)
        self._waiters = waiters

    original = patch.set(Budget, "_expire", expire)


def _refused_keeps_room(patch: Patch) -> None:
    def refuse(self: Any, *arguments: Any) -> None:
        self._budget.take_unbounded(1)
        original(self, *arguments)

    original = patch.set(Sequencer, "_refuse", refuse)


def _sealed_as_drained(patch: Patch) -> None:
    patch.set(Engine, "is_drained", property(lambda self: True))


# The local disk.


def _never_synced(patch: Patch) -> None:
    patch.set(torn_disk._Content, "make_durable", lambda self, sectors: None)


def _replay_skips_last(patch: Patch) -> None:
    async def recover(self: Any) -> Any:
        held = None
        async for group in original(self):
            if held is not None:
                yield held
            held = group

    original = patch.set(WriteAheadLog, "recover", recover)


def _torn_is_whole(patch: Patch) -> None:
    """Payloads and tables are taken whatever their CRC says; headers are checked."""

    def decode_entries(header: Any, frame: Any) -> Any:
        class Lenient:
            def __eq__(self, other: object) -> bool:
                return True

            def __ne__(self, other: object) -> bool:
                return False

        crc32c = vars(wal_frame)["crc32c"]
        vars(wal_frame)["crc32c"] = lambda *_: Lenient()
        try:
            return original(header, frame)
        finally:
            vars(wal_frame)["crc32c"] = crc32c

    from streamlog.wal import replay, scan

    original = patch.set(wal_frame, "decode_entries", decode_entries)
    patch.set(scan, "decode_entries", decode_entries)
    patch.set(replay, "decode_entries", decode_entries)


# Moves.


def _strip_by_holder(patch: Patch) -> None:
    patch.set(plan._EntryDraft, "_is_mine", lambda self, info, epoch: info.holder == self._tenure)


def _opened_at_old_end(patch: Patch) -> None:
    async def open_streams(self: Any, wanted: Any, **options: Any) -> Any:
        fold = self._follower.state.fold
        before = {stream_id: fold.row(stream_id) for stream_id, _ in wanted}
        rows = await original(self, wanted, **options)
        return [
            replace(row, end=before[row.stream_id].end) if before[row.stream_id] else row
            for row in rows
        ]

    original = patch.set(transfer.OwnershipTransfer, "open_streams", open_streams)


def _epoch_not_compared(patch: Patch) -> None:
    def plan_opens(
        fold: Any, me: Any, wanted: Any, fences: Any, wal: Any, **options: Any
    ) -> transfer.OpenPlan:
        lower = {
            stream_id: epoch
            for stream_id, epoch in wanted.items()
            if epoch is not None and stream_id in fold.info and epoch <= fold.info[stream_id].epoch
        }
        rest = {s: (None if s in lower else e) for s, e in wanted.items()}
        opens: transfer.OpenPlan = original(fold, me, rest, fences, wal, **options)
        for holder, streams in opens.transfers.items():
            opens.transfers[holder] = [
                stream._replace(epoch=lower.get(stream.stream_id, stream.epoch))
                for stream in streams
            ]
        return opens

    original = patch.set(transfer, "plan_opens", plan_opens)


def _wal_not_asked_for(patch: Patch) -> None:
    patch.set(fence.Fence, "holds_wal", property(lambda self: False))


def _lost_stream_stays(patch: Patch) -> None:
    """A stream that was lost is not halted, and its memory is used when it comes back."""

    def core(self: Any, row: Any) -> Any:
        lost = self.cores.get(row.stream_id)
        if lost is None:
            return original(self, row)
        lost.epoch = row.epoch
        return lost

    patch.set(Engine, "lost", lambda self, stream_id, epoch: None)
    original = patch.set(Engine, "core", core)


# Commits.


def _refused_is_not_applied(patch: Patch) -> None:
    async def refused(self: Any, frozen: Any, result: Any) -> int | None:
        revision = await original(self, frozen, result)
        if revision is not None:
            await self._follower.reach(revision)
        return None

    original = patch.set(RecordSender, "_refused", refused)


# Checkpoints.


def _newest_generation_lost(patch: Patch) -> None:
    def take_snapshot(fold: Any) -> Any:
        snapshot = original(fold)
        return replace(snapshot, generation=type(snapshot.generation)())

    original = patch.set(checkpoint_build, "take_snapshot", take_snapshot)
    patch.set(checkpointer, "take_snapshot", take_snapshot)


def _sweep_without_key(patch: Patch) -> None:
    async def sweep(self: Any) -> Any:
        names = checkpointer._names
        checkpointer._names = lambda kv: set()
        try:
            return await original(self)
        finally:
            checkpointer._names = names

    original = patch.set(checkpointer.Checkpointer, "sweep_files", sweep)


# Compaction.


def _inputs_not_looked_at(patch: Patch) -> None:
    patch.set(OwnCompactionTenure, "_check_inputs", lambda self, replacement: None)


def _clip_forgotten(patch: Patch) -> None:
    def check_stream(self: Any, stream_id: int, inputs: Any) -> int:
        starts, runs = self._fold.starts, self._runs[stream_id]
        first = min(start for start, _, _ in runs)
        if stream_id in self._fold.info and first < starts[stream_id]:
            starts[stream_id] = first
        replaced: int = original(self, stream_id, inputs)
        return replaced

    original = patch.set(CompactionDraft, "_check_stream", check_stream)


# Deleting.


def _pins_ignored(patch: Patch) -> None:
    async def oldest_pin(self: Any) -> int | None:
        return None

    patch.set(Garbage, "oldest_pin", oldest_pin)


PIN_AGE_S = 20.0
"""More than the deletion delay: these pins were read before the death."""


def _pins_read_before(patch: Patch) -> None:
    """Pins count that some node read `PIN_AGE_S` ago."""
    seen: list[tuple[float, int | None]] = []

    async def orphan_candidates(self: Any) -> Any:
        now = self._clock.monotonic()
        if seen and now < seen[-1][0]:
            seen.clear()  # another history
        seen.append((now, await oldest(self)))
        return await candidates(self)

    async def oldest_pin(self: Any) -> int | None:
        until = self._clock.monotonic() - PIN_AGE_S
        before = [pinned for read_at, pinned in seen if read_at <= until]
        return before[-1] if before else None

    candidates = patch.set(Garbage, "orphan_candidates", orphan_candidates)
    oldest = patch.set(Garbage, "oldest_pin", oldest_pin)


def _neither_delay_nor_pins(patch: Patch) -> None:
    _pins_ignored(patch)
    _no_deletion_delay(patch)


def _swept_by_an_earlier_look(patch: Patch) -> None:
    """What was uncommitted when the tenure was last seen alive is deleted once it is sealed."""

    async def orphan_candidates(self: Any) -> Any:
        seen = vars(self).setdefault("_seen_alive", {})
        state = self._follower.state
        blocks = await self._blocks(id_block.OBJECTS)
        for tenure, tenure_fence in list(state.fences.items()):
            if tenure_fence.is_live and tenure != self._follower.tenure:
                floor = state.fold.mark(tenure).floor
                ids = window_ids(blocks.get(tenure, []), floor, tenure_fence.window)
                seen[tenure] = tuple([n for n in ids if await self._lookup.object(n) is None])
        orphans = await original(self)
        for number, orphan in enumerate(orphans):
            tenure = orphan.tenure
            if not orphan.is_living and tenure in seen:
                orphans[number] = replace(orphan, object_ids=seen[tenure])
                self._listed[tenure] = orphans[number]
        return orphans

    original = patch.set(Garbage, "orphan_candidates", orphan_candidates)


def _no_deletion_delay(patch: Patch) -> None:
    def dead_objects(self: Any, limit: int) -> Any:
        return [dead._replace(died_ms=0) for dead in original(self, limit)]

    original = patch.set(Garbage, "dead_objects", dead_objects)


def _live_are_swept(patch: Patch) -> None:
    def sealed_to_sweep(self: Any) -> Any:
        return [
            (tenure, False)
            for tenure in self._follower.state.fences
            if tenure != self._follower.tenure and tenure not in self._swept
        ]

    patch.set(Garbage, "_sealed_to_sweep", sealed_to_sweep)


def _window_not_honoured(patch: Patch) -> None:
    patch.set(ObjectIds, "has_room", property(lambda self: True))


def _ids_not_given_up(patch: Patch) -> None:
    async def leave(self: Any, *error: Any) -> None:
        """Ids that no commit took over stay open."""

    patch.set(OwnedIds, "__aexit__", leave)


def _lineage_not_compared(patch: Patch) -> None:
    async def check(self: Any) -> bool:
        return True

    patch.set(LineageCheck, "check", check)
    patch.set(collector_guard, "check_lineage", lambda url, stored, mine: None)


def _orphans_not_swept(patch: Patch) -> None:
    async def none(self: Any) -> Any:
        return []

    patch.set(Garbage, "orphan_candidates", none)


# Logs and keys.


def _resend_is_new(patch: Patch) -> None:
    patch.set(ProducerStateManager, "check", lambda self, header, now_ms: None)


def _taken_all_the_same(refusal: type[StreamlogError]) -> Callable[[Patch], None]:
    """A producer's batch is taken for new where it should be refused."""

    def install(patch: Patch) -> None:
        def check(self: Any, header: Any, now_ms: int) -> Any:
            try:
                return original(self, header, now_ms)
            except refusal:
                return None

        original = patch.set(ProducerStateManager, "check", check)

    return install


def _producers_not_restored(patch: Patch) -> None:
    def check(self: Any, header: Any, now_ms: int) -> Any:
        producer = self._producers.get(header.producer_id) if self._producers else None
        return None if producer is None else original(self, header, now_ms)

    original = patch.set(ProducerStateManager, "check", check)
    patch.set(ProducerStateManager, "restore", lambda self, records: None)


def _cas_is_put(patch: Patch) -> None:
    async def compare_and_set_kv(self: Any, key: Any, data: bytes, expected_revision: int) -> Any:
        return await self.put_kv(key, data)

    patch.set(EngineKVClient, "compare_and_set_kv", compare_and_set_kv)


# Staged writes.


def _staged_swept(patch: Patch) -> None:
    def in_memory(self: Any, state: Any, object_id: int) -> Any:
        if object_id in state.fold.staging.staged:
            return None
        return original(self, state, object_id)

    original = patch.set(Lookup, "_in_memory", in_memory)


def _place_forgotten(patch: Patch) -> None:
    def rows(self: FoldedStaging, without: Any = ()) -> Any:
        staged = original(self, without)
        staged.attached = []
        return staged

    original = patch.set(FoldedStaging, "rows", rows)


def _commits_forgotten(patch: Patch) -> None:
    patch.set(FoldedStaging, "last_epoch", lambda self, writer_id: -1)
    patch.set(EngineStaging, "writer", lambda self, writer_id: WriterState())


def _staged_before_stored(patch: Patch) -> None:
    async def store(self: Any, *arguments: Any) -> Any:
        engine, held = self._engine, []

        class Later:
            async def put(self, *call: Any, **settings: Any) -> None:
                held.append((call, settings))

        class Without:
            def __getattr__(self, name: str) -> Any:
                return Later() if name == "put" else getattr(engine, name)

        stand_in: Any = EngineStaging.__new__(EngineStaging)
        stand_in.__dict__.update(self.__dict__)
        stand_in._engine = Without()
        stored = await original(stand_in, *arguments)
        for call, settings in held:
            await engine.put.put(*call, **settings)
        return stored

    original = patch.set(EngineStaging, "_store", store)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "no fence compare",
        "a commit does not compare its fence",
        "object",
        _without(b"c", b"f"),
        is_quick=True,
    ),
    Mutant(
        "gen not compared",
        "a commit compares that its fence is live, not its gen",
        "object",
        _gen_not_compared,
    ),
    Mutant("no head compare", "a commit does not compare the head", "object", _without(b"c", b"h")),
    Mutant(
        "refused is not applied",
        "a refused resend is taken for never applied",
        "object",
        _refused_is_not_applied,
        is_quick=True,
    ),
    Mutant(
        "ack before commit",
        "an append is answered when its object is stored",
        "object",
        _ack_before_commit,
        is_quick=True,
    ),
    Mutant(
        "commit before put",
        "an object is committed while it is being stored",
        "object",
        _commit_before_put,
        is_quick=True,
    ),
    Mutant(
        "confirmed at once",
        "what was sequenced is shown to readers",
        "object",
        _confirm_at_sequencing,
        is_quick=True,
    ),
    Mutant(
        "ack before sync",
        "an append is answered before the WAL is written",
        "disk",
        _ack_before_sync,
        is_quick=True,
    ),
    Mutant("never synced", "WAL writes are not synced", "disk", _never_synced),
    Mutant(
        "WAL released early",
        "a group's WAL is free once written, not once committed",
        "disk",
        _released_before_commit,
        is_quick=True,
    ),
    Mutant(
        "replay skips a group",
        "the WAL's last group is not replayed",
        "disk",
        _replay_skips_last,
        is_quick=True,
    ),
    Mutant(
        "torn is whole", "a torn WAL frame is taken for data", "disk", _torn_is_whole, is_quick=True
    ),
    Mutant(
        "sealed as drained", "a tenure that did not drain says it did", "disk", _sealed_as_drained
    ),
    Mutant(
        "WAL not asked for",
        "a stream is moved though its data is on a disk",
        "disk",
        _wal_not_asked_for,
    ),
    Mutant(
        "holder's fence not compared",
        "a move does not compare the holder's fence",
        "object",
        _without(b"m", b"f"),
    ),
    Mutant(
        "opened at the old end",
        "a stream is opened at the end that was known before the move",
        "object",
        _opened_at_old_end,
    ),
    Mutant(
        "strip by holder",
        "what is stripped goes by the holder, not by the epoch",
        "object",
        _strip_by_holder,
    ),
    Mutant(
        "epoch not compared",
        "a stream is opened under an epoch that it had",
        "object",
        _epoch_not_compared,
    ),
    Mutant(
        "lost stream stays",
        "what is in memory of a lost stream is used again",
        "object",
        _lost_stream_stays,
    ),
    Mutant(
        "checkpoint does not compare k",
        "a checkpoint overwrites another's",
        "object",
        _without(b"k", b"k"),
    ),
    Mutant(
        "checkpoint loses records",
        "the newest records are not in the checkpoint",
        "object",
        _newest_generation_lost,
    ),
    Mutant(
        "sweep ignores k", "checkpoint files that are named are swept", "object", _sweep_without_key
    ),
    Mutant(
        "compactions not counted",
        "a compaction commits whatever others did since it was planned",
        "object",
        _without(b"x", b"x"),
    ),
    Mutant(
        "overtaken compactor commits",
        "a compaction that another one overtook does not look at its inputs again",
        "object",
        _inputs_not_looked_at,
    ),
    Mutant(
        "clip forgotten",
        "a compaction brings back what was trimmed since it was planned",
        "object",
        _clip_forgotten,
    ),
    Mutant(
        "orphans read before the seal",
        "what is swept of a tenure was looked up before it was sealed",
        "object",
        _swept_by_an_earlier_look,
    ),
    Mutant(
        "pins read before the death",
        "deaths are held against pins that were read before them",
        "object",
        _pins_read_before,
    ),
    Mutant(
        "neither delay nor pins",
        "a dead object that a reader pins is deleted at once",
        "object",
        _neither_delay_nor_pins,
    ),
    Mutant("pins ignored", "pins do not hold deletions up", "object", _pins_ignored),
    Mutant("no deletion delay", "dead objects are deleted at once", "object", _no_deletion_delay),
    Mutant(
        "live tenures swept",
        "orphans are swept of tenures that are not sealed",
        "object",
        _live_are_swept,
    ),
    Mutant("window not honoured", "ids past the window are stored", "object", _window_not_honoured),
    Mutant(
        "ids not given up",
        "the id of an object that is not committed stays open",
        "disk",
        _ids_not_given_up,
    ),
    Mutant(
        "lineage not compared",
        "a node on metadata that a recovery replaced goes on and deletes",
        "object",
        _lineage_not_compared,
    ),
    Mutant("orphans stay", "orphans are not looked for", "object", _orphans_not_swept),
    Mutant(
        "conditional on confirmed",
        "a conditional append is tested against the confirmed end",
        "object",
        _conditional_on_confirmed,
    ),
    Mutant("any token", "the fencing token is not tested", "disk", _any_token),
    Mutant(
        "resend is new", "a producer's resend is taken for something new", "disk", _resend_is_new
    ),
    Mutant(
        "producers not restored",
        "producer states are forgotten by a restart",
        "disk",
        _producers_not_restored,
    ),
    Mutant(
        "staged objects swept",
        "what an ended tenure staged is taken for its orphan",
        "object",
        _staged_swept,
    ),
    Mutant(
        "place forgotten",
        "a checkpoint does not say where objects were attached",
        "object",
        _place_forgotten,
        is_quick=True,
    ),
    Mutant(
        "commits forgotten",
        "an epoch that was committed is committed again",
        "disk",
        _commits_forgotten,
        is_quick=True,
    ),
    Mutant(
        "staged before stored",
        "an object is staged before its PUT is done",
        "object",
        _staged_before_stored,
    ),
    Mutant(
        "token not committed",
        "a change of the fencing token is in memory alone",
        "disk",
        _token_not_committed,
    ),
    Mutant(
        "trim shown early",
        "a stream's start moves before its trim is committed",
        "object",
        _trim_shown_early,
        is_quick=True,
    ),
    Mutant(
        "refused before sure",
        "a refusal is told before all that it rests on is durable",
        "object",
        _refused_before_sure,
        is_quick=True,
    ),
    Mutant(
        "failed write acknowledged",
        "appends are answered though their group could not be written",
        "disk",
        _failed_write_acknowledged,
        is_quick=True,
    ),
    Mutant(
        "answer forgotten",
        "an append of a group is never answered",
        "disk",
        _answer_forgotten,
        is_quick=True,
    ),
    Mutant(
        "expired keeps its place",
        "an append whose wait has expired is still counted as waiting",
        "object",
        _expired_keeps_place,
    ),
    Mutant(
        "refused keeps its room",
        "an append that is refused does not give back all of its room",
        "object",
        _refused_keeps_room,
        is_quick=True,
    ),
    Mutant(
        "skipped sequence taken",
        "a batch whose sequence leaves some out is taken",
        "object",
        _taken_all_the_same(OutOfOrderSequence),
    ),
    Mutant(
        "older epoch taken",
        "a batch under an older epoch of its producer is taken",
        "disk",
        _taken_all_the_same(ProducerFenced),
    ),
    Mutant("cas is put", "compare-and-set does not compare", "object", _cas_is_put),
    *APPEND_MUTANTS,
    *LOG_MUTANTS,
    *RECOVERY_MUTANTS,
    *TIERED_MUTANTS,
    *TIERED_TOPIC_MUTANTS,
    *TRANSACTION_MUTANTS,
    *UNIFIED_MUTANTS,
    *CLEANING_MUTANTS,
)
