"""Bytes of write-ahead log files: superblocks and frames.

Pure. Imports `format`'s rows. Used by the WAL.
"""
