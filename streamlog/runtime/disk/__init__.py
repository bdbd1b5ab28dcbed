"""Folders and files as the write-ahead log needs them: the Disk protocol, the system's, lock files.

Imports `runtime`'s buffers. Used by the WAL, the KV store, the object store and repair.
"""
