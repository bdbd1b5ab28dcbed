"""Progress of a command that moves records: one line on stderr, rewritten in place."""

from __future__ import annotations

import time

import click

from streamlog.cli.output import size

PROGRESS_EVERY_S = 0.5


class RecordProgress:
    """Prints only where `is_shown`: stderr is a terminal, and no records go to it."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._next = time.monotonic() + PROGRESS_EVERY_S

    def show(self, records: int, size_bytes: int, end: str = "") -> None:
        if self._is_shown and (end or time.monotonic() >= self._next):
            self._next = time.monotonic() + PROGRESS_EVERY_S
            text = f"\r{records:,} records, {size(size_bytes)}\x1b[K{end}"
            click.echo(text, err=True, nl=False)

    def done(self, records: int, size_bytes: int) -> None:
        self.show(records, size_bytes, "\n")
