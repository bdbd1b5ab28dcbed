"""Errors of object stores, with the same texts whatever the store."""

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
    """The bucket does not exist, or lies in another region: the URL is wrong, or somebody deleted
    the bucket."""


class StoreRefused(Invalid):
    """The store refused a request with an unknown error, perhaps of a proxy or a key service.

    A later try may succeed, for example after an operator mended the store.
    """


NEVER = (Internal, Fenced, ForeignCluster, DataInUse, Corrupt, UnsupportedVersion)
"""Errors that a request meets again: a bug here, or a reason for this process to stop."""


def may_succeed_later(error: StreamlogError) -> bool:
    """Whether a write that must reach the store is tried again after this error.

    True for every answer of a store, known or unknown: sequenced appends wait for a misconfigured
    store, they do not end the node.
    """
    return not isinstance(error, NEVER)


@contextmanager
def refusals_as_unavailable(what: str) -> Iterator[None]:
    """For requests without a condition: every refusal becomes StoreUnavailable.

    A proxy or a multipart upload may answer with a conflict or an absent object; the caller would
    misread that as an answer about its own object.
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
    """The number of bytes that a get from `start` returns. Errors: Invalid."""
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
