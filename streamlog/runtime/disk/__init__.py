"""Folders and files: of fixed size for the write-ahead log (Disk), growing for a log in local files
(GrowingFolder), both over the system's calls; and lock files.

Imports `runtime`'s buffers. Used by the WAL, the KV store, the object store and repair.
"""
