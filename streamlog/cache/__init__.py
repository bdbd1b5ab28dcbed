"""Bytes kept in memory: the tails of streams, decoded blocks, decoded index sections.

Imports formats and the ground. Used by the engine.
"""
