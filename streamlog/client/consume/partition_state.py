"""Where one assigned partition of a consumer is. Pure."""

from __future__ import annotations

NOTHING_PASSED_OVER = (-1, -1)


class PartitionFetchState:
    """Where one assigned partition is."""

    __slots__ = (
        "backoff_until",
        "failures",
        "fetch_offset",
        "generation",
        "high_watermark",
        "passed_over",
        "position",
        "reset",
        "unknown_attempts",
    )

    def __init__(self, generation: int, reset: str) -> None:
        self.generation = generation
        self.reset = reset
        self.fetch_offset: int | None = None
        self.position: int | None = None
        self.passed_over = NOTHING_PASSED_OVER
        """Offsets at the end of the last answer that hold nothing for the caller, such as markers
        of transactions: (the position that the caller reaches, the position to report instead)."""
        self.high_watermark = -1
        self.backoff_until = 0.0
        self.failures = 0
        self.unknown_attempts = 0

    def forget_failures(self) -> None:
        self.failures = self.unknown_attempts = 0

    def pass_over(self, start: int, end: int) -> None:
        """Nothing from `start` to `end` is for the caller; joins what was passed over up to it."""
        first, last = self.passed_over
        self.passed_over = (first if last == start else start, end)
