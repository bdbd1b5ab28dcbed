"""Checks and their results.

A check is an async function over its subject. It returns `Good` with what it saw, raises
`CheckFailed` if the engine cannot work that way, and `Doubtful` if somebody should look at it. An
error of the subject, and no answer in time, are results too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from streamlog.errors import DiskFull, StoreUnavailable, StreamlogError

T = TypeVar("T")

CHECK_TIMEOUT_S = 120.0
ROOM_ADVICE = "free some space, and run it again"


class CheckOutcome(StrEnum):
    """INFO: a fact that is neither right nor wrong, such as a price or a version."""

    PASS = "pass"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`advice`: empty if there is nothing to do. `figures`: the numbers in `detail`."""

    name: str
    outcome: CheckOutcome
    detail: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Good:
    detail: str
    figures: Mapping[str, float] = field(default_factory=dict)
    outcome: CheckOutcome = CheckOutcome.PASS


class CheckFailed(Exception):
    """The text says what was expected and what was found."""


class Doubtful(Exception):
    """`advice` replaces the check's own."""

    def __init__(
        self, detail: str, advice: str, figures: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(detail)
        self.advice = advice
        self.figures = figures or {}


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """`advice`: what to do when the check fails. A full disk, and a store or disk that gives no
    answer, say nothing of what is checked: then it is what the error says."""

    name: str
    body: Callable[[T], Awaitable[Good]]
    advice: str

    async def run(self, subject: T) -> CheckResult:
        """Raises nothing, except when it is cancelled."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                good = await self.body(subject)
        except CheckFailed as wrong:
            return CheckResult(self.name, CheckOutcome.FAIL, str(wrong), self.advice)
        except Doubtful as doubt:
            return CheckResult(
                self.name, CheckOutcome.WARN, str(doubt), doubt.advice, doubt.figures
            )
        except DiskFull as error:
            return failed(self.name, error, ROOM_ADVICE)
        except StoreUnavailable as error:
            return failed(self.name, error, "do what the error says, and run it again")
        except StreamlogError as error:
            return failed(self.name, error, self.advice)
        except TimeoutError:
            return CheckResult(
                self.name,
                CheckOutcome.FAIL,
                f"no answer within {CHECK_TIMEOUT_S:.0f} s",
                self.advice,
            )
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            return CheckResult(
                self.name, CheckOutcome.FAIL, f"{what}{error.strerror or error}", self.advice
            )
        return CheckResult(self.name, good.outcome, good.detail, "", good.figures)


async def run_all(checks: Sequence[Check[T]], subject: T) -> AsyncIterator[CheckResult]:
    """Runs the checks one after another; yields each finding at once."""
    for check in checks:
        yield await check.run(subject)


def failed(name: str, error: StreamlogError, advice: str = "") -> CheckResult:
    """A typed error as a finding. Without `advice` its message says what to do."""
    return CheckResult(name, CheckOutcome.FAIL, f"{type(error).__name__}: {error.message}", advice)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The percentile by nearest rank."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
