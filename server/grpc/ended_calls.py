"""Calls whose client left while an answer was on its way: an end as any other, and no error.

gRPC fails the write first and tells of the cancellation a moment later, or the other way round. In
the first case `context.write` raises ExecuteBatchError, and where gRPC itself writes (a unary
answer, the final status) its server logs that at error level, with a traceback (grpc.aio's
`_handle_exceptions`). A batch of operations that could not even be started is a bug, and stays one.
"""

from __future__ import annotations

import logging

# Its public base class says nothing of the cause.
from grpc._cython.cygrpc import ExecuteBatchError  # type: ignore[import-not-found]

log = logging.getLogger(__name__)

GRPC_LOGGER = "grpc._cython.cygrpc"
_NOT_STARTED = "Failed grpc_call_start_batch"


def is_ended(error: BaseException | None) -> bool:
    """Whether `error` says that the call was over when something was written."""
    return isinstance(error, ExecuteBatchError) and not str(error).startswith(_NOT_STARTED)


def quiet_grpc() -> None:
    """gRPC's records of such calls go to the debug level. Can be called again."""
    logging.getLogger(GRPC_LOGGER).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    if record.exc_info and is_ended(record.exc_info[1]):
        log.debug("a client left while it was answered: %s", record.getMessage())
        return False
    return True
