"""The write-ahead log of `wal=disk`.

Imports format and runtime. Used by the engine, the wiring and repair.
"""
