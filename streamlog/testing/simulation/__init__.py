"""A deterministic simulator: the real engine on virtual time, with a disk and stores that
fail.

One seed is one history: the same seed gives the same trace, operation for operation. The words are
Jepsen's: *workloads* use the engine, the *nemesis* causes faults, then the world *heals*, and the
*checker* compares what the clients saw with what is there.

Every effect of a node passes its `Incarnation` (one process lifetime). So a crash can cut a node
off between any two effects, and late effects (a PUT under way) may land after the crash.

`simulate` runs an application's own code on such an engine; `run_history` is the engine's own test.
Imports what a node is made of. Used by tests, and by applications through `streamlog.testing`.
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
