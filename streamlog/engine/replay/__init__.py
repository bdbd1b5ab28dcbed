"""Replay: what the write-ahead log holds and the store does not goes back into groups at a start.

Imports the append path's groups. Used by the engine alone.
"""
