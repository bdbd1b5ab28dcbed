"""Calls whose client left while an answer was being sent: a normal end, not an error.

gRPC may fail the write before it cancels the call. Then `rpc.write` raises ExecuteBatchError; where
gRPC itself writes (a unary answer, the final status), its server logs the error with a traceback
(`_handle_exceptions` of grpc.aio). A batch of operations that could not be started is a bug, and
stays an error.
"""

from __future__ import annotations

import logging

# The public base class does not tell the cause.
from grpc._cython.cygrpc import ExecuteBatchError  # type: ignore[import-not-found]

log = logging.getLogger(__name__)

GRPC_LOGGER = "grpc._cython.cygrpc"
_NOT_STARTED = "Failed grpc_call_start_batch"


def is_ended(error: BaseException | None) -> bool:
    """Whether `error` means that the call was over when a message was written."""
    return isinstance(error, ExecuteBatchError) and not str(error).startswith(_NOT_STARTED)


def quiet_grpc() -> None:
    """Moves gRPC's log records of such calls to the debug level. Can be called again."""
    logging.getLogger(GRPC_LOGGER).addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    if record.exc_info and is_ended(record.exc_info[1]):
        log.debug("a client left while it was answered: %s", record.getMessage())
        return False
    return True
