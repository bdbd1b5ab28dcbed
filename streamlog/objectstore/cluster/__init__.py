"""`cluster.json`: whose bucket this is, and which metadata may write into it.

Imports `objectstore`'s interface. Used by the engine, by its start and by repair.
"""
