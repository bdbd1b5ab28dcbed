"""Which objects are merged into which: the catalog, the planner, and the spec of a job. Pure.

Imports formats and `model`. Used by executors, workers and the compactor.
"""
