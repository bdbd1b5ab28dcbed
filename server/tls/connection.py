"""TLS of one connection of an asyncio listener, between its socket and the protocol above it.

    socket ─> scratch, shared ─> SSLObject ─> the protocol's own buffer
    socket <─ SSLObject <─ what the protocol wrote, queued while the socket is full

It stands in for asyncio's own TLS for what that does before it knows a client: it counts no
connection until the handshake is done, and gives each one 256 KiB at once. Here the listener's
bound counts a connection when it is accepted, an idle one costs some 25 KiB, and bytes are
decrypted straight into the memory that a `BufferedProtocol` keeps.

The protocol above gets `connection_made` after the handshake, and asyncio's calls from then on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from streamlog.runtime.buffers import Buffer
from streamlog.server.ended_connections import EndedConnectionsLog, peer_address
from streamlog.server.limits.connections import BoundedConnections
from streamlog.server.tls.node_tls import NodeTls
from streamlog.server.wrong_ports import FIRST_BYTES_MAX, NodePorts, Spoken, spoken

log = logging.getLogger(__name__)

HANDSHAKE_S_MAX = 10.0
"""A connection that has not finished its handshake by then is closed."""
CLOSE_S_MAX = 10.0
"""How long a client may take to read the last bytes of a connection that is closed."""
SCRATCH_BYTES = 256 * 1024
READ_BYTES_MIN = 16 * 1024
"""What a quiet connection reads at once. OpenSSL keeps as much memory as it was ever given, so only
a connection that fills this gets more, up to the whole scratch."""
SLICE_BYTES = 64 * 1024
"""Encrypted in one go, before the socket is asked whether it takes more."""
HIGH_WATER_BYTES = 64 * 1024


class _State(IntEnum):
    HANDSHAKE = 0
    OPEN = 1
    CLOSING = 2
    """The queue goes out; nothing is read any more."""
    CLOSED = 3


class TlsConnections:
    """The protocol factory of a listener; what its connections share."""

    def __init__(
        self,
        tls: NodeTls,
        factory: Callable[[], asyncio.BaseProtocol],
        bound: BoundedConnections | None = None,
        ports: NodePorts | None = None,
        on_refused: Callable[[str], None] = lambda peer: None,
    ) -> None:
        """`bound` None: `factory`'s protocols are counted by somebody else.

        `on_refused(peer)`: a connection above the bound is closed.
        """
        self.tls = tls
        self.factory = factory
        self.bound = bound
        self.on_refused = on_refused
        self.ports = ports or NodePorts()
        self.shaking: set[TlsConnection] = set()
        """In their handshake: the protocols above do not know them yet."""
        self._failures = EndedConnectionsLog(log, "a TLS handshake failed")
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    def __call__(self) -> TlsConnection:
        return TlsConnection(self)

    def note_failure(self, reason: str, peer: str) -> None:
        """Logs a handshake that failed, unless another one just did: anybody can make them."""
        now = asyncio.get_running_loop().time()
        self._failures.note(now, logging.INFO, reason=reason, peer=peer)

    def abort_handshakes(self) -> None:
        """Ends connections in their handshake when the listener stops: no protocol knows them."""
        for connection in list(self.shaking):
            connection.abort()


class TlsConnection(asyncio.BufferedProtocol):
    """The protocol of the socket's own transport."""

    def __init__(self, shared: TlsConnections) -> None:
        self._shared = shared
        self._state = _State.HANDSHAKE
        self._is_counted = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = shared.tls.current.context
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._above: asyncio.BaseProtocol | None = None
        self._first_bytes = b""
        self._is_reading_paused = False
        self._read_bytes = READ_BYTES_MIN
        self._queue: deque[Buffer] = deque()
        self._queued_bytes = 0
        self._is_raw_full = False
        self._is_above_told_full = False
        self._high_bytes, self._low_bytes = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    # -- from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        bound = self._shared.bound
        if bound is not None:
            if not bound.try_open():
                self._shared.on_refused(peer_address(transport))
                transport.abort()
                return
            self._is_counted = True
        self._shared.shaking.add(self)
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S_MAX, self._end_handshake)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.scratch[: self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._shared.scratch[:nbytes])
        if nbytes == self._read_bytes:
            self._read_bytes = min(SCRATCH_BYTES, 4 * nbytes)
        if self._state is _State.HANDSHAKE:
            if not self._first_bytes:
                self._first_bytes = bytes(self._shared.scratch[: min(nbytes, FIRST_BYTES_MAX)])
            self._shake_hands()
        self._deliver()

    def eof_received(self) -> bool:
        """The client closed its side, perhaps without TLS's own goodbye."""
        if self._state is _State.OPEN:
            self._end_of_input()
            return True  # `close` ends the socket once the queue is empty.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._shared.shaking.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._is_counted:
            assert self._shared.bound is not None
            self._shared.bound.count -= 1
        self._queue.clear()
        self._queued_bytes = 0
        above, self._above = self._above, None
        if above is not None:
            above.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_raw_full = True

    def resume_writing(self) -> None:
        self._is_raw_full = False
        self._send_queue()

    # -- the handshake

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._shared.note_failure(self._why_failed(error), peer_address(self._raw))
            self._flush()  # The alert, which tells the client why.
            self._raw.close()
            self._state = _State.CLOSED
            return
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
        self._state = _State.OPEN
        self._shared.shaking.discard(self)
        self._above = self._shared.factory()
        # Not kept here: a cycle would hold a closed connection's memory until garbage is collected.
        self._above.connection_made(_TlsTransport(self))

    def _end_handshake(self) -> None:
        reason = f"the client had not finished it after {HANDSHAKE_S_MAX:g} s"
        self._shared.note_failure(reason, peer_address(self._raw))
        self._raw.abort()

    def _why_failed(self, error: ssl.SSLError) -> str:
        if spoken(self._first_bytes) is Spoken.TLS:
            return error.reason or str(error)
        return self._shared.ports.advice(self._first_bytes, is_tls_port=True)

    # -- to the protocol above

    def _deliver(self) -> None:
        """Hands over what is decrypted, as long as the protocol takes it."""
        above = self._above
        try:
            while (
                self._state is _State.OPEN
                and not self._is_reading_paused
                and (self._incoming.pending or self._ssl.pending())
            ):
                is_more = (
                    self._fill(above)
                    if isinstance(above, asyncio.BufferedProtocol)
                    else self._pass_on(above)
                )
                if not is_more:
                    return
        except ssl.SSLError as error:
            extra = {"error": str(error), "peer": peer_address(self._raw)}
            log.debug("a TLS connection broke", extra=extra)
            self.abort()

    def _fill(self, above: asyncio.BufferedProtocol) -> bool:
        """Decrypts into the protocol's own buffer; whether there may be more."""
        buffer = memoryview(above.get_buffer(-1))
        filled, is_ended, is_dry = 0, False, False
        while filled < len(buffer) and not is_dry:
            try:
                count = self._read_into(buffer[filled:])
            except ssl.SSLWantReadError:
                is_dry = True
            except ssl.SSLZeroReturnError:
                is_ended = is_dry = True
            else:
                filled += count
                is_ended = is_dry = count == 0
        if filled:
            above.buffer_updated(filled)
        if is_ended and self._state is _State.OPEN:
            self._end_of_input()
        return not is_dry

    def _read_into(self, buffer: memoryview) -> int:
        read: Any = self._ssl.read  # Given memory, it returns how much of it was filled.
        return int(read(len(buffer), buffer))

    def _pass_on(self, above: Any) -> bool:
        data = b""
        with_end = False
        try:
            data = self._ssl.read(SLICE_BYTES)
            with_end = not data
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            with_end = True
        if data:
            above.data_received(data)
        if with_end:
            self._end_of_input()
        return not with_end

    def _end_of_input(self) -> None:
        above: Any = self._above
        if not above.eof_received():
            self.close()

    def pause_reading(self) -> None:
        if not self._is_reading_paused and self._state is _State.OPEN:
            self._is_reading_paused = True
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._is_reading_paused and self._state is _State.OPEN:
            self._is_reading_paused = False
            self._raw.resume_reading()
            asyncio.get_running_loop().call_soon(self._deliver_rest)

    def _deliver_rest(self) -> None:
        """What was decrypted, or received, while reading was paused."""
        try:
            self._deliver()
        except Exception:
            # Of the protocol above: asyncio's own callbacks would end the connection, too.
            self._raw.abort()
            raise

    # -- from the protocol above

    def write(self, data: Buffer) -> None:
        if self._state is not _State.OPEN or not len(data):
            return
        view = memoryview(data)
        if not self._queue:
            view = self._encrypt(view)
        if len(view):
            # The caller may use its memory anew after `write`.
            self._queue.append(bytes(view))
            self._queued_bytes += len(view)
        if self._queued_bytes > self._high_bytes and not self._is_above_told_full:
            self._is_above_told_full = True
            self._tell_above("pause_writing")

    def _encrypt(self, view: memoryview) -> memoryview:
        """Sends as much as the socket takes; the rest of the view."""
        while len(view) and not self._is_raw_full:
            self._ssl.write(view[:SLICE_BYTES])
            view = view[SLICE_BYTES:]
            self._flush()
        return view

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _send_queue(self) -> None:
        queue = self._queue
        while queue and not self._is_raw_full:
            first = memoryview(queue.popleft())
            rest = self._encrypt(first)
            self._queued_bytes -= len(first) - len(rest)
            if len(rest):
                queue.appendleft(rest)
        if self._is_above_told_full and self._queued_bytes <= self._low_bytes:
            self._is_above_told_full = False
            self._tell_above("resume_writing")
        if self._state is _State.CLOSING and not queue:
            self._say_goodbye()

    def _tell_above(self, name: str) -> None:
        if self._above is not None:
            getattr(self._above, name)()

    @property
    def write_buffer_bytes(self) -> int:
        return self._queued_bytes + self._raw.get_write_buffer_size()

    def set_limits(self, high: int | None, low: int | None) -> None:
        self._high_bytes = HIGH_WATER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    @property
    def limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    # -- the end

    def close(self) -> None:
        """Sends what is queued, and TLS's goodbye."""
        if self._state is not _State.OPEN:
            return
        self._state = _State.CLOSING
        self._raw.pause_reading()
        self._end_after(CLOSE_S_MAX)
        if not self._queue:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            """The client's own goodbye is not waited for."""
        self._flush()
        self._raw.close()

    def abort(self) -> None:
        self._state = _State.CLOSED  # Nothing more is handed over, or sent.
        self._raw.abort()

    def _end_after(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(time_s, self._raw.abort)

    @property
    def is_open(self) -> bool:
        return self._state is _State.OPEN and not self._raw.is_closing()

    @property
    def is_reading(self) -> bool:
        return self.is_open and not self._is_reading_paused

    @property
    def above(self) -> asyncio.BaseProtocol | None:
        return self._above

    @above.setter
    def above(self, protocol: asyncio.BaseProtocol) -> None:
        self._above = protocol

    def extra_info(self, name: str, default: Any) -> Any:
        if name == "ssl_object":
            return self._ssl
        if name == "sslcontext":
            return self._ssl.context
        if name == "peercert":
            return self._ssl.getpeercert()
        if name == "cipher":
            return self._ssl.cipher()
        return self._raw.get_extra_info(name, default)


class _TlsTransport(asyncio.Transport):
    """What the protocol above writes to: asyncio's interface, and nothing else."""

    def __init__(self, connection: TlsConnection) -> None:
        super().__init__()
        self._connection = connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._connection.above = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        above = self._connection.above
        assert above is not None
        return above

    def is_closing(self) -> bool:
        return not self._connection.is_open

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()

    def is_reading(self) -> bool:
        return self._connection.is_reading

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()

    def write(self, data: Buffer) -> None:
        self._connection.write(data)

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._connection.set_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._connection.write_buffer_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._connection.limits
