"""Sends lines by a producer, and counts how many of them are stored."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from streamlog.cli.output import SILENCE_TOLD_AFTER_S, note
from streamlog.client import Delivery, ManyDeliveries, Producer
from streamlog.errors import InvalidRecord, StreamlogError

Headers = Sequence[tuple[str, bytes | None]]


class SeparatorMissing(InvalidRecord):
    """Line `line` has no separator between key and value; the lines before it were sent."""


class LineSender:
    """Sends lines and takes the answers; the first error ends the run.

    `sent` counts all lines handed to the producer. `stored` counts the durable lines up to the
    first that is not: a later run can go on behind them. `refused` counts those that are surely
    not stored, once the sender is stopped.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        partition: int | None,
        key_separator: bytes | None,
        headers: Headers,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._key_separator = key_separator
        self._headers = headers
        self._pending: deque[ManyDeliveries | list[Delivery]] = deque()
        self._taken_in_part: ManyDeliveries | None = None
        """Of the lines of a send that failed, those that the producer took."""
        self._has_failed = False
        """A line is not stored, or its answer is not known; those behind it do not count."""
        self.sent = 0
        self.stored = 0
        self.refused = 0

    def send(self, lines: list[bytes]) -> None:
        """Errors: SeparatorMissing; those of the producer."""
        if self._key_separator is None:
            self._send(lines, None)
        else:
            self._send_with_keys(lines, self._key_separator)
        while self._pending and _is_done(self._pending[0]):
            self._take_answers()

    def _send_with_keys(self, lines: list[bytes], separator: bytes) -> None:
        parts = [line.partition(separator) for line in lines]
        good = next((index for index, part in enumerate(parts) if not part[1]), len(parts))
        self._send([part[2] for part in parts[:good]], [part[0] for part in parts[:good]])
        if good < len(parts):
            raise SeparatorMissing(
                f"line {self.sent + 1} has no separator {separator.decode(errors='replace')!r}",
                line=self.sent + 1,
            )

    def _send(self, values: list[bytes], keys: list[bytes] | None) -> None:
        if not values:
            return
        if self._headers:
            self._send_with_headers(values, keys)
            return
        try:
            many = self._producer.send_many(self._topic, values, keys, partition=self._partition)
        except StreamlogError as error:
            self._taken_in_part = getattr(error, "deliveries", None)
            taken = error.fields.get("taken", 0)
            self.sent += taken if isinstance(taken, int) else 0
            raise
        self._pending.append(many)
        self.sent += len(values)

    def _send_with_headers(self, values: list[bytes], keys: list[bytes] | None) -> None:
        for index, value in enumerate(values):
            delivery = self._producer.send(
                self._topic,
                value,
                key=None if keys is None else keys[index],
                headers=self._headers,
                partition=self._partition,
            )
            self.sent += 1
            if not index:
                self._pending.append([])
            last = self._pending[-1]
            assert isinstance(last, list)
            last.append(delivery)

    def _take_answers(self) -> None:
        """Waits until the oldest lines are durable. Errors: the producer's."""
        self._has_failed = True
        for stored in _stored_counts(self._pending[0]):
            self.stored += stored
        self._has_failed = False
        self._pending.popleft()

    def flush(self) -> None:
        """Returns when all lines are answered. May be interrupted."""
        self._producer.flush()

    def finish(self) -> None:
        """Returns when all lines are durable. Errors: the producer's."""
        self.flush()
        while self._pending:
            self._take_answers()

    def end_soon(self, wait_s: float) -> None:
        """A send under way raises Closed; lines sent before get `wait_s` for their answers.

        Returns at once: a signal may have come while the producer's lock is held.
        """
        threading.Thread(target=self._producer.close, args=(wait_s,), daemon=True).start()

    def stop(self, wait_s: float) -> None:
        """Waits up to `wait_s` for answers, gives up the rest, and brings the counts up to date."""
        self._producer.close(wait_s)
        while self._pending and not self._has_failed:
            # The command ends with the error that called `stop`.
            with contextlib.suppress(StreamlogError):
                self._take_answers()
        self.refused = sum(map(_refused_count, self._pending))
        if self._taken_in_part is not None:
            self.refused += _refused_count(self._taken_in_part)
            self.stored += 0 if self._has_failed else _first_stored(self._taken_in_part)
            self._taken_in_part = None

    def outcome(self) -> str:
        """Which lines are stored, in words; call `stop` first."""
        unsure = self.sent - self.stored - self.refused
        if not self.sent:
            return "no line was sent"
        first = (
            f"the first {self.stored} lines are stored"
            if self.stored
            else "no line is surely stored"
        )
        if not self.stored and not unsure:
            return "no line is stored"
        parts = [first]
        if unsure:
            parts.append(f"{unsure} more were sent, and each of these may be stored or not")
        if self.refused:
            parts.append(f"{self.refused} of those sent are not stored")
        return "; ".join(parts)


def _is_done(sent: ManyDeliveries | list[Delivery]) -> bool:
    return sent.done() if isinstance(sent, ManyDeliveries) else sent[-1].done()


def _stored_counts(sent: ManyDeliveries | list[Delivery]) -> Iterable[int]:
    """Counts of durable lines, in order. Errors: the first failed line's."""
    if isinstance(sent, ManyDeliveries):
        if sent.exception() is None:
            yield len(sent)
            return
        for _ in sent:
            yield 1
        return
    for delivery in sent:
        delivery.result()
        yield 1


def _refused_count(sent: ManyDeliveries | list[Delivery]) -> int:
    """How many of the lines are surely not stored; all are answered or given up."""
    if isinstance(sent, ManyDeliveries):
        failed = [(one.error, len(one.places)) for one in sent.outcomes() if one.error is not None]
    else:
        failed = [(error, 1) for one in sent if (error := one.exception()) is not None]
    return sum(count for error, count in failed if error.has_no_side_effects)


def _first_stored(taken: ManyDeliveries) -> int:
    """How many of the first lines are durable. With keys these lie in several partitions."""
    outcomes = [outcome for outcome in taken.outcomes() if outcome.error is None]
    stored = {place for outcome in outcomes for place in outcome.places}
    return next(place for place in count() if place not in stored)


class SilenceWatch:
    """Says on stderr when lines wait and the node does not answer.

    The producer retries silently until its time limit. A thread watches its counters, because the
    command itself may be in a call that waits for room.
    """

    def __init__(self, producer: Producer, server: str, timeout_s: float) -> None:
        self._producer = producer
        self._server = server
        self._timeout_s = timeout_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="silence-watch", daemon=True)

    def __enter__(self) -> None:
        if self._timeout_s > SILENCE_TOLD_AFTER_S:
            self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        last = (0.0, 0.0)
        silent_s = 0.0
        is_told = False
        step_s = SILENCE_TOLD_AFTER_S / 3
        while not self._ended.wait(step_s):
            counts = self._producer.metrics()
            now = (counts["records_acked"], counts["records_failed"])
            silent_s = silent_s + step_s if counts["buffered_bytes"] and now == last else 0.0
            last = now
            if not silent_s:
                is_told = False
            elif silent_s >= SILENCE_TOLD_AFTER_S and not is_told:
                is_told = True
                note(
                    f"{self._server} has not answered for {silent_s:.0f} s; the lines sent are "
                    f"given up after {self._timeout_s:g} s (--timeout)"
                )
