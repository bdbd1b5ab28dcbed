"""Log lines: a text and a JSON formatter; both add the request's trace id.

Values in `extra=` become `name=value` pairs, or JSON members.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

trace_id: ContextVar[str] = ContextVar("streamlog_trace_id", default="")
"""Trace id of the request that this task serves; set where the request is accepted."""
client_id: ContextVar[str] = ContextVar("streamlog_client_id", default="")
"""Name of the request's client, from the client; set with the trace id."""

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _values(record: logging.LogRecord) -> dict[str, Any]:
    values = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if "trace_ids" in values:
        # Work for many requests: the trace id of this task is only one of them.
        return values
    for name, variable in (("trace_id", trace_id), ("client_id", client_id)):
        current = variable.get()
        if current and name not in values:
            values[name] = current
    return values


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class SparseLines:
    """Says which of many like log lines are written: one in `every_s`, for anybody may cause them.

    `may_write(now_s)` counts those that are left out in `left_out`, until one is written.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._written_s = float("-inf")
        self._left_out = 0
        self.left_out = 0
        """Before the line that is written now."""

    def may_write(self, now_s: float) -> bool:
        """`now_s`: of any clock that never goes back, seconds."""
        if now_s - self._written_s < self._every_s:
            self._left_out += 1
            return False
        self._written_s = now_s
        self.left_out, self._left_out = self._left_out, 0
        return True


class TextFormatter(logging.Formatter):
    """`2026-11-21T10:00:00.000Z info streamlog.server.node: text name=value`"""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        for name, value in _values(record).items():
            text = str(value)
            line += f" {name}={json.dumps(text) if ' ' in text or not text else text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_values(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


CHATTY = ("boto3", "botocore")
"""Libraries that log every call; only their warnings are useful."""


def set_up(stream: TextIO, *, style: str = "text", level: str = "info") -> logging.Handler:
    """Sends all of the process's log lines to `stream`; returns the handler that does it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """The least level that is logged from now on."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
