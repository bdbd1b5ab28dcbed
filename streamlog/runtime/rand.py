"""Randomness comes from a Random, so that a failing simulation replays from its seed."""

from __future__ import annotations

import os
import random
import uuid
from typing import Protocol


class Random(Protocol):
    """Source of every random choice and unique id."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def bytes(self, count: int) -> bytes: ...

    def uuid(self) -> uuid.UUID:
        """A version 4 UUID."""
        ...


class SystemRandom:
    """Unpredictable randomness from the operating system."""

    def random(self) -> float:
        return random.random()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()


class SeededRandom:
    """Repeatable randomness for simulation and tests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._random.randbytes(16), version=4)
