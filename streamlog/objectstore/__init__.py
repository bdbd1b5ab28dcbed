"""Objects under keys: the one durable medium behind everything.

Imports the ground. Used by the engine, metadata, compaction and repair.
"""
