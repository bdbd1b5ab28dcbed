"""A compaction job carried out: ranges read, merged, and written as new objects.

Imports the plan. Used by workers and the compactor.
"""
