"""Whole numbers that the wire and the files can hold."""

from __future__ import annotations

from operator import index

from streamlog.errors import Invalid

OFFSET_MAX = (1 << 63) - 1
"""The highest end of a stream (exclusive)."""


def whole_number(name: str, value: int) -> int:
    """`value` as a plain int. Errors: Invalid, for a text, a fraction or nothing at all."""
    try:
        return index(value)
    except TypeError:
        raise Invalid(f"{name} is a whole number, not {value!r}") from None


def checked_int(name: str, value: int, low: int, high: int) -> int:
    """`value` as a plain int from `low` to `high` (inclusive). Errors: Invalid."""
    number = whole_number(name, value)
    if not low <= number <= high:
        raise out_of_range(name, number, low, high)
    return number


def out_of_range(name: str, value: int, low: int, high: int) -> Invalid:
    return Invalid(f"{name} is {value}; it must be {low} to {high}")
