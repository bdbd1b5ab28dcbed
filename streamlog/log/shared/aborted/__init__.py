"""Aborted transactions of a shared log: entries in the txn stream, and those on their way there.

Imports `log.partition` and the stream model. Used by `state`, `durable` and SharedLog.
"""
