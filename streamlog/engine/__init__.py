"""Streams over shared objects: appends, uploads, reads, recovery.

Imports WAL, cache, metadata and stores. Used by the wiring.
"""
