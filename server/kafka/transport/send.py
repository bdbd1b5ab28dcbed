"""Writes answers in pieces, without joining them: record batches go from memory to the socket.

asyncio's `write` copies what the socket does not take at once, and `writelines` joins its pieces
first (until Python 3.12). So the pieces stay here, in a queue, and `writev` gets them as they are.
Where the socket is full, the transport gets the next few bytes of the queue: when it has sent them,
it calls `resume_writing`, and the queue goes on. Nothing else is written through the transport, so
the order is that of the queue.

Over TLS the transport has to encrypt: it gets slices of the queue, as many as it takes.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from streamlog.runtime.buffers import Buffer
from streamlog.server.kafka.transport.signal import Signal

PIECES_MAX = 512
"""In one `writev`; the kernel takes 1,024."""
PROBE_BYTES = 4 * 1024
"""What the transport gets to find out when a full socket takes more."""
TLS_SLICE_BYTES = 64 * 1024
TLS_BUFFER_BYTES = 256 * 1024
ROOM_BYTES = 256 * 1024
"""The next answer is made once no more than this waits for the socket."""


class AnswerSender:
    """One connection's outgoing side. Its queue holds at most `ROOM_BYTES` and one answer, as long
    as its callers await `room` before they make the next one."""

    __slots__ = (
        "_fd",
        "_is_over",
        "_is_paused",
        "_on_progress",
        "_pieces",
        "_room",
        "_transport",
        "queued_bytes",
    )

    def __init__(self, transport: asyncio.Transport, on_progress: Callable[[], None]) -> None:
        """`on_progress`: the socket took some of what had to wait."""
        self._transport = transport
        self._on_progress = on_progress
        self._pieces: deque[Buffer] | None = None
        """What the socket has not taken; made when there is some for the first time."""
        self._room = Signal()
        self._is_paused = False
        self._is_over = False
        self.queued_bytes = 0
        """Not taken by the socket yet."""
        is_plain = transport.get_extra_info("sslcontext") is None
        self._fd: int = transport.get_extra_info("socket").fileno() if is_plain else -1
        # Paused as soon as anything waits in a plain transport: this queue comes after that.
        transport.set_write_buffer_limits(0 if is_plain else TLS_BUFFER_BYTES)

    @property
    def is_over(self) -> bool:
        """The client takes no more: `connection_lost` comes, or has come."""
        return self._is_over

    @property
    def is_blocked(self) -> bool:
        """The client does not read what was sent to it."""
        return self._is_paused

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Sends the pieces behind all earlier ones, now or when the socket takes them."""
        if self._is_over or not pieces:
            return
        size = sum(map(len, pieces))
        if not self._pieces and not self._is_paused and self._fd >= 0 and len(pieces) <= PIECES_MAX:
            # Most answers: the socket takes them whole.
            taken = self._written(pieces)
            if taken == size or self._is_over:
                return
        else:
            taken = 0
        if self._pieces is None:
            self._pieces = deque()
        self._pieces.extend(filter(len, pieces))
        self.queued_bytes += size
        if taken:
            self._let_go(self._pieces, taken)
        if not self._is_paused:
            self._flush()

    @property
    def has_room(self) -> bool:
        """`room` would not wait."""
        return self.queued_bytes <= ROOM_BYTES

    async def room(self) -> None:
        """Waits until the queue is short. Returns, too, once the connection has ended."""
        while self.queued_bytes > ROOM_BYTES and not self._is_over:
            await self._room.wait()

    async def drained(self) -> None:
        """Waits until everything has gone to the kernel, or the connection has ended."""
        while (self.queued_bytes or self._is_paused) and not self._is_over:
            await self._room.wait()

    def pause(self) -> None:
        """The transport holds bytes that the socket does not take."""
        self._is_paused = True

    def resume(self) -> None:
        """The transport has sent all that it got."""
        self._is_paused = False
        self._on_progress()
        self._flush()
        self._room.set()

    def end(self) -> None:
        """The connection is over: fetches that wait for room go on, and the pieces are freed."""
        self._is_over = True
        self._pieces = None
        self.queued_bytes = 0
        self._room.set()

    def _flush(self) -> None:
        pieces = self._pieces
        while pieces and not self._is_paused and not self._is_over:
            if self._fd < 0:
                if self._transport.is_closing():
                    self.end()
                    return
                self._write_joined(pieces)
                continue
            batch = list(pieces) if len(pieces) <= PIECES_MAX else list(islice(pieces, PIECES_MAX))
            taken = self._written(batch)
            if self._is_over:
                return
            self._let_go(pieces, taken)
            if taken < sum(map(len, batch)):
                self._write_slice(pieces, PROBE_BYTES)

    def _written(self, pieces: Sequence[Buffer]) -> int:
        """Bytes that the socket took; `end` was called if the connection is over."""
        # The number of a closed socket may be another connection's by now.
        if self._transport.is_closing():
            self.end()
            return 0
        try:
            return os.writev(self._fd, pieces)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._transport.abort()  # The client has left: `connection_lost` follows.
            self.end()
            return 0

    def _let_go(self, pieces: deque[Buffer], size: int) -> None:
        """Removes what the socket took."""
        self.queued_bytes -= size
        while size:
            first = len(pieces[0])
            if size < first:
                pieces[0] = memoryview(pieces[0])[size:]
                return
            size -= first
            pieces.popleft()

    def _write_joined(self, pieces: deque[Buffer]) -> None:
        """Hands the transport small pieces as one: each write is a TLS record, or several."""
        if len(pieces) == 1 or len(pieces[0]) >= TLS_SLICE_BYTES:
            self._write_slice(pieces, TLS_SLICE_BYTES)
            return
        joined: list[Buffer] = []
        size = 0
        while pieces and size + len(pieces[0]) <= TLS_SLICE_BYTES:
            size += len(pieces[0])
            joined.append(pieces.popleft())
        self.queued_bytes -= size
        self._transport.write(b"".join(joined))

    def _write_slice(self, pieces: deque[Buffer], size_max: int) -> None:
        """Hands the queue's next bytes to the transport."""
        first = pieces.popleft()
        if len(first) > size_max:
            view = memoryview(first)
            pieces.appendleft(view[size_max:])
            first = view[:size_max]
        self.queued_bytes -= len(first)
        self._transport.write(memoryview(first))
