"""One client's connection: its requests in order, its answers in order, bounded in bytes.

    frames → worker: decode, begin ─┬─ produce → answer task: wait until durable ─┬→ AnswerSender
                                    └─ any other API: serve, once all before it ──┘
                                       have been answered

Produce requests are begun one after the other and answered when they are durable; those that lie
ready together go to the services in one call. Every other request waits until those before it have
been answered, as in Kafka, and holds up those behind it: a fetch that waits for records, too.

Bytes of requests without an answer are bounded: above `in_flight_bytes_per_connection_max` the
socket is not read until a quarter of the bound is free. A single request may pass the bound when it
is alone. Answers that the client does not read hold up the next ones, so that they end in the same
bound.

A connection whose client is above a quota is muted once the request has been answered: until its
time is over nothing is read or begun, so that a client cannot make more by sending more. It holds
no more than its bound meanwhile, and costs one timer.

Both tasks are made at the first request that needs them: a silent connection has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, cast

from streamlog.runtime.buffers import Buffer
from streamlog.server.ended_connections import peer_address
from streamlog.server.kafka.call import CloseConnection
from streamlog.server.kafka.dispatch import Begun, Bug, Dispatcher, Peer, Request
from streamlog.server.kafka.transport.receive import FrameReceiver, ReceiveMemory
from streamlog.server.kafka.transport.send import AnswerSender
from streamlog.server.kafka.transport.signal import Signal
from streamlog.server.limits.in_flight import ConnectionBudget
from streamlog.server.limits.pipeline import REQUEST_OVERHEAD_BYTES
from streamlog.server.wrong_ports import NodePorts

log = logging.getLogger(__name__)

TOGETHER_MAX = 64
TOGETHER_BYTES_MAX = 4 * 1024 * 1024
"""Pipelined requests that go to the services in one call."""
TURN_MAX = 32
"""Requests that one connection has served before the others have their turn."""
JOINED_MAX = 16
JOINED_BYTES_MAX = 64 * 1024
"""Answers that are ready together share a write, up to this number and size. Their client reads the
first ones, and sends again, while the next ones are made."""


class Serving(Protocol):
    """What a connection needs once its node serves; the same for all connections."""

    dispatcher: Dispatcher
    in_flight_bytes_max: int
    requests_max: int

    def new_budget(self) -> ConnectionBudget: ...


class Owner(Protocol):
    """The listener's side of a connection."""

    memory: ReceiveMemory
    ports: NodePorts

    def opened(self, connection: Connection) -> bool:
        """Counts the connection; False: it is one too many."""
        ...

    def active(self, connection: Connection) -> float:
        """The client has sent a request, or has read of its answers; the time, on the clock."""
        ...

    def closed(self, connection: Connection) -> None: ...

    def ended(self, connection: Connection, why: str, reason: str) -> None:
        """The node ends the connection. `why` is a label of metrics, `reason` for people."""
        ...

    def peer_of(self, address: str, certificate: Mapping[str, Any] | None) -> Peer:
        """`certificate`: the client's, as `getpeercert()` gives it; None: it has none."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class Connection(FrameReceiver):
    """Reading is paused until `serve`: what a client sends before waits in the kernel."""

    __slots__ = (
        "_answerer",
        "_answers",
        "_begun",
        "_budget",
        "_frames",
        "_has_left",
        "_is_beginning",
        "_is_draining",
        "_is_muted",
        "_is_over",
        "_is_reading",
        "_is_serving",
        "_large_bytes",
        "_more",
        "_none_begun",
        "_owner",
        "_peer",
        "_sender",
        "_serving",
        "_transport",
        "_unanswered",
        "_unmuting",
        "_worker",
    )

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner.memory)
        self._owner = owner
        self._serving: Serving | None = None
        self._transport: asyncio.Transport | None = None
        self._sender: AnswerSender | None = None
        self._budget: ConnectionBudget | None = None
        self._peer: Peer | None = None
        self._frames: deque[tuple[memoryview, float]] = deque()
        """Received, not begun; and since when, on the clock, their time runs."""
        self._begun: deque[Begun] | None = None
        """Begun, not being answered; made with the first one, since consumers have none."""
        self._unanswered = 0
        """Begun and not answered, the one that is being answered included."""
        self._large_bytes = 0
        """Size of the request that is being received into its own memory."""
        self._is_reading = False
        self._is_serving = False
        """The worker has a request that is not pipelined."""
        self._is_beginning = False
        """The worker gives pipelined requests their places."""
        self._has_left = False
        """The client has closed its side; the worker ends the connection."""
        self._is_draining = False
        self._is_muted = False
        self._unmuting: asyncio.TimerHandle | None = None
        self._is_over = False
        self._more = Signal()
        self._answers = Signal()
        self._none_begun = Signal()
        self._worker: asyncio.Task[None] | None = None
        self._answerer: asyncio.Task[None] | None = None

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._owner.opened(self):
            self._is_over = True
            self._transport.abort()
            return
        self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        for task in (self._worker, self._answerer):
            if task is not None:
                task.cancel()
        if self._unmuting is not None:
            self._unmuting.cancel()
        if self._sender is not None:
            self._sender.end()
        self.release_frame()
        try:
            self._abandon()
        finally:
            self._owner.closed(self)

    def eof_received(self) -> bool:
        """The client sends no more, and reads no more answers: it has gone, or will at once.

        Produce requests that are here count as sent: they still get their places, once the request
        that is being served has ended. With `acks=0` a client sends, closes, and waits for nothing.
        Everything else has no reader any more.
        """
        serving = self._serving
        if self._is_over or serving is None:
            return False
        self._drop_frames(but=serving.dispatcher.is_pipelined)
        self._has_left = self._is_beginning or bool(self._frames)
        return self._has_left

    def pause_writing(self) -> None:
        if self._sender is not None:
            self._sender.pause()

    def resume_writing(self) -> None:
        if self._sender is not None:
            self._sender.resume()

    # ---- what the listener calls

    def serve(self, serving: Serving) -> None:
        """Reads and serves requests from now on."""
        if self._is_over or self._transport is None:
            return
        self._serving = serving
        self._budget = serving.new_budget()
        self._sender = AnswerSender(self._transport, self._wrote)
        certificate = self._transport.get_extra_info("peercert")
        self._peer = self._owner.peer_of(peer_address(self._transport), certificate)
        self._is_reading = True
        self._transport.resume_reading()

    @property
    def is_waiting_for_client(self) -> bool:
        """The client has to send or to read; nothing is under way for it."""
        if self._sender is not None and self._sender.is_blocked:
            return True
        is_idle = not self._is_serving and not self._unanswered and not self._frames
        return is_idle and not self._is_muted

    def drain(self) -> None:
        """No more requests: those that were begun are answered, then the connection ends."""
        if self._is_draining:
            return
        self._is_draining = True
        self._stop_reading()
        self._drop_frames()
        if self._worker is None or self._transport is None:
            self.abort()
            return
        self._more.set()

    def abort(self) -> None:
        """Ends at once; what is queued is lost."""
        if self._transport is not None:
            self._transport.abort()

    def close_idle(self) -> None:
        self._end("idle", "no request, or no answer read, for connections_max_idle_ms")

    # ---- requests in

    def requests_received(self, frames: Sequence[memoryview]) -> None:
        if self._is_over or self._is_draining:
            return
        assert self._budget is not None
        self._large_bytes = 0
        received_at = self._owner.active(self)
        self._frames.extend([(frame, received_at) for frame in frames])
        self._budget.charge(sum(map(len, frames)) + REQUEST_OVERHEAD_BYTES * len(frames))
        self._regulate()
        if self._worker is None:
            self._worker = self._owner.spawn(self._until_over(self._work), "worker")
        else:
            self._more.set()

    def large_request_begun(self, size_bytes: int) -> None:
        self._large_bytes = size_bytes
        self._regulate()

    def not_a_request(self, first_bytes: bytes, reason: str) -> None:
        self._end("not_kafka", f"{reason}; {self._owner.ports.advice(first_bytes)}")

    def _regulate(self) -> None:
        """Pauses reading at the bounds, and resumes it when a quarter of them is free again."""
        serving, budget = self._serving, self._budget
        if serving is None or budget is None or self._is_draining or self._is_over:
            return
        if self._is_muted:
            return  # Nothing is read; `_unmute` looks again.
        waiting = len(self._frames) + self._unanswered
        expected = budget.used + self._large_bytes
        if self._is_reading:
            is_above = expected > serving.in_flight_bytes_max or waiting > serving.requests_max
            if is_above and budget.used:
                self._stop_reading()
                budget.note_wait()
            return
        is_below = (
            expected <= serving.in_flight_bytes_max // 4 * 3
            and waiting <= serving.requests_max // 4 * 3
        )
        if is_below or not budget.used:
            assert self._transport is not None
            self._is_reading = True
            self._transport.resume_reading()

    def _stop_reading(self) -> None:
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    # ---- a client above its quota

    def _mute(self, throttle_ms: int) -> None:
        """Reads and begins nothing for a while; what was begun is answered meanwhile.

        The time of the requests that are here stands still: they would fail unbegun, and be sent
        again at the cost of the quota.
        """
        if self._is_over or self._is_draining:
            return
        self._is_muted = True
        self._stop_reading()
        throttle_s = throttle_ms / 1000
        self._frames = deque([(frame, since + throttle_s) for frame, since in self._frames])
        self._unmuting = asyncio.get_running_loop().call_later(throttle_s, self._unmute)

    def _unmute(self) -> None:
        self._is_muted = False
        self._unmuting = None
        if self._is_over:
            return
        self._owner.active(self)  # Its client could send nothing until now.
        self._regulate()
        self._more.set()

    # ---- the worker: requests in order

    async def _until_over(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whatever ends one of the tasks ends this connection, and no other one."""
        try:
            await work()
        except CloseConnection as end:
            self._end("refused", end.reason)
        except Bug as bug:
            self._end("bug", str(bug))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not this task was cancelled, but something that a request waited for.
            log.exception("a request was cut off", extra={"peer": self.peer_address})
            self._end("bug", "what a request waited for was cancelled")
        except Exception:
            log.exception("a connection failed by a bug", extra={"peer": self.peer_address})
            self._end("bug", "the connection failed by a bug")

    async def _work(self) -> None:
        serving, sender = self._serving, self._sender
        assert serving is not None
        assert sender is not None
        dispatcher = serving.dispatcher
        served = 0
        while True:
            if self._has_left and not self._has_pipelined(dispatcher):
                assert self._transport is not None
                self._transport.close()
                return
            while not self._frames or self._is_muted:
                if self._is_draining:
                    await self._end_drained(sender)
                    return
                await self._more.wait()
            if self._has_pipelined(dispatcher):
                served += await self._begin_some(dispatcher)
            elif sender.is_over:
                return  # Nobody reads the answer; `connection_lost` follows.
            else:
                served += 1
                await self._serve_one(dispatcher, sender)
            if served >= TURN_MAX:
                served = 0
                await asyncio.sleep(0)  # Handlers that never wait must not keep the others waiting.

    def _has_pipelined(self, dispatcher: Dispatcher) -> bool:
        return bool(self._frames) and dispatcher.is_pipelined(self._frames[0][0])

    async def _serve_one(self, dispatcher: Dispatcher, sender: AnswerSender) -> None:
        """Serves the next request, once everything before it has been answered and taken."""
        if self._unanswered:
            await self._all_answered()
        if not sender.has_room:
            await sender.room()
        if not self._frames or self._has_pipelined(dispatcher):
            return  # The node drains, or the client has left: the request was let go.
        assert self._peer is not None
        frame, received_at = self._frames.popleft()
        size_bytes = len(frame)
        self._is_serving = True
        try:
            request = dispatcher.read(frame, self._peer, received_at)
            del frame
            answered = await dispatcher.answer(request)
            del request
            if not self._has_left:  # A socket that is closed answers with a reset, which ends all.
                sender.send(answered.pieces)
            if answered.throttle_ms:
                self._mute(answered.throttle_ms)
        finally:
            self._is_serving = False
            self._answered(size_bytes)

    async def _begin_some(self, dispatcher: Dispatcher) -> int:
        """Gives the pipelined requests that lie ready their places; their number."""
        assert self._peer is not None
        frames, size_bytes, throttle_ms = self._frames, 0, 0
        requests: list[Request] = []
        # All are of one API: produce is the only one that is pipelined.
        while frames and len(requests) < TOGETHER_MAX and size_bytes < TOGETHER_BYTES_MAX:
            if requests and not dispatcher.is_pipelined(frames[0][0]):
                break
            try:
                request = dispatcher.read(frames[0][0], self._peer, frames[0][1])
            except CloseConnection:
                # Kafka takes and answers what came before.
                if requests:
                    break
                await self._all_answered()
                raise
            if requests and dispatcher.may_wait(request):
                break  # Those before it are answered meanwhile.
            frames.popleft()
            requests.append(request)
            size_bytes += request.call.frame_bytes
            throttle_ms = dispatcher.charge(request)
            if throttle_ms:
                break  # What is behind it waits until its client is below its quota.
        self._unanswered += len(requests)
        self._is_beginning = True
        begun = await dispatcher.begin(requests, throttle_ms)
        self._is_beginning = False
        if begun[-1].throttle_ms:
            self._mute(begun[-1].throttle_ms)
        if self._is_over:
            for one in begun:
                dispatcher.abandon(one)
            return 0
        if self._begun is None:
            self._begun = deque()
        self._begun.extend(begun)
        if self._answerer is None:
            self._answerer = self._owner.spawn(self._until_over(self._answer), "answers")
        else:
            self._answers.set()
        return len(requests)

    # ---- the answer task: pipelined requests in order

    async def _answer(self) -> None:
        serving, sender = self._serving, self._sender
        assert serving is not None
        assert sender is not None
        assert self._begun is not None
        dispatcher, begun = serving.dispatcher, self._begun
        while True:
            while not begun:
                await self._answers.wait()
            pieces: list[Buffer] = []
            size_bytes = count = charged_bytes = 0
            while begun and (
                not count
                or (count < JOINED_MAX and size_bytes < JOINED_BYTES_MAX and begun[0].is_ready())
            ):
                one = begun.popleft()
                charged_bytes += one.frame_bytes
                if not count and not one.is_ready():
                    await dispatcher.wait(one)
                count += 1
                try:
                    answer = dispatcher.finish(one)
                except CloseConnection:
                    # Kafka answers what came before the request that ends the connection.
                    sender.send(pieces)
                    raise
                size_bytes += sum(map(len, answer))
                pieces += answer
                del one, answer
            sender.send(pieces)
            del pieces
            self._unanswered -= count
            self._answered(charged_bytes, count)
            if not self._unanswered:
                self._none_begun.set()
            if not sender.has_room:
                await sender.room()

    def _answered(self, size_bytes: int, count: int = 1) -> None:
        if self._is_over or self._budget is None:
            return  # `connection_lost` releases everything.
        self._budget.release(size_bytes + REQUEST_OVERHEAD_BYTES * count)
        self._owner.active(self)
        self._regulate()

    def _wrote(self) -> None:
        self._owner.active(self)

    # ---- the end

    async def _all_answered(self) -> None:
        """Waits until nothing that was begun is left."""
        while self._unanswered:
            await self._none_begun.wait()

    async def _end_drained(self, sender: AnswerSender) -> None:
        await self._all_answered()
        await sender.drained()
        assert self._transport is not None
        self._transport.close()

    def _end(self, why: str, reason: str) -> None:
        """The node ends the connection, and counts and logs why."""
        if self._is_over:
            return
        self._is_over = True
        self._owner.ended(self, why, reason)
        self._stop_reading()
        self._drop_frames()
        if self._transport is None:
            return
        if why == "refused" and self._sender is not None and not self._sender.is_blocked:
            self._transport.close()
        else:
            self._transport.abort()

    def _drop_frames(self, but: Callable[[memoryview], bool] = lambda frame: False) -> None:
        """Requests that were not begun are let go; their clients send them again elsewhere.

        `but`: those that stay.
        """
        kept = [one for one in self._frames if but(one[0])]
        count = len(self._frames) - len(kept)
        if self._budget is not None and count:
            size_bytes = sum(len(frame) for frame, _ in self._frames)
            size_bytes -= sum(len(frame) for frame, _ in kept)
            self._budget.release(size_bytes + REQUEST_OVERHEAD_BYTES * count)
        self._frames.clear()
        self._frames.extend(kept)

    def _abandon(self) -> None:
        self._drop_frames()
        if self._serving is not None and self._begun is not None:
            for begun in self._begun:
                self._serving.dispatcher.abandon(begun)
            self._begun.clear()
        if self._budget is not None:
            self._budget.release(self._budget.used)

    @property
    def peer_address(self) -> str:
        """HOST:PORT of the client."""
        return "" if self._peer is None else self._peer.address
