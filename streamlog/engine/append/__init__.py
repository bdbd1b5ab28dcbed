"""The append path up to its group: order of sequence, byte budget, groups and when they close.

Imports `engine`'s configuration and metrics. Used by uploads, replay and the engine.
"""
