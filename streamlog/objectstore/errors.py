"""The facts that every store tells in the same words."""

from __future__ import annotations

from streamlog.errors import AlreadyExists, Invalid, ObjectNotFound, ValueConflict


class Misplaced(Invalid):
    """There is no such bucket, or not in that region: a wrong URL, or a bucket that was deleted."""


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
