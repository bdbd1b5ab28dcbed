"""The simulated world: time, nodes, disks, KV and object stores, and the faults in them.

Imports the product and the torn disk of `testing`. Used by the rest of the simulation.
"""
