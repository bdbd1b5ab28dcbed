"""How many examples hypothesis draws: FUZZ_EXAMPLES, else few and the same ones in every run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
FUZZ = settings(
    max_examples=int(EXAMPLES or 30),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
