"""Transactions in one partition: which are open, which were aborted, which batches are let in.

Imports the codec and the log's API. Knows no streams. Used by `partition` and each kind of log.
"""
