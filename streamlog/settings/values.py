"""One value: from text or TOML to its type, inside its limits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from streamlog.errors import InvalidConfig
from streamlog.settings.schema import Knob

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def parse(knob: Knob, given: Any, where: str) -> Any:
    """The checked value. Errors: InvalidConfig, with the setting, its place and its rule."""
    value = _typed(knob, given, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = knob.minimum, knob.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            raise _wrong(knob, given, where, _range(low, high))
        # NaN is neither below nor above a limit. A default may be Kafka's largest float: no bound.
        if value != knob.default and not abs(value) < 2**63:
            raise _wrong(knob, given, where, "a number below 2^63")
    if knob.choices and value is not None and value not in knob.choices:
        raise _wrong(knob, given, where, "one of " + ", ".join(knob.choices))
    return value


def _typed(knob: Knob, given: Any, where: str) -> Any:
    if knob.is_optional and (given is None or given == ""):
        return None
    if knob.kind is bool:
        if isinstance(given, bool):
            return given
        if isinstance(given, str) and given.lower() in _TRUE | _FALSE:
            return given.lower() in _TRUE
        raise _wrong(knob, given, where, "true or false")
    if knob.kind is int:
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        if isinstance(given, str):
            with suppress(ValueError):
                return int(given)
        raise _wrong(knob, given, where, "a whole number")
    if knob.kind is float:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
        try:
            return float(str(given))
        except ValueError:
            raise _wrong(knob, given, where, "a number") from None
    if isinstance(given, str):
        return given
    raise _wrong(knob, given, where, "text in quotes")


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"{low} or more" if low is not None else f"{high} or less"


def _wrong(knob: Knob, given: Any, where: str, allowed: str) -> InvalidConfig:
    return InvalidConfig(
        f"{knob.path} = {str(given)[:80]!r} ({where}): give {allowed}", name=knob.path
    )


def written(value: Any) -> str:
    """The value as written in TOML; empty where nothing is set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
