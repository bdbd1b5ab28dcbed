"""Bytes of checkpoint files: blocks, state and tail.

Pure. Imports `format`'s columns. Used by `metadata.checkpoint` and repair.
"""
