"""The quotas that a client may have: names, values, and the texts that they are kept as. Pure.

Names and rules are Kafka's (QuotaConfig, ClientQuotaControlManager): rates in bytes are whole
numbers, and none is 0 or less, which would stop a client for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from streamlog.errors import Invalid

INT64_MAX = 2**63 - 1
_WHOLE_WITHIN = 1e-6
"""What Kafka takes for a whole number."""


class QuotaKind(Enum):
    """What is measured, with the name of its quota."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"


DOCUMENTATION: Mapping[QuotaKind, str] = {
    QuotaKind.PRODUCE: "Bytes a second of produce requests, on each node.",
    QuotaKind.FETCH: "Bytes a second of fetch answers, on each node.",
    QuotaKind.REQUEST: (
        "Share of the node's event loop that requests may take, in percent of its time."
    ),
}
_KINDS = {kind.value: kind for kind in QuotaKind}


@dataclass(frozen=True, slots=True)
class QuotaValues:
    """What is in force for a client; None: no bound."""

    produce: float | None = None
    fetch: float | None = None
    request: float | None = None

    def over(self, others: QuotaValues) -> QuotaValues:
        """Each of these, or, where it is None, that of `others`."""
        return QuotaValues(
            others.produce if self.produce is None else self.produce,
            others.fetch if self.fetch is None else self.fetch,
            others.request if self.request is None else self.request,
        )

    def __bool__(self) -> bool:
        return self != NO_QUOTAS


NO_QUOTAS = QuotaValues()


def kind_of(name: str) -> QuotaKind:
    """Errors: Invalid."""
    kind = _KINDS.get(name)
    if kind is None:
        raise Invalid(f"unknown quota {name[:80]!r}; there are {', '.join(sorted(_KINDS))}")
    return kind


def check(name: str, value: float) -> None:
    """Errors: Invalid for a quota that is not known, or a value that it cannot have."""
    kind = kind_of(name)
    if not math.isfinite(value) or value <= 0:
        raise Invalid(f"{name} is {value:g}; it must be greater than 0 (delete it for no bound)")
    if kind is QuotaKind.REQUEST:
        return
    if value > INT64_MAX:
        raise Invalid(f"{name} is {value:g}, which is too large; delete it for no bound")
    if abs(value - round(value)) > _WHOLE_WITHIN:
        raise Invalid(f"{name} is {value:g}; it must be a whole number of bytes a second")


def parsed(name: str, text: str) -> float:
    """The value of a text that a person gave. Errors: Invalid."""
    kind_of(name)
    try:
        value = float(text)
    except ValueError:
        raise Invalid(f"{name} is {text[:80]!r}; give a number greater than 0") from None
    check(name, value)
    return value


def written(value: float) -> str:
    """The value as text; one that is whole has no fraction."""
    return str(int(value)) if value == int(value) else repr(value)


def readable(configs: Mapping[str, str]) -> dict[str, float]:
    """Stored values by name, without those that a newer version, or another hand, wrote."""
    return _read(configs)[0]


def values_of(configs: Mapping[str, str]) -> tuple[QuotaValues, list[str]]:
    """What is in force of stored texts; and why others are passed over."""
    values, passed_over = _read(configs)
    return QuotaValues(*(values.get(kind.value) for kind in QuotaKind)), passed_over


def _read(configs: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    values, passed_over = {}, []
    for name, text in configs.items():
        try:
            values[name] = parsed(name, text)
        except Invalid as error:
            passed_over.append(error.message)
    return values, passed_over
