"""Log lines about connections that a listener ends: one a second, however many clients there are.

Anybody who reaches a port can make a node end connections, so nobody may fill its log with them.
"""

from __future__ import annotations

import asyncio
import logging

from streamlog.runtime.logs import SparseLines

LOG_EVERY_S = 1.0


class EndedConnectionsLog:
    """The lines of one listener, which all say `text`."""

    def __init__(self, log: logging.Logger, text: str) -> None:
        self._log = log
        self._text = text
        self._lines = SparseLines(LOG_EVERY_S)

    def note(self, now_s: float, level: int, **extra: str) -> None:
        """Writes a line, unless one was just written; the next one says how many were left out.

        `now_s`: of any clock that never goes back, seconds.
        """
        if not self._lines.may_write(now_s):
            return
        if self._lines.left_out:
            extra["unlogged"] = str(self._lines.left_out)
        self._log.log(level, self._text, extra=extra, stacklevel=2)


def peer_address(transport: asyncio.BaseTransport) -> str:
    """HOST:PORT of a connection's client."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
