"""The Stream and StreamClient protocols: all that a log needs of a storage medium (KIP-1183).

A medium that implements these two and KVClient can carry a SharedLog; the conformance class in
`streamlog.testing.stream_conformance` tests it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from streamlog.model.batch import (
    APPEND,
    FETCH,
    AppendContext,
    AppendResult,
    BatchAttributes,
    CloseStreamOptions,
    CreateStreamOptions,
    DeleteStreamOptions,
    FetchContext,
    FetchResult,
    OpenStreamOptions,
    RecordBatch,
    Reservation,
    StreamDescription,
)

_CREATE, _OPEN = CreateStreamOptions(), OpenStreamOptions()
_CLOSE, _DELETE = CloseStreamOptions(), DeleteStreamOptions()


class Stream(Protocol):
    """An append-only sequence of records; start_offset ≤ confirm_offset ≤ next_offset.

    Every method may be called from one event loop only.
    """

    @property
    def stream_id(self) -> int: ...

    @property
    def stream_epoch(self) -> int: ...

    @property
    def start_offset(self) -> int:
        """First offset that can be fetched."""
        ...

    @property
    def confirm_offset(self) -> int:
        """End (exclusive) of what is durable and can be fetched."""
        ...

    @property
    def next_offset(self) -> int:
        """Offset of the next record; past confirm_offset while appends are under way."""
        ...

    @property
    def tail_offset(self) -> int:
        """First offset of what is in memory: a fetch from there on reads no object."""
        ...

    def append(
        self, batch: RecordBatch, context: AppendContext = APPEND
    ) -> Awaitable[AppendResult]:
        """Adds a batch at next_offset, which moves at this call if there is room or a reservation.

        The awaitable ends when the batch is durable. Acks of one stream come in order. Cancelling
        it stops the wait only: the batch may still be stored.
        Without room the append waits its turn (and is sequenced then) until the deadline.

        Errors: OffsetConflict, TokenMismatch (raised only after everything before is durable);
        Overloaded (nothing stored); StreamFenced, TenureFenced; OutcomeUnknown; Closed.
        """
        ...

    async def reserve(self, size_bytes: int, context: AppendContext = APPEND) -> Reservation:
        """Waits for room; first come, first served. Errors: Overloaded at the deadline, Closed."""
        ...

    async def set_fencing_token(self, token: bytes, context: AppendContext = APPEND) -> None:
        """Sets the token that every later append must carry, if it carries one.

        b"" removes the token. A writer that sets its own token shuts out writers that append with
        an older one; appends without a token are not tested. The token (≤ 64 bytes) stays with the
        stream when it is closed, transferred or opened again. The change has its place among the
        appends: those sequenced before are confirmed on return, those sequenced after it wait until
        it is durable. `context`: expected_next_offset and fencing_token (the token that the
        stream must have; b"": none) are tested at that place; the deadline.

        Cancelling stops the wait only: the token may still be changed.
        Errors: TokenMismatch, OffsetConflict, Invalid; DeadlinePassed (nothing was changed),
        OutcomeUnknown; StreamFenced, TenureFenced; Closed.
        """
        ...

    async def fetch(
        self,
        start_offset: int,
        end_offset: int,
        max_bytes_hint: int,
        context: FetchContext = FETCH,
    ) -> FetchResult:
        """Batches from the one that contains start_offset, up to end_offset (exclusive).

        At least one batch unless start == end; passes the hint by one batch at most.
        Errors: OffsetOutOfRange for start < start_offset or end > confirm_offset; Corrupt;
        StoreUnavailable.
        """
        ...

    async def attributes(self, start_offset: int, end_offset: int) -> Sequence[BatchAttributes]:
        """The attributes of every batch that overlaps the range, in order, without reading data.

        Errors as for fetch.
        """
        ...

    async def wait_confirmed(self, offset: int) -> None:
        """Returns when confirm_offset ≥ offset. Errors: Closed, StreamFenced."""
        ...

    async def trim(self, new_start_offset: int) -> None:
        """Records below are gone for good; durable on return. A backward trim does nothing.

        Errors: OffsetOutOfRange above confirm_offset.
        """
        ...

    async def close(self) -> None:
        """Waits for running appends, then closes the stream; durable on return."""
        ...

    async def destroy(self) -> None:
        """Removes the stream; its data goes after the deletion delay."""
        ...


class StreamClient(Protocol):
    """Makes, opens and deletes streams.

    Opening, closing and deleting a stream with appends under way, and a trim, wait for the store as
    long as it is away. Cancelling such a call does no harm: it may still be carried out.
    """

    async def create_and_open_streams(
        self,
        options: Sequence[CreateStreamOptions],
        first_batches: Callable[[Sequence[int]], Sequence[tuple[int, RecordBatch]]] | None = None,
    ) -> list[Stream]:
        """Creates and opens one stream per options, all or none; durable on return.

        `first_batches` gets the ids of the new streams and returns (stream id, batch) pairs, which
        the same commit stores, so that the streams never appear without them.

        A cancelled call's streams are destroyed again, once the outcome of their commit is known;
        those of a process that ends before that stay, and `list_streams` shows them with their
        tags. Errors: MessageTooLarge (one commit cannot hold so many; nothing was stored),
        Unavailable, Fenced; with `has_no_side_effects` false the streams may exist.
        """
        ...

    async def create_and_open_stream(self, options: CreateStreamOptions = _CREATE) -> Stream: ...

    async def open_stream(self, stream_id: int, options: OpenStreamOptions = _OPEN) -> Stream:
        """Opens the stream for this client; epochs begin at 1.

        Errors, which count all changes up to now, also those of other nodes: StreamNotFound,
        StreamFenced (epoch not above the stream's), Conflict (open elsewhere), WalPending.
        """
        ...

    async def close_stream(self, stream_id: int, options: CloseStreamOptions = _CLOSE) -> None: ...

    async def delete_stream(self, stream_id: int, options: DeleteStreamOptions = _DELETE) -> None:
        """Errors: StreamNotFound, StreamFenced."""
        ...

    async def describe_stream(self, stream_id: int) -> StreamDescription:
        """The stream as this client knows it, which may lag behind. Errors: StreamNotFound."""
        ...

    async def list_streams(self, *, after: int = 0, limit: int = 1000) -> list[StreamDescription]:
        """Streams with id > after, by id."""
        ...
