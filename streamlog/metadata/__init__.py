"""Which object has which bytes of which stream, and who may change it.

Imports formats, the KV store and object stores. Used by the engine, compaction and repair.
"""
