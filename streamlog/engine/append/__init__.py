"""The append path: byte budget, sequencing, groups, group commit, and when batches are flushed.

Imports `engine`'s configuration and metrics. Used by uploads, replay and the engine.
"""
