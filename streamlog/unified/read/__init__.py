"""Reads the files of a unified log: batches, offsets by time, aborted transactions.

Imports `state`, `disk`, the codec and `log.partition`. Used by UnifiedLog.
"""
