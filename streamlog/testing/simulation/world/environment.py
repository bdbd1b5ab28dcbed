"""What outlives a crash: time, the object store and the metadata store, and the faults in them."""

from __future__ import annotations

from streamlog.coordinator.markers import MarkerSender
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.world.faults import FaultRates, FaultSource
from streamlog.testing.simulation.world.incarnation import EPOCH_MS, SimulationClock, Trace
from streamlog.testing.simulation.world.loop import SimulationLoop
from streamlog.testing.simulation.world.offload import TYPICAL_S
from streamlog.wal.config import WalMode

WILD_CLOCKS = 0.15
"""Share of the histories with clocks that differ by more than the deletion delay."""
SLOW_SYNCS, SLOW_SYNC_S = 5, 0.1
"""Each fifth history has disks whose syncs take so long that groups are written beside each other.
"""


class Environment:
    """Shared by all nodes of a history. It does not know them: `World` does."""

    def __init__(self, seed: int, wal: WalMode, loop: SimulationLoop, rates: FaultRates) -> None:
        self.wal: WalMode = wal
        self.loop = loop
        self.trace = Trace(loop)
        self._random = SeededRandom(seed)
        self.faults = FaultSource(self.fork(), rates)
        self.store = MemoryObjectStore(SimulationClock(loop))
        self.kv = MemoryKVStore(SimulationClock(loop))
        self.markers: MarkerSender | None = None
        """The way of transactions' markers between nodes; None: each node writes its own."""
        self.wal_s = SLOW_SYNC_S if seed % SLOW_SYNCS == SLOW_SYNCS - 1 else TYPICAL_S[Lane.WAL]
        """What a sync of the write-ahead log takes."""
        self.has_wild_clocks = rates.clock_jump > 0 and self._random.random() < WILD_CLOCKS

    @property
    def now(self) -> float:
        """Virtual seconds since the history began."""
        return self.loop.time()

    @property
    def now_ms(self) -> int:
        """The time of a right clock."""
        return EPOCH_MS + int(self.now * 1000)

    def fork(self) -> SeededRandom:
        """A separate source of randomness, so that draws of one part do not shift another's."""
        return SeededRandom(int.from_bytes(self._random.bytes(8), "big"))

    def set_fault_rates(self, rates: FaultRates) -> None:
        """Applies to nodes that start from now on."""
        self.faults = FaultSource(self.faults.random, rates)

    def heal(self) -> None:
        """Ends all faults."""
        self.faults.is_healed = True
