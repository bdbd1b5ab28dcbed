"""What a run finds wrong: kept with what was sent, up to a bound, and counted beyond it."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

EXAMPLES_MAX = 3
TEXT_MAX = 4000


@dataclass(slots=True)
class Finding:
    what: str
    detail: str
    count: int = 0
    examples: list[list[str]] = field(default_factory=list)
    """What one connection had sent last, in hex."""


class Findings:
    """Findings by what they are: the same traceback again is counted, no more."""

    def __init__(self) -> None:
        self.found: dict[str, Finding] = {}
        self.warnings: Counter[str] = Counter()
        self._unexplained: deque[Finding] = deque(maxlen=10)

    def add(self, what: str, detail: str, sent: Sequence[bytes] = ()) -> None:
        finding = self.found.setdefault(
            f"{what}: {detail[-300:]}", Finding(what, detail[-TEXT_MAX:])
        )
        finding.count += 1
        if sent:
            self._show(finding, sent)
        else:
            self._unexplained.append(finding)

    def ended(self, sent: Sequence[bytes]) -> None:
        """The node has cut a connection off; what was found since the last one may be its fault."""
        while self._unexplained:
            self._show(self._unexplained.popleft(), sent)

    @staticmethod
    def _show(finding: Finding, sent: Sequence[bytes]) -> None:
        if len(finding.examples) < EXAMPLES_MAX:
            finding.examples.append([data.hex() for data in sent])

    @contextmanager
    def watching(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Tracebacks and errors in the log, and whatever no one has caught, are findings."""
        handler, root = _Handler(self), logging.getLogger()
        before = sys.unraisablehook, loop.get_exception_handler()

        def uncaught(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            shown = "".join(traceback.format_exception(error)) if error else ""
            self.add("uncaught", f"{context['message']}\n{shown}")

        root.addHandler(handler)
        sys.unraisablehook = lambda told: self.add("unraisable", repr(told))
        loop.set_exception_handler(uncaught)
        try:
            yield
        finally:
            root.removeHandler(handler)
            sys.unraisablehook, old = before
            loop.set_exception_handler(old)


class _Handler(logging.Handler):
    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.WARNING)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR and record.exc_info is None:
            self._findings.warnings[record.getMessage()] += 1
            return
        error = record.exc_info[1] if record.exc_info else None
        shown = "".join(traceback.format_exception(error)) if error else ""
        known = ("error", "method", "reason")
        values = {name: record.__dict__[name] for name in known if name in record.__dict__}
        self._findings.add(record.getMessage(), f"{values or ''}\n{shown}")
