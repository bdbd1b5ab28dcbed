"""What the fuzz tests know of one parser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamlog.errors import Corrupt, UnsupportedVersion
from tests.fuzz.bounds import run_bounded


@dataclass(frozen=True, slots=True)
class Parser:
    """`parse` gives a value that can be compared. `mend` sets checksums right, as well as it can.

    `is_sealed`: every byte is under a checksum, so damage is never taken for another value.
    Memory and lines allowed: the constant, and so much for each byte of input.
    """

    name: str
    parse: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = (Corrupt, UnsupportedVersion)
    mend: Callable[[bytes], bytes] | None = None
    is_sealed: bool = False
    memory_bytes: int = 1 << 20
    memory_per_byte: int = 400
    lines: int = 4000
    lines_per_byte: int = 80

    def attempt(self, data: bytes) -> object:
        """The value, or the typed error as a value. Anything else is raised."""
        try:
            return run_bounded(
                lambda: self.parse(data),
                memory_bytes_max=self.memory_bytes + self.memory_per_byte * len(data),
                lines_max=self.lines + self.lines_per_byte * len(data),
            )
        except self.errors as error:
            return Refused(type(error).__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    error: str
