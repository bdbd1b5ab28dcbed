"""The facts that every store tells in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.errors import (
    AlreadyExists,
    Corrupt,
    DataInUse,
    Fenced,
    ForeignCluster,
    Internal,
    Invalid,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    Unavailable,
    UnsupportedVersion,
    ValueConflict,
)


class Misplaced(Invalid):
    """There is no such bucket, or not in that region: a wrong URL, or a bucket that was deleted."""


class StoreRefused(Invalid):
    """The store refused a request with an error that is on no list: a proxy's, a key service's, a
    look-alike store's. A later try may pass, for example after an operator mended the store.
    """


NEVER = (Internal, Fenced, ForeignCluster, DataInUse, Corrupt, UnsupportedVersion)
"""A request that met one of these meets it again: a bug here, or this process must stop."""


def may_succeed_later(error: StreamlogError) -> bool:
    """Whether a write that has to reach the store is to be tried again after this error.

    All that a store may answer is on this side, whether it is known or not: what was sequenced
    must wait for a store that is misconfigured, and must not end the node.
    """
    return not isinstance(error, NEVER)


@contextmanager
def refusals_as_unavailable(what: str) -> Iterator[None]:
    """Around requests without a condition: every refusal becomes StoreUnavailable.

    A conflict or an absent object, of a proxy or of a multipart upload, says nothing of what its
    caller would take it for.
    """
    try:
        yield
    except StreamlogError as error:
        if isinstance(error, Unavailable | OutcomeUnknown) or not may_succeed_later(error):
            raise
        raise StoreUnavailable(f"the store refused {what}: {error.message}") from error


def not_found(key: str) -> ObjectNotFound:
    return ObjectNotFound(f"there is no object {key}", object_key=key)


def already_exists(key: str) -> AlreadyExists:
    return AlreadyExists(f"the object {key} exists already", object_key=key)


def changed(key: str, expected: str, actual: str) -> ValueConflict:
    return ValueConflict(
        f"the object {key} has changed; read it again",
        object_key=key,
        expected=expected,
        actual=actual,
    )


def check_range(key: str, start: int, length: int | None, size_bytes: int) -> int:
    """How many bytes a get from `start` returns. Errors: Invalid."""
    if start < 0 or (length is not None and length < 0) or start > size_bytes:
        raise Invalid(
            f"no {length if length is not None else 'remaining'} bytes from {start} in {key}: the "
            f"object has {size_bytes}",
            object_key=key,
            start=start,
            size_bytes=size_bytes,
        )
    return size_bytes - start if length is None else min(length, size_bytes - start)


def check_limit(limit: int) -> None:
    if limit < 1:
        raise Invalid(f"a page holds at least one object, not {limit}")
