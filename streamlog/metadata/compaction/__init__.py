"""Compaction's side of the metadata: its tenures and commits, pins, and garbage.

Imports ownership, look-ups and the journal. Used by the session.
"""
