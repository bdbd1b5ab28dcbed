"""Typed errors on the wire: `streamlog.errors` ↔ `streamlog.v1.Error` ↔ gRPC status.

    server                                          client
    StreamlogError → to_proto → response field    → from_proto → the same class, the same fields
    StreamlogError → to_status → status + details → from_rpc_error → the same class, the same fields

A failed call's status carries a google.rpc.Status whose one detail is our Error. All of it stays
under 4 KiB: larger trailers make the call fail as RESOURCE_EXHAUSTED at the client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc
from google.rpc import status_pb2

from streamlog import errors
from streamlog.errors import ErrorCode, StreamlogError
from streamlog.v1 import error_pb2

MESSAGE_BYTES_MAX = 1024
FIELD_BYTES_MAX = 256
FIELDS_MAX = 8
DETAILS_KEY = "grpc-status-details-bin"
TYPE_URL = "type.googleapis.com/streamlog.v1.Error"

_INT64_MAX = 2**63 - 1

# The first match counts, so subclasses stand before their bases.
_STATUS: tuple[tuple[type[StreamlogError], grpc.StatusCode], ...] = (
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.QuotaExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.Conflict, grpc.StatusCode.ABORTED),
    (errors.Fenced, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.OffsetOutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    (errors.RevisionCompacted, grpc.StatusCode.OUT_OF_RANGE),
    (errors.DeadlinePassed, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.UnknownLeaderEpoch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.PolicyViolation, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.InvalidTxnState, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.OutOfOrderSequence, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Invalid, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthorized, grpc.StatusCode.PERMISSION_DENIED),
    (errors.OutcomeUnknown, grpc.StatusCode.UNKNOWN),
    (errors.WalPending, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.DataInUse, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.ForeignCluster, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.StoreUntrusted, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Corrupt, grpc.StatusCode.DATA_LOSS),
    (StreamlogError, grpc.StatusCode.INTERNAL),
)

# Errors for statuses without our details, which gRPC itself or a proxy sends.
_BARE: dict[grpc.StatusCode, type[StreamlogError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.Invalid,
    grpc.StatusCode.OUT_OF_RANGE: errors.Invalid,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Invalid,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.UNIMPLEMENTED: errors.UnsupportedVersion,
    grpc.StatusCode.PERMISSION_DENIED: errors.Unauthorized,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthorized,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.MessageTooLarge,
    grpc.StatusCode.DATA_LOSS: errors.Corrupt,
}

_ON_THE_WAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNKNOWN,
    }
)


class WireStatus(NamedTuple):
    """Code, text and trailers with which a gRPC call ends."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, bytes], ...]


def grpc_code(error: StreamlogError) -> grpc.StatusCode:
    """The gRPC status code of an error's class."""
    return next(code for cls, code in _STATUS if isinstance(error, cls))


def clip(text: str, bytes_max: int) -> str:
    """Text of at most so many bytes of UTF-8; an ellipsis marks a cut."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode("utf-8", "ignore") + "…"


def to_proto(error: StreamlogError) -> error_pb2.Error:
    """The error as a message of less than 4 KiB; long texts are cut."""
    proto = error_pb2.Error(
        code=int(error.code),  # type: ignore[arg-type]
        name=type(error).__name__,
        message=clip(error.message, MESSAGE_BYTES_MAX),
        is_retryable=error.is_retryable,
        has_no_side_effects=error.has_no_side_effects,
    )
    for name, value in list(error.fields.items())[:FIELDS_MAX]:
        field = proto.fields[clip(name, 64)]
        if isinstance(value, bool):
            field.bool_value = value
        elif isinstance(value, int) and -_INT64_MAX <= value <= _INT64_MAX:
            field.int_value = value
        else:
            field.string_value = clip(str(value), FIELD_BYTES_MAX)
    return proto


def from_proto(proto: error_pb2.Error) -> StreamlogError:
    """The error that `to_proto` was given; for a class unknown here, its nearest known relative."""
    classes = errors.by_name()
    cls = classes.get(proto.name) or _by_code(proto.code, retryable=proto.is_retryable)
    fields: dict[str, errors.Field] = {}
    for name, field in proto.fields.items():
        kind = field.WhichOneof("value")
        if kind is not None:
            fields[name] = getattr(field, kind)
    error = cls(proto.message)
    error.fields = fields
    if error.has_no_side_effects != proto.has_no_side_effects:
        error.has_no_side_effects = proto.has_no_side_effects
    return error


def _by_code(code: int, *, retryable: bool) -> type[StreamlogError]:
    for cls in errors.by_name().values():
        if code not in (0, ErrorCode.UNKNOWN_SERVER_ERROR) and int(cls.code) == code:
            return cls
    return errors.Unavailable if retryable else StreamlogError


def to_status(error: StreamlogError) -> WireStatus:
    """Code, text and trailers of a failed call."""
    code = grpc_code(error)
    status = status_pb2.Status(code=code.value[0], message=clip(error.message, FIELD_BYTES_MAX))
    detail = status.details.add()
    detail.type_url = TYPE_URL
    detail.value = to_proto(error).SerializeToString()
    return WireStatus(
        code, clip(error.message, FIELD_BYTES_MAX), ((DETAILS_KEY, status.SerializeToString()),)
    )


def from_status(
    code: grpc.StatusCode,
    message: str,
    trailers: Iterable[tuple[str, str | bytes]],
    *,
    may_have_happened: bool,
) -> StreamlogError:
    """The typed error of a failed call.

    `may_have_happened`: the call writes, so that a failure on the way is OutcomeUnknown; a call
    that only reads is Unavailable then.
    """
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status.FromString(value)
            for detail in status.details:
                if detail.type_url == TYPE_URL:
                    return from_proto(error_pb2.Error.FromString(detail.value))
    if code in _ON_THE_WAY:
        text = f"{code.name} on the way to the server: {message}"
        if may_have_happened:
            return errors.OutcomeUnknown(f"{text}; retry idempotently")
        return errors.Unavailable(f"{text}; retry")
    text = f"{code.name} from the server: {message}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        text += "; it does not know this call: the node is of an older version, so update it"
    return _BARE.get(code, errors.Internal)(text)


def from_rpc_error(error: grpc.RpcError, *, may_have_happened: bool) -> StreamlogError:
    """The typed error of a failed call, plain or asyncio gRPC."""
    trailers: Any = error.trailing_metadata() or ()
    return from_status(
        error.code(), error.details() or "", trailers, may_have_happened=may_have_happened
    )
