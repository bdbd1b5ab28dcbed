"""Opening and moving streams: transactions on the holder's fence.

1. What is wanted is judged against the fold (`judge`, pure), grouped by holder.
2. A move compares the holder's fence as read and the own fence; it raises the holder's gen, so a
   racing move or an unfolded commit of the holder is refused.
3. After the answer at revision R everything up to R is folded before anybody uses a stream: its
   end is the one after the holder's last record.
4. Unknown outcome: the same bytes again. Refused: the move is in if `m/H/gen` carries its request
   id (or the fold saw it); otherwise it can never land, for `f/H` or the own fence has changed:
   judge anew.
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
    KeyValue,
    KVStore,
    Put,
    RevisionIs,
    TxnResult,
    ValueIs,
)
from streamlog.metadata.backoff import Backoff, Retry, is_transient
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.interface import StreamEpoch, StreamRow, Tenure, check_epoch
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.keys import fence, lease, move
from streamlog.metadata.keys.fence import Fence
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Judgement:
    """`held`: opened already, no transaction. `moves`: by holder, with the new epochs."""

    held: dict[int, int] = field(default_factory=dict)
    moves: dict[Tenure, list[StreamEpoch]] = field(default_factory=dict)


def judge(
    fold: Fold,
    me: Tenure,
    wanted: Mapping[int, int | None],
    fences: Mapping[Tenure, Fence],
    wal_in_hand: frozenset[Tenure],
    *,
    accept_data_loss: bool,
    force: bool = False,
) -> Judgement:
    """`fences` may lack holders: their streams are moved on no other ground than the fold.

    `force` takes open streams from a holder that lives, too. What this tenure came to hold open in
    the meantime is not moved by it: its engine may have acknowledged appends out of the WAL, which
    a new epoch would cut off.
    Errors: StreamNotFound, StreamFenced, Conflict, WalPending: nothing is moved."""
    found = Judgement()
    for stream_id, epoch in wanted.items():
        info = fold.info.get(stream_id)
        if info is None:
            raise StreamNotFound(f"there is no stream {stream_id}", stream_id=stream_id)
        is_held = info.holder == me and info.is_open
        if is_held and (epoch == info.epoch or (force and epoch is None)):
            found.held[stream_id] = info.epoch
            continue
        if epoch is not None and epoch <= info.epoch:
            raise StreamFenced(
                f"stream {stream_id} was opened at epoch {info.epoch}; {epoch} is not above it",
                stream_id=stream_id,
                epoch=info.epoch,
            )
        if info.holder != me and info.is_open and info.holder in fences:
            known = fences[info.holder]
            if known.is_live and not force:
                raise _is_open(stream_id, info.holder)
            if known.holds_wal and info.holder not in wal_in_hand and not accept_data_loss:
                raise wal_pending(info.holder, stream_id=stream_id)
        new = StreamEpoch(stream_id, info.epoch + 1 if epoch is None else epoch)
        found.moves.setdefault(info.holder, []).append(new)
    return found


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


class Mover:
    def __init__(
        self,
        kv: KVStore,
        prefix: bytes,
        follower: Follower,
        own_fence: Fence,
        *,
        clock: Clock,
        random: Random,
        retry: Retry,
    ) -> None:
        self._kv = kv
        self._prefix = prefix
        self._follower = follower
        self._own_fence = own_fence
        self._clock = clock
        self._random = random
        self._retry = retry
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
        """As Metadata.open_streams; `force` takes open streams from a holder that lives, too."""
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
            known = {tenure: fence.decode(kv.value) for tenure, kv in fences.items()}
            try:
                judged = judge(
                    self._follower.state.fold,
                    self._me,
                    rest,
                    known,
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
            opened.update(judged.held)
            for holder, streams in judged.moves.items():
                if holder not in fences:
                    continue  # it came to hold the streams while fences were read
                holder_kv = fences[holder]
                # The first part of a longer list changes the fence; the rest is judged anew.
                part = streams[: move.STREAMS_MAX]
                if await self._move(holder, holder_kv, part, backoff, seal=False):
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
            known = fence.decode(kv.value) if kv is not None else None
            if known is None:
                continue  # another node took its streams and settled it
            if known.holds_wal and tenure not in self._wal_in_hand and not accept_data_loss:
                raise wal_pending(tenure)
        if before_taking is not None:
            await before_taking()
        taken = []
        for tenure in earlier:
            while tenure in self._follower.state.fold.held:
                kv = await self._fence_of_holder(tenure, backoff)
                if kv is not None and await self._move(tenure, kv, None, backoff, seal=True):
                    taken.append(tenure)
        return taken

    async def take_over(self, tenure: Tenure, *, accept_data_loss: bool = False) -> None:
        """Seals a tenure whose lease has ended and takes all its streams.

        Errors: Conflict (it lives, by its lease), WalPending, TenureFenced, MetadataUnavailable.
        """
        await self.seal(tenure)
        backoff = self._retry.bounded()
        while True:
            kv = await self._fence(tenure, backoff)
            if kv is not None:
                await self._follower.reach(kv.mod_revision)
            if kv is None or tenure not in self._follower.state.fold.held:
                return
            known = fence.decode(kv.value)
            if known.holds_wal and tenure not in self._wal_in_hand and not accept_data_loss:
                raise wal_pending(tenure)
            await self._move(tenure, kv, None, backoff, seal=True)

    async def seal(self, tenure: Tenure, *, even_if_alive: bool = False) -> None:
        """The tenure never commits again on return.

        Errors: Conflict (it lives, by its lease; `even_if_alive` is an operator's word against it),
        MetadataUnavailable.
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

    # one move

    async def _move(
        self,
        holder: Tenure,
        holder_kv: KeyValue,
        streams: Sequence[StreamEpoch] | None,
        backoff: Backoff,
        *,
        seal: bool,
    ) -> bool:
        """Whether the streams (None: ALL) moved, folded; False: judge anew.

        Errors: TenureFenced, MetadataUnavailable (it may still happen if some attempt's outcome is
        unknown: has_no_side_effects is False then).
        """
        old = fence.decode(holder_kv.value)
        moved = old.moved()
        if seal and old.is_live:
            moved = replace(moved, is_live=False, sealed_ms=self._clock.now_ms())
        request_id = self._random.bytes(16)
        body = move.Move(self._me, request_id, streams)
        holder_key = fence.key(self._prefix, holder)
        move_key = move.key(self._prefix, holder, moved.gen)
        own_key = fence.key(self._prefix, self._me)
        own = fence.encode(replace(self._own_fence, gen=self._follower.gen))
        compares: list[Compare] = [ValueIs(own_key, own)]
        if holder != self._me:
            compares.append(RevisionIs(holder_key, holder_kv.mod_revision))
        elif own != holder_kv.value:
            await self._follower.reach(holder_kv.mod_revision)
            self._check_sealed(old)
            return False
        puts = [Put(holder_key, fence.encode(moved)), Put(move_key, move.encode(body))]
        gets = [Get(holder_key), Get(move_key), Get(own_key)]
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
            return await self._refused(holder, moved.gen, request_id, result)

    async def _refused(
        self, holder: Tenure, gen: int, request_id: bytes, result: TxnResult
    ) -> bool:
        holders, moves, owns = result.responses
        if moves and move.decode(moves[0].value).request_id == request_id:
            await self._follower.reach(moves[0].mod_revision)
            return True
        if holders:
            await self._follower.reach(holders[0].mod_revision)
            # The move itself may be checkpointed and gone already; the fold saw it.
            if self._follower.own_move(holder, gen) == request_id:
                return True
        if not owns:
            self._follower.note_sealed(self._me, None)
            raise self._fenced()
        await self._follower.reach(owns[0].mod_revision)
        self._check_sealed(fence.decode(owns[0].value))
        return False

    async def _fences(
        self, wanted: Mapping[int, int | None], backoff: Backoff
    ) -> dict[Tenure, KeyValue]:
        """The holders' fences as they are now, and everything folded up to their last change."""
        found: dict[Tenure, KeyValue] = {}
        info = self._follower.state.fold.info
        for holder in {info[s].holder for s in wanted if s in info}:
            kv = await self._fence_of_holder(holder, backoff)
            if kv is not None:
                found[holder] = kv
                await self._follower.reach(kv.mod_revision)
        return found

    async def _fence_of_holder(self, tenure: Tenure, backoff: Backoff) -> KeyValue | None:
        """None: others took all its streams and settled it, which is folded on return."""
        kv = await self._fence(tenure, backoff)
        if kv is None:
            await self._follower.catch_up(backoff)
            if tenure in self._follower.state.fold.held:
                raise Internal(f"tenure {tenure} holds streams and has no fence")
        return kv

    async def _fence(self, tenure: Tenure, backoff: Backoff) -> KeyValue | None:
        while True:
            try:
                return await self._kv.get(fence.key(self._prefix, tenure))
            except StreamlogError as error:
                await backoff.after(error)

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
