"""Opens and transfers streams: transactions on the fence of the tenure that holds them.

1. `plan_opens` (pure) checks the wanted streams against the fold and groups them by holder.
2. A transfer compares the holder's fence as read and this tenure's own fence. It raises the gen in
   the holder's fence, so that a racing transfer, or a commit of the holder that is not folded yet,
   is refused.
3. When the answer names revision R, everything up to R is folded before a stream is used, because
   the stream's end is the one after the holder's last record.
4. After an unknown outcome the same bytes are sent again. After a refusal, the transfer was applied
   if the transfer record at that gen has this request id, or if the fold saw it. Otherwise it can
   never be applied, because one of the two fences has changed: the streams are planned again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from streamlog.errors import (
    Conflict,
    Internal,
    Invalid,
    MetadataUnavailable,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
    TenureFenced,
    WalPending,
)
from streamlog.kvstore.interface import (
    Compare,
    Get,
    Put,
    RevisionIs,
    StoredKeyValue,
    TxnResult,
    ValueIs,
)
from streamlog.metadata.backoff import MetadataBackoff, is_transient
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.interface import StreamEpoch, StreamRow, Tenure, check_epoch
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.keys import fence, lease, transfer
from streamlog.metadata.keys.fence import Fence
from streamlog.metadata.keyspace import KeySpace, Tools

log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenPlan:
    """Which of the wanted streams are open here already, and which must be transferred."""

    held: dict[int, int] = field(default_factory=dict)
    """Stream id → epoch; no transaction is needed."""
    transfers: dict[Tenure, list[StreamEpoch]] = field(default_factory=dict)
    """By current holder; the epochs are the new ones."""


def plan_opens(
    fold: Fold,
    me: Tenure,
    wanted: Mapping[int, int | None],
    fences: Mapping[Tenure, Fence],
    wal_in_hand: frozenset[Tenure],
    *,
    accept_data_loss: bool,
    force: bool = False,
) -> OpenPlan:
    """Plans how this tenure (`me`) opens the wanted streams; changes nothing.

    A holder without an entry in `fences` is checked by the fold alone. `force` also takes open
    streams from a live holder. A stream that this tenure already holds open keeps its epoch even
    then: its engine may have acknowledged appends from the WAL, which a new epoch would cut off.
    Errors: StreamNotFound, StreamFenced, Conflict, WalPending.
    """
    plan = OpenPlan()
    for stream_id, epoch in wanted.items():
        info = fold.info.get(stream_id)
        if info is None:
            raise StreamNotFound(f"there is no stream {stream_id}", stream_id=stream_id)
        is_held = info.holder == me and info.is_open
        if is_held and (epoch == info.epoch or (force and epoch is None)):
            plan.held[stream_id] = info.epoch
            continue
        if epoch is not None and epoch <= info.epoch:
            raise StreamFenced(
                f"stream {stream_id} was opened at epoch {info.epoch}; {epoch} is not above it",
                stream_id=stream_id,
                epoch=info.epoch,
            )
        if info.holder != me and info.is_open and info.holder in fences:
            holder_fence = fences[info.holder]
            if holder_fence.is_live and not force:
                raise _is_open(stream_id, info.holder)
            if holder_fence.holds_wal and info.holder not in wal_in_hand and not accept_data_loss:
                raise wal_pending(info.holder, stream_id=stream_id)
        new = StreamEpoch(stream_id, info.epoch + 1 if epoch is None else epoch)
        plan.transfers.setdefault(info.holder, []).append(new)
    return plan


def _is_open(stream_id: int, holder: Tenure) -> Conflict:
    return Conflict(
        f"stream {stream_id} is open at node {holder.node_id}, which was not declared dead; "
        "close it there first",
        stream_id=stream_id,
        holder=str(holder),
    )


def wal_pending(holder: Tenure, **fields: int) -> WalPending:
    return WalPending(
        f"tenure {holder} acknowledged writes that may lie only in the write-ahead log on node "
        f"{holder.node_id}'s disk: start that node with its WAL folder, or upload the folder, or "
        "accept the loss of those writes",
        holder=str(holder),
        **fields,
    )


class OwnershipTransfer:
    """Opens streams for this tenure, takes over those of dead tenures, and seals tenures."""

    def __init__(
        self,
        keys: KeySpace,
        follower: Follower,
        own_fence: Fence,
        tools: Tools,
    ) -> None:
        self._kv = keys.kv
        self._prefix = keys.prefix
        self._follower = follower
        self._own_fence = own_fence
        self._clock = tools.clock
        self._random = tools.random
        self._retry = keys.retry
        self._wal_in_hand: frozenset[Tenure] = frozenset()

    @property
    def _me(self) -> Tenure:
        return self._follower.tenure

    async def open_streams(
        self,
        wanted: Sequence[tuple[int, int | None]],
        *,
        accept_data_loss: bool,
        force: bool = False,
    ) -> list[StreamRow]:
        """As Metadata.open_streams; `force` also takes open streams from a live holder."""
        asked = dict(wanted)
        if len(asked) != len(wanted):
            raise Invalid("a stream is asked for twice in one call")
        for stream_id, epoch in wanted:
            check_epoch(stream_id, epoch)
        opened: dict[int, int] = {}
        backoff = self._retry.bounded()
        is_caught_up = False
        while len(opened) < len(asked):
            rest = {s: e for s, e in asked.items() if s not in opened}
            fences = await self._fences(rest, backoff)
            decoded = {tenure: fence.decode(kv.value) for tenure, kv in fences.items()}
            try:
                plan = plan_opens(
                    self._follower.state.fold,
                    self._me,
                    rest,
                    decoded,
                    self._wal_in_hand,
                    accept_data_loss=accept_data_loss,
                    force=force,
                )
            except (StreamNotFound, StreamFenced, Conflict):
                if is_caught_up:
                    raise
                # Another tenure may have created, closed or moved the stream a moment ago.
                await self._follower.catch_up(backoff)
                is_caught_up = True
                continue
            opened.update(plan.held)
            for holder, streams in plan.transfers.items():
                if holder not in fences:
                    continue  # it took the streams while the fences were read
                holder_kv = fences[holder]
                # The first part of a longer list changes the fence; the rest is planned again.
                part = streams[: transfer.STREAMS_MAX]
                if await self._transfer(holder, holder_kv, part, backoff, seal=False):
                    opened.update(part)
        return [self._opened_row(stream_id, opened[stream_id]) for stream_id, _ in wanted]

    async def take_over_previous(
        self,
        wal_tenures: frozenset[Tenure],
        *,
        accept_data_loss: bool,
        before_taking: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Tenure]:
        """As Metadata.take_over_previous."""
        self._wal_in_hand |= wal_tenures
        backoff = self._retry.bounded()
        earlier = sorted(
            tenure
            for tenure in self._follower.state.fold.held
            if tenure.node_id == self._me.node_id and tenure < self._me
        )
        for tenure in earlier:
            kv = await self._fence_of_holder(tenure, backoff)
            if kv is None:
                continue  # another node took its streams and retired it
            self._check_wal(tenure, fence.decode(kv.value), accept_data_loss)
        if before_taking is not None:
            await before_taking()
        taken = []
        for tenure in earlier:
            while tenure in self._follower.state.fold.held:
                kv = await self._fence_of_holder(tenure, backoff)
                if kv is not None and await self._transfer(tenure, kv, None, backoff, seal=True):
                    taken.append(tenure)
        return taken

    async def take_over(self, tenure: Tenure, *, accept_data_loss: bool = False) -> None:
        """Seals a tenure whose lease has ended, and takes all its streams.

        Errors: Conflict (its lease is alive), WalPending, TenureFenced, MetadataUnavailable.
        """
        await self.seal(tenure)
        backoff = self._retry.bounded()
        while True:
            kv = await self._fence(tenure, backoff)
            if kv is not None:
                await self._follower.reach(kv.mod_revision)
            if kv is None or tenure not in self._follower.state.fold.held:
                return
            self._check_wal(tenure, fence.decode(kv.value), accept_data_loss)
            await self._transfer(tenure, kv, None, backoff, seal=True)

    async def seal(self, tenure: Tenure, *, even_if_alive: bool = False) -> None:
        """Seals the tenure: on return it can never commit again.

        `even_if_alive` seals it although its lease is alive, because an operator said so.
        Errors: Conflict (its lease is alive), MetadataUnavailable.
        """
        backoff = self._retry.bounded()
        key = fence.key(self._prefix, tenure)
        alive = RevisionIs(lease.key(self._prefix, tenure), 0)
        while True:
            kv = await self._fence(tenure, backoff)
            if kv is None or not fence.decode(kv.value).is_live:
                return
            sealed = fence.encode(fence.decode(kv.value).sealed(self._clock.now_ms()))
            compares: list[Compare] = [RevisionIs(key, kv.mod_revision)]
            try:
                result = await self._kv.txn(
                    compares if even_if_alive else [*compares, alive],
                    [Put(key, sealed)],
                    [Get(lease.key(self._prefix, tenure))],
                )
            except StreamlogError as error:
                await backoff.after(error)
                continue
            if result.succeeded:
                await self._follower.reach(result.revision)
                return
            if result.responses[0] and not even_if_alive:
                raise Conflict(
                    f"tenure {tenure} keeps its lease alive: it is not sealed", holder=str(tenure)
                )
            await backoff.wait()

    # one transfer

    async def _transfer(
        self,
        holder: Tenure,
        holder_kv: StoredKeyValue,
        streams: Sequence[StreamEpoch] | None,
        backoff: MetadataBackoff,
        *,
        seal: bool,
    ) -> bool:
        """Transfers the streams (None: ALL) and folds that; False: refused, plan again.

        Errors: TenureFenced, MetadataUnavailable. Where the outcome of an attempt is unknown, the
        transfer may still happen, and the error's `has_no_side_effects` is False.
        """
        old = fence.decode(holder_kv.value)
        raised = old.with_next_gen()
        if seal and old.is_live:
            raised = replace(raised, is_live=False, sealed_ms=self._clock.now_ms())
        request_id = self._random.bytes(16)
        record = transfer.TransferRecord(self._me, request_id, streams)
        holder_key = fence.key(self._prefix, holder)
        record_key = transfer.key(self._prefix, holder, raised.gen)
        own_key = fence.key(self._prefix, self._me)
        own = fence.encode(replace(self._own_fence, gen=self._follower.gen))
        compares: list[Compare] = [ValueIs(own_key, own)]
        if holder != self._me:
            compares.append(RevisionIs(holder_key, holder_kv.mod_revision))
        elif own != holder_kv.value:
            await self._follower.reach(holder_kv.mod_revision)
            self._check_sealed(old)
            return False
        puts = [Put(holder_key, fence.encode(raised)), Put(record_key, transfer.encode(record))]
        gets = [Get(holder_key), Get(record_key), Get(own_key)]
        is_unknown = False
        while True:
            try:
                result = await self._kv.txn(compares, puts, gets)
            except StreamlogError as error:
                is_unknown = is_unknown or not error.has_no_side_effects
                if not is_transient(error) or not backoff.is_over:
                    await backoff.after(error)
                    continue
                raise self._gave_up(is_unknown) from error
            if result.succeeded:
                await self._follower.reach(result.revision)
                return True
            return await self._refused(holder, raised.gen, request_id, result)

    async def _refused(
        self, holder: Tenure, gen: int, request_id: bytes, result: TxnResult
    ) -> bool:
        """Whether a refused transfer was applied after all, by an earlier attempt."""
        holders, records, owns = result.responses
        if records and transfer.decode(records[0].value).request_id == request_id:
            await self._follower.reach(records[0].mod_revision)
            return True
        if holders:
            await self._follower.reach(holders[0].mod_revision)
            # A checkpoint may have deleted the record already, but the fold saw it.
            if self._follower.own_transfer(holder, gen) == request_id:
                return True
        if not owns:
            self._follower.note_sealed(self._me, None)
            raise self._fenced()
        await self._follower.reach(owns[0].mod_revision)
        self._check_sealed(fence.decode(owns[0].value))
        return False

    async def _fences(
        self, wanted: Mapping[int, int | None], backoff: MetadataBackoff
    ) -> dict[Tenure, StoredKeyValue]:
        """Reads the holders' fences, and waits until their last changes are folded."""
        fences: dict[Tenure, StoredKeyValue] = {}
        info = self._follower.state.fold.info
        for holder in {info[s].holder for s in wanted if s in info}:
            kv = await self._fence_of_holder(holder, backoff)
            if kv is not None:
                fences[holder] = kv
                await self._follower.reach(kv.mod_revision)
        return fences

    async def _fence_of_holder(
        self, tenure: Tenure, backoff: MetadataBackoff
    ) -> StoredKeyValue | None:
        """None: other nodes took all its streams and retired it, and that is folded on return."""
        kv = await self._fence(tenure, backoff)
        if kv is None:
            await self._follower.catch_up(backoff)
            if tenure in self._follower.state.fold.held:
                raise Internal(f"tenure {tenure} holds streams and has no fence")
        return kv

    async def _fence(self, tenure: Tenure, backoff: MetadataBackoff) -> StoredKeyValue | None:
        return await backoff.run(lambda: self._kv.get(fence.key(self._prefix, tenure)))

    def _opened_row(self, stream_id: int, epoch: int) -> StreamRow:
        row = self._follower.state.fold.row(stream_id)
        if row is None:
            raise StreamNotFound(f"stream {stream_id} was destroyed", stream_id=stream_id)
        if row.holder != self._me or row.epoch != epoch:
            raise StreamFenced(
                f"stream {stream_id} was opened again at epoch {row.epoch}",
                stream_id=stream_id,
                epoch=row.epoch,
            )
        return row

    def _check_wal(self, tenure: Tenure, holder_fence: Fence, accept_data_loss: bool) -> None:
        if holder_fence.holds_wal and tenure not in self._wal_in_hand and not accept_data_loss:
            raise wal_pending(tenure)

    def _check_sealed(self, own: Fence) -> None:
        if not own.is_live:
            self._follower.note_sealed(self._me, own)
            raise self._fenced()

    def _fenced(self) -> TenureFenced:
        return TenureFenced(
            f"tenure {self._me} was sealed: another process took over; start this one again"
        )

    def _gave_up(self, is_unknown: bool) -> MetadataUnavailable:
        error = MetadataUnavailable(
            "the metadata store did not answer while streams were opened; open them again"
            + (" (they may have been opened meanwhile)" if is_unknown else "")
        )
        error.has_no_side_effects = not is_unknown
        return error
