"""A deterministic simulator: the real engine on virtual time, a torn disk and a moody store.

One seed is one history: the same seed gives the same trace, operation for operation. Everything
that a node does to the world goes through an `Incarnation` (one process lifetime), so that a crash
cuts it off at any point between two effects, and late effects (a PUT under way) may land after it.
"""
