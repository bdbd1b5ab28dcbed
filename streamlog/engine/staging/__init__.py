"""Staged writes: objects uploaded apart from streams and attached to them by one commit.

Imports the engine's streams and its read path. Used by `streamlog.wiring`.
"""
