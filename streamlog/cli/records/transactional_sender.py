"""Sends lines in transactions: `stored` counts lines whose transaction is committed."""

from __future__ import annotations

import contextlib

from streamlog.cli.records.line_sender import Headers, LineSender
from streamlog.client import Producer
from streamlog.errors import Closed, OutcomeUnknown, StreamlogError


class TransactionalLineSender(LineSender):
    """As LineSender, in transactions of `records` lines; None: one for all lines.

    A transaction begins with its first line. What is not committed when the sender is stopped is
    aborted, or will be by the coordinator after the transaction's time limit.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        partition: int | None,
        key_separator: bytes | None,
        headers: Headers,
        records: int | None,
    ) -> None:
        super().__init__(
            producer, topic, partition=partition, key_separator=key_separator, headers=headers
        )
        self._records_max = records
        self._is_open = False
        self._is_committing = False
        self._committed = 0
        """Lines in committed transactions."""
        self._unknown = 0
        """Lines of a transaction that is committed or not, which is not known."""
        self.transactions = 0

    def send(self, lines: list[bytes]) -> None:
        """Errors: as of LineSender; those of transactions."""
        while lines:
            room = len(lines)
            if self._records_max is not None:
                room = self._committed + self._records_max - self.sent
            if not self._is_open:
                self._producer.begin_transaction()
                self._is_open = True
            super().send(lines[:room])
            if len(lines) >= room and self._records_max is not None:
                self._commit()
            lines = lines[room:]

    def finish(self) -> None:
        """Returns when all lines are committed. Errors: the producer's."""
        super().finish()
        if self._is_open:
            self._commit()

    def _commit(self) -> None:
        self._is_committing = True
        self._producer.commit_transaction()
        self._took_commit()

    def _took_commit(self) -> None:
        self._is_open = self._is_committing = False
        self._pending.clear()
        self.stored = self._committed = self.sent
        self.transactions += 1

    def stop(self, wait_s: float) -> None:
        """Waits for a commit under way, and else aborts, for `wait_s` at most."""
        if self._is_committing:
            self._unknown = self.sent - self._committed
            with contextlib.suppress(StreamlogError, TimeoutError):
                try:
                    self._producer.commit_transaction(wait_s)
                except (OutcomeUnknown, TimeoutError, Closed):
                    raise
                except StreamlogError:
                    self._unknown = 0
                    raise
                self._unknown = 0
                self._took_commit()
        self._producer.close(wait_s)
        self._pending.clear()
        self.stored = self._committed

    def outcome(self) -> str:
        """Which lines are committed, in words; call `stop` first."""
        if not self.sent:
            return "no line was sent"
        first = f"the first {self.stored} lines are committed" if self.stored else ""
        if self._unknown:
            rest = (
                f"the {self._unknown} lines {'behind them' if first else 'sent'} are committed all "
                "together, or none of them is: read them back with --isolation read_committed"
            )
        elif self.sent > self.stored:
            rest = f"{self.sent - self.stored} more were sent, and none of these will be visible"
            rest = rest if first else "no line is committed, and none that was sent will be visible"
        else:
            rest = ""
        return "; ".join(part for part in (first, rest) if part)
