"""The simulated world: time, nodes, disks, KV and object stores, and the faults in them.

Imports the product and `testing.torn_disk`. Used by the rest of the simulation.
"""
