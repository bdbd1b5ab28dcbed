"""A deterministic simulator: the real engine on virtual time, a torn disk and a moody store.

One seed is one history: the same seed gives the same trace, operation for operation. Everything
that a node does to the world goes through an `Incarnation` (one process lifetime), so that a crash
cuts it off at any point between two effects, and late effects (a PUT under way) may land after it.

`simulate` runs an application's own code on such an engine; `run_history` is the engine's own test.
"""

from streamlog.testing.simulation.application import (
    Application,
    Life,
    SimulationResult,
    simulate,
)
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.history import Failed
from streamlog.testing.simulation.world.faults import FAULTS, NO_FAULTS, FaultRates

__all__ = [
    "FAULTS",
    "NO_FAULTS",
    "Application",
    "Failed",
    "FaultRates",
    "Life",
    "SimulationResult",
    "Violation",
    "simulate",
]
