"""Bytes of the metadata's records: commits and compactions.

Pure. Imports `format`'s columns. Used by metadata and repair.
"""
